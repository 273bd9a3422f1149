// Refusals of a request: one form for every front end. A refusal names the field as the Request does (`max_tokens`,
// `messages[2].role`) and carries a short code for programs; a front end calls rename_field() with the name that its
// own clients know. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/status.h"

namespace tandem {

// As base/status.h's, with a code such as "context_length_exceeded" (empty: none).
absl::Status request_error(std::string_view message, std::string_view field, std::string_view code,
                           absl::StatusCode status_code = absl::StatusCode::kInvalidArgument);
std::optional<std::string> error_code(const absl::Status& status);

// "Invalid 'field': <problem>"
absl::Status field_error(std::string_view field, std::string_view problem, std::string_view code = "invalid_value");
absl::Status missing_error(std::string_view field);

// The same refusal with another name for its field, also at the beginning of a field_error's message.
absl::Status rename_field(const absl::Status& status, std::string_view name);

// Both ends are allowed values.
struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};
struct NumberRange {
  float min = 0;
  float max = 0;
};

absl::Status check_integer(std::string_view field, std::int64_t value, IntegerRange range);
absl::Status check_number(std::string_view field, float value, NumberRange range);  // refuses NaN

// The refusals of the two, for a value that fits no integer type. `got` is how the client wrote the value.
absl::Status above_error(std::string_view field, std::int64_t max, std::string_view got);
absl::Status below_error(std::string_view field, std::int64_t min, std::string_view got);

}  // namespace tandem
