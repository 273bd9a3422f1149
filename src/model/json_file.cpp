#include "model/json_file.h"

#include <filesystem>
#include <system_error>

#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr std::size_t kMaxDepth = 64;
// A parsed value takes some 64 bytes at worst. A vocabulary of 200,000 with 446,000 merges has 1.8 million.
constexpr std::size_t kMaxValues = std::size_t{1} << 21;

struct JsonShape {
  std::size_t depth = 0;
  std::size_t values = 0;       // an upper bound
  std::size_t top_members = 0;  // of an object at the top
};

// One pass over the text that knows strings and brackets and nothing else; malformed text is the parser's to find.
JsonShape measure(std::string_view text) {
  JsonShape shape;
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    switch (c) {
      case '"': in_string = true; break;
      case '{':
      case '[':
        shape.depth = std::max(shape.depth, ++depth);
        ++shape.values;
        break;
      case '}':
      case ']': depth -= depth > 0 ? 1 : 0; break;
      case ':':
        if (depth == 1) ++shape.top_members;
        ++shape.values;
        break;
      case ',': ++shape.values; break;
      default: break;
    }
  }
  return shape;
}

absl::Status wrong_type(std::string_view what, const char* key, std::string_view wanted) {
  return absl::InvalidArgumentError(fmt::format("{}: \"{}\" must be {}", what, key, wanted));
}

}  // namespace

absl::StatusOr<Mapping> map_model_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(fmt::format("{} is missing or not a regular file", path));
  }
  TANDEM_ASSIGN(Mapping mapping, Mapping::map_file(path.c_str()));
  constexpr std::string_view kPointer = "version https://git-lfs";
  const std::string_view text(reinterpret_cast<const char*>(mapping.data()), mapping.size());
  if (text.starts_with(kPointer)) {
    return absl::InvalidArgumentError(
        fmt::format("{} is a git-lfs pointer of {} bytes, not the file itself; fetch it with \"git lfs pull\"", path,
                    mapping.size()));
  }
  return mapping;
}

absl::StatusOr<nlohmann::json> parse_json_object(std::string_view what, std::string_view text) {
  const JsonShape shape = measure(text);
  if (shape.depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        fmt::format("{}: nested {} deep; at most {} are read", what, shape.depth, kMaxDepth));
  }
  if (shape.values > kMaxValues) {
    return absl::InvalidArgumentError(
        fmt::format("{}: about {} values; at most {} are read", what, shape.values, kMaxValues));
  }
  try {
    nlohmann::json value = nlohmann::json::parse(text);
    if (!value.is_object()) return absl::InvalidArgumentError(fmt::format("{}: not a JSON object", what));
    if (value.size() != shape.top_members) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {} keys at its top level, of which {} differ; one is there twice", what, shape.top_members,
                      value.size()));
    }
    return value;
  } catch (const nlohmann::json::parse_error& error) {
    return absl::InvalidArgumentError(fmt::format("{}: not valid JSON near byte {}", what, error.byte));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(fmt::format("{}: not valid JSON: {}", what, error.what()));
  }
}

absl::StatusOr<std::optional<nlohmann::json>> read_json_file(const std::string& path, std::uint64_t most_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<nlohmann::json>();
  TANDEM_ASSIGN(const Mapping mapping, map_model_file(path));
  if (mapping.size() > most_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} bytes; at most {} are read", path, mapping.size(), most_bytes));
  }
  TANDEM_ASSIGN(nlohmann::json value,
                parse_json_object(path, {reinterpret_cast<const char*>(mapping.data()), mapping.size()}));
  return std::optional<nlohmann::json>(std::move(value));
}

const nlohmann::json* json_member(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<std::int64_t>> json_integer(std::string_view what, const nlohmann::json& object,
                                                         const char* key) {
  const nlohmann::json* member = json_member(object, key);
  if (member == nullptr) return std::optional<std::int64_t>();
  // An unsigned number is one above zero; from 2^63 on it is out of every range a caller checks for.
  if (member->is_number_unsigned() && member->get<std::uint64_t>() > INT64_MAX) return std::optional(INT64_MAX);
  if (!member->is_number_integer()) return wrong_type(what, key, "an integer");
  return std::optional(member->get<std::int64_t>());
}

absl::StatusOr<std::optional<double>> json_number(std::string_view what, const nlohmann::json& object,
                                                  const char* key) {
  const nlohmann::json* member = json_member(object, key);
  if (member == nullptr) return std::optional<double>();
  if (!member->is_number()) return wrong_type(what, key, "a number");
  return std::optional(member->get<double>());
}

absl::StatusOr<std::optional<bool>> json_boolean(std::string_view what, const nlohmann::json& object, const char* key) {
  const nlohmann::json* member = json_member(object, key);
  if (member == nullptr) return std::optional<bool>();
  if (!member->is_boolean()) return wrong_type(what, key, "true or false");
  return std::optional(member->get<bool>());
}

absl::StatusOr<std::optional<std::string>> json_text(std::string_view what, const nlohmann::json& object,
                                                     const char* key) {
  const nlohmann::json* member = json_member(object, key);
  if (member == nullptr) return std::optional<std::string>();
  if (!member->is_string()) return wrong_type(what, key, "a string");
  return std::optional(member->get<std::string>());
}

}  // namespace tandem
