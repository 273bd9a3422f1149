// Reading a JSON request body: bounded parsing, and typed access to the fields of one object. A null value reads as an
// absent field. Used by the request parsers only; immutable after construction, any thread. Whether a value is allowed
// is api/request_check.h's business: here an integer is only brought into its range's type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/request_error.h"
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
// A whole number in `range`; 8.0 and 1e3 are whole numbers, true and "8" are not.
absl::StatusOr<std::int64_t> read_integer(const Json& value, std::string_view param, IntegerRange range);

// What a float cannot hold becomes infinite.
absl::StatusOr<float> read_number(const Json& value, std::string_view param);

// Whole numbers that a TokenId can hold.
absl::StatusOr<std::vector<TokenId>> read_token_ids(const Json& value, std::string_view param);

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
  absl::Status read(std::string_view name, float& out) const;
  absl::Status read(std::string_view name, std::optional<std::string>& out) const;
  // An integer of any type that holds the range, or an optional of one.
  template <class Integer>
  absl::Status read(std::string_view name, Integer& out, IntegerRange range) const {
    const Json* value = find(name);
    if (value == nullptr) return absl::OkStatus();
    TANDEM_ASSIGN(const std::int64_t number, read_integer(*value, param(name), range));
    out = static_cast<Held<Integer>>(number);
    return absl::OkStatus();
  }

 private:
  template <class T>
  struct HeldBy {
    using type = T;
  };
  template <class T>
  struct HeldBy<std::optional<T>> {
    using type = T;
  };
  template <class T>
  using Held = typename HeldBy<T>::type;

  const Json& object_;  // borrowed for the parser's run
  std::string prefix_;
};

}  // namespace tandem
