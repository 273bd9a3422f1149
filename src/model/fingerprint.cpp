#include "model/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include "base/fnv1a.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::int64_t kSamples = 4;
constexpr std::int64_t kSampleBytes = 64;

std::uint64_t sample(std::uint64_t hash, const WeightSource& source) {
  // No type has less than half a byte per element, so that these lie within the tensor whatever its type is.
  const std::int64_t bytes = source.rows * source.cols / 2;
  for (std::int64_t index = 0; index < kSamples; ++index) {
    const std::int64_t begin = bytes * index / kSamples;
    const std::int64_t end = std::min(begin + kSampleBytes, bytes);
    hash = fnv1a(std::span(source.data + begin, source.data + end), hash);
  }
  return hash;
}

}  // namespace

std::string model_fingerprint(const std::string& path, const ModelFile& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string identity;
  const auto add = [&](const fs::path& file) {
    identity +=
        fmt::format("{} {} ", fs::file_size(file, error), fs::last_write_time(file, error).time_since_epoch().count());
  };
  if (fs::is_directory(path, error)) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      identity += file.filename().string() + " ";
      add(file);
    }
  } else {
    add(path);
  }
  std::uint64_t hash = kFnv1aStart;
  for (const NamedTensor& tensor : model.tensors()) hash = sample(hash, tensor.source);
  return identity + fmt::format("{:016x}", hash);
}

}  // namespace tandem
