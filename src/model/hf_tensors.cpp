#include "model/hf_tensors.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "fmt/core.h"
#include "model/json_file.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{16} << 20;

using ShardNames = std::map<std::string, std::vector<std::string>, std::less<>>;  // shard -> its tensors

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// "weight_map" of the index, turned around. A shard is a file beside the index, never a path out of the folder.
absl::StatusOr<ShardNames> read_index(const std::string& path) {
  TANDEM_ASSIGN(const auto index, read_json_file(path, kMaxIndexBytes));
  const nlohmann::json* map = index ? json_member(*index, "weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(fmt::format("{}: \"weight_map\" is missing or empty", path));
  }
  ShardNames shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(fmt::format("{}: weight_map gives tensor {} no file", path, tensor));
    }
    const auto& name = shard.get_ref<const std::string&>();
    if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos ||
        !name.ends_with(".safetensors")) {
      return absl::InvalidArgumentError(
          fmt::format("{}: weight_map places tensor {} in \"{}\", which is not a .safetensors file of the folder", path,
                      tensor, name));
    }
    shards[name].push_back(tensor);
  }
  return shards;
}

absl::Status take_shard(const std::string& path, const std::vector<std::string>& wanted, HfTensors& out) {
  TANDEM_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
  for (const std::string& name : wanted) {
    const auto found = std::ranges::lower_bound(file.tensors(), name, {}, &SafetensorsTensor::name);
    if (found == file.tensors().end() || found->name != name) {
      return absl::InvalidArgumentError(
          fmt::format("{}: tensor {} is missing, which the index places there", path, name));
    }
    out.tensors.push_back(*found);
  }
  out.mappings.push_back(file.release_mapping());
  return absl::OkStatus();
}

absl::StatusOr<std::string> only_file(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  std::vector<std::string> files;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path().filename().string());
  }
  if (error) return absl::UnavailableError(fmt::format("list {}: {}", folder, error.message()));
  if (files.size() == 1) return folder + "/" + files.front();
  if (files.empty()) return absl::NotFoundError(fmt::format("{}: no .safetensors file in the folder", folder));
  return absl::NotFoundError(
      fmt::format("{}: {} .safetensors files and no model.safetensors.index.json to say which "
                  "belong together",
                  folder, files.size()));
}

}  // namespace

absl::StatusOr<HfTensors> open_hf_tensors(const std::string& folder) {
  HfTensors out;
  std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  if (!exists(single) && exists(index)) {
    TANDEM_ASSIGN(const ShardNames shards, read_index(index));
    for (const auto& [shard, wanted] : shards) TANDEM_TRY(take_shard(folder + "/" + shard, wanted, out));
    return out;
  }
  if (!exists(single)) {
    TANDEM_ASSIGN(single, only_file(folder));
  }
  TANDEM_ASSIGN(SafetensorsFile file, SafetensorsFile::open(single));
  out.tensors = file.tensors();
  out.mappings.push_back(file.release_mapping());
  return out;
}

}  // namespace tandem
