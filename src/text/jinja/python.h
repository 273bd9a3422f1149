// What Python does with the engine's values: truth, equality, order, arithmetic, subscripts, iteration, printing.
// Every operation fails where Python raises.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tandem::jinja {

absl::Status type_error(std::string message);
absl::Status undefined_error(const Value& undefined);
std::string_view type_name(const Value& value);  // Python's: str, dict, NoneType

bool truthy(const Value& value);
bool hashable(const Value& value);
bool is_number(const Value& value);
std::optional<std::int64_t> as_int(const Value& value);  // True counts as 1
double as_double(const Value& number);
// What copying a value costs, in units of work, and what a function that looks at each of its characters may.
std::uint64_t cost(const Value& value);
std::uint64_t scan_cost(const Value& value);

absl::StatusOr<bool> equals(const Value& a, const Value& b, Budget& budget);
absl::StatusOr<bool> less(const Value& a, const Value& b, Budget& budget);
absl::StatusOr<bool> contains(const Value& container, const Value& item, Budget& budget);
absl::StatusOr<std::size_t> length(const Value& value);

enum class Operator : std::uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Result arithmetic(Operator op, const Value& a, const Value& b, Budget& budget);
Result negate(const Value& value);

// value[key]; an absent element is undefined, not an error.
Result item_of(const Value& value, const Value& key);
// value[start:stop:step], where none means absent.
Result slice_of(const Value& value, const Value& start, const Value& stop, const Value& step);

// Walks anything iterable; a generator is consumed as it goes.
class Cursor final {
 public:
  static absl::StatusOr<Cursor> over(const Value& value);
  bool next(Value& item);

 private:
  explicit Cursor(Value owner) : owner_(std::move(owner)) {}
  Value owner_;
  std::size_t position_ = 0;
};
absl::StatusOr<std::vector<Value>> to_vector(const Value& value, Budget& budget);
bool iterable(const Value& value);

// Python's str() and repr().
absl::StatusOr<TextPtr> to_text(const Value& value);
void append_repr(TextBuilder& out, const Value& value, int depth = 0);
void append_text_repr(TextBuilder& out, const Text& text);
std::string float_repr(double value);

// `format % arguments` and format.format(...).
Result percent_format(const Text& format, const Value& arguments);
Result brace_format(const Text& format, const std::vector<Value>& positional, const Dict& named);

// JSON text to a value whose strings are the user's, and json.dumps.
Result parse_json(std::string_view json);
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  TextPtr item_separator;
  TextPtr key_separator;
};
Result to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace tandem::jinja
