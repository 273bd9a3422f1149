#include <filesystem>
#include <system_error>

#include "fmt/core.h"
#include "model/gguf_model.h"
#include "model/hf_model.h"

namespace tandem {

namespace {

// A message quotes names from the file: it stays one line of bounded length whatever they hold.
absl::Status one_line(const absl::Status& status) {
  constexpr std::size_t kMaxBytes = 1000;
  std::string text(message(status).substr(0, kMaxBytes));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return absl::Status(status.code(), text);
}

absl::StatusOr<std::unique_ptr<ModelFile>> open_any(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  switch (status.type()) {
    case std::filesystem::file_type::directory: return open_hf_model(path);
    case std::filesystem::file_type::regular: break;
    case std::filesystem::file_type::not_found:
      return absl::NotFoundError(
          fmt::format("model {} does not exist; give a .gguf file or a folder with config.json "
                      "and *.safetensors",
                      path));
    case std::filesystem::file_type::none:
      return absl::UnavailableError(fmt::format("model {} cannot be looked at: {}", path, error.message()));
    default:
      // Opening a pipe or a device could block or never end.
      return absl::InvalidArgumentError(fmt::format("model {} is neither a regular file nor a folder", path));
  }
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".safetensors" || extension == ".json") {
    return absl::InvalidArgumentError(fmt::format("model {} is one file of a model; give the folder it lies in", path));
  }
  return open_gguf_model(path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> open_model(const std::string& path) {
  absl::StatusOr<std::unique_ptr<ModelFile>> model = open_any(path);
  if (!model.ok()) return one_line(model.status());
  return model;
}

}  // namespace tandem
