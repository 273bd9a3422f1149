// Reads JSON from files that nobody vouches for. Size, nesting depth and number of values are bounded before the
// parser runs, and the parser's exceptions become a Status. Also typed look-ups of fields. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem {

// A whole regular file, read-only. An empty one, a pipe and a version-control pointer in place of the data are
// refused by name.
absl::StatusOr<Mapping> map_model_file(const std::string& path);

// Parses `text`, an object; `what` names it in errors. Refuses an object that has a key twice at its top level.
absl::StatusOr<nlohmann::json> parse_json_object(std::string_view what, std::string_view text);

// The object in a file of at most `most_bytes`; nothing when the file does not exist.
absl::StatusOr<std::optional<nlohmann::json>> read_json_file(const std::string& path, std::uint64_t most_bytes);

// A member of an object; nothing when it is absent or null; an error that names `what` and the key when it has
// another type. Integers must be written without a fraction.
absl::StatusOr<std::optional<std::int64_t>> json_integer(std::string_view what, const nlohmann::json& object,
                                                         const char* key);
absl::StatusOr<std::optional<double>> json_number(std::string_view what, const nlohmann::json& object, const char* key);
absl::StatusOr<std::optional<bool>> json_boolean(std::string_view what, const nlohmann::json& object, const char* key);
absl::StatusOr<std::optional<std::string>> json_text(std::string_view what, const nlohmann::json& object,
                                                     const char* key);
// The member itself, or null when it is absent or JSON null.
const nlohmann::json* json_member(const nlohmann::json& object, const char* key);

}  // namespace tandem
