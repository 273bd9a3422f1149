// Reading a JSON request body: bounded parsing, and typed, range-checked access to the fields of one object with
// errors in OpenAI's terms (message, param, code). A null value reads as an absent field. Used by the request parsers
// only; immutable after construction, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tandem/types.h"

namespace tandem {

using Json = nlohmann::json;

// Nesting deeper than this is refused: copying a tree recurses.
inline constexpr int kMaxJsonDepth = 64;

// The body as a JSON object. Fails on malformed JSON, ill-formed UTF-8, unpaired surrogates, NaN, numbers that overflow
// a double, too deep nesting and a top value that is no object. The message never repeats the client's bytes.
absl::StatusOr<Json> parse_json_object(std::string_view body);

// "Invalid type for 'param': expected <expected>, but got <kind of value> instead."
absl::Status type_error(std::string_view param, std::string_view expected, const Json& value);
// "Invalid 'param': <problem>"
absl::Status value_error(std::string_view param, std::string_view problem, std::string_view code = "invalid_value");

struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};

// A whole number in `range`; 8.0 and 1e3 are whole numbers, true and "8" are not.
absl::StatusOr<std::int64_t> read_integer(const Json& value, std::string_view param, IntegerRange range);

struct NumberRange {
  double min = 0;
  double max = 0;
};

absl::StatusOr<double> read_number(const Json& value, std::string_view param, NumberRange range);

// Token ids in [0, vocab_size).
absl::StatusOr<std::vector<TokenId>> read_token_ids(const Json& value, std::string_view param, TokenId vocab_size);

// At most `max_bytes` of `text`, cut at a character, with an ellipsis when cut: for quoting a client's value.
std::string shortened(std::string_view text, std::size_t max_bytes = 100);

// The fields of one object. `prefix` stands before a field's name in errors ("stream_options.").
class Fields final {
 public:
  explicit Fields(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  // Null when the field is absent or null.
  const Json* find(std::string_view name) const;
  std::string param(std::string_view name) const { return prefix_ + std::string(name); }

  // Absent: `out` keeps its value.
  absl::Status read(std::string_view name, bool& out) const;
  absl::Status read(std::string_view name, std::string& out) const;
  absl::Status read(std::string_view name, float& out, NumberRange range) const;
  absl::Status read(std::string_view name, std::optional<std::int64_t>& out, IntegerRange range) const;

 private:
  const Json& object_;  // borrowed for the parser's run
  std::string prefix_;
};

}  // namespace tandem
