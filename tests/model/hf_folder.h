// A copy of tests/data/models/tiny-llama to spoil.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "model/temp_folder.h"
#include "nlohmann/json.hpp"

namespace tandem::testing {

class HfFolder final {
 public:
  explicit HfFolder(std::string_view model = "tiny-llama") {
    for (const auto& file :
         std::filesystem::directory_iterator(std::string(TANDEM_TEST_DATA "/models/") + std::string(model))) {
      if (file.path().filename() != "golden.json")
        std::filesystem::copy(file.path(), folder_ / file.path().filename().string());
    }
  }
  const TempFolder& files() const { return folder_; }
  std::string path() const { return folder_.path(); }

  void edit(std::string_view name, const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json value = nlohmann::json::parse(folder_.read(name));
    change(value);
    folder_.write(name, value.dump());
  }
  void remove(std::string_view name) const { std::filesystem::remove(folder_ / name); }

  // Rewrites model.safetensors with the tensors `keep` accepts, into `name`; the bytes stay in order.
  void copy_tensors(std::string_view name, const std::function<bool(const std::string&)>& keep) const {
    const std::string file = folder_.read("model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    const nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
    nlohmann::json kept;
    std::string data;
    for (const auto& [tensor, value] : header.items()) {
      if (tensor == "__metadata__" || !keep(tensor)) continue;
      const auto begin = value["data_offsets"][0].get<std::uint64_t>();
      const auto end = value["data_offsets"][1].get<std::uint64_t>();
      kept[tensor] = value;
      kept[tensor]["data_offsets"] = {data.size(), data.size() + end - begin};
      data += file.substr(8 + length + begin, end - begin);
    }
    write_tensors(name, kept, data);
  }
  // Adds lm_head.weight to model.safetensors: the embedding's bytes, the first of them raised by `difference`.
  void add_head(char difference) const {
    const std::string file = folder_.read("model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
    std::string data = file.substr(8 + length);
    const nlohmann::json embed = header["model.embed_tokens.weight"];
    const auto begin = embed["data_offsets"][0].get<std::uint64_t>();
    std::string head = data.substr(begin, embed["data_offsets"][1].get<std::uint64_t>() - begin);
    head[0] = static_cast<char>(head[0] + difference);
    header["lm_head.weight"] = embed;
    header["lm_head.weight"]["data_offsets"] = {data.size(), data.size() + head.size()};
    write_tensors("model.safetensors", header, data + head);
  }

 private:
  void write_tensors(std::string_view name, const nlohmann::json& header, const std::string& data) const {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &length, 8);
    folder_.write(name, out + text + data);
  }
  TempFolder folder_;
};

}  // namespace tandem::testing
