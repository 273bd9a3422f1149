#include "cli/names.h"

#include <system_error>

namespace tandem {

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string model_name(const std::filesystem::path& path) {
  std::error_code error;
  // Absolute first: "." and ".." have names, too.
  std::filesystem::path normal = std::filesystem::absolute(path, error).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  const std::string name =
      std::filesystem::is_directory(normal, error) ? normal.filename().string() : normal.stem().string();
  return name.empty() || name == "/" ? "model" : name;
}

}  // namespace tandem
