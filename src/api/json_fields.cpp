#include "api/json_fields.h"

#include <cmath>
#include <exception>
#include <utility>

#include "api/json_text.h"
#include "base/status.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr double kExactDouble = 9007199254740992.0;  // 2^53: whole numbers up to here are exact in a double

std::string_view kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return "a boolean";
    case Json::value_t::string: return "a string";
    case Json::value_t::array: return "an array";
    case Json::value_t::object: return "an object";
    case Json::value_t::number_float: return "a decimal number";
    default: return "an integer";
  }
}

// `kind` is "integer" or "decimal".
template <class Limit, class Number>
absl::Status above_error(std::string_view param, std::string_view kind, Limit limit, Number got) {
  return value_error(
      param, fmt::format("{} above maximum value. Expected a value <= {}, but got {} instead.", kind, limit, got),
      fmt::format("{}_above_max_value", kind));
}

template <class Limit, class Number>
absl::Status below_error(std::string_view param, std::string_view kind, Limit limit, Number got) {
  return value_error(
      param, fmt::format("{} below minimum value. Expected a value >= {}, but got {} instead.", kind, limit, got),
      fmt::format("{}_below_min_value", kind));
}

}  // namespace

absl::StatusOr<Json> parse_json_object(std::string_view body) {
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, Json::parse_event_t event, const Json&) {
    if (depth < kMaxJsonDepth) return true;
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    too_deep = too_deep || opens;
    return !opens;
  };
  Json value;
  try {
    value = Json::parse(body.begin(), body.end(), limit_depth);
  } catch (const Json::parse_error& e) {
    return request_error(
        fmt::format("The request body is not valid JSON: error at byte {}. Send one JSON object in UTF-8.", e.byte), {},
        "invalid_json");
  } catch (const std::exception&) {
    return request_error("The request body is not valid JSON: it holds a number that is out of range.", {},
                         "invalid_json");
  }
  if (too_deep) {
    return request_error(
        fmt::format("The request body is nested more than {} levels deep; send a flatter one.", kMaxJsonDepth), {},
        "invalid_json");
  }
  if (!value.is_object()) {
    return request_error(fmt::format("The request body must be a JSON object, but got {}.", kind_of(value)), {},
                         "invalid_json");
  }
  return value;
}

absl::Status type_error(std::string_view param, std::string_view expected, const Json& value) {
  return request_error(
      fmt::format("Invalid type for '{}': expected {}, but got {} instead.", param, expected, kind_of(value)), param,
      "invalid_type");
}

absl::Status value_error(std::string_view param, std::string_view problem, std::string_view code) {
  return request_error(fmt::format("Invalid '{}': {}", param, problem), param, code);
}

absl::StatusOr<std::int64_t> read_integer(const Json& value, std::string_view param, IntegerRange range) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    // Compared unsigned: past 2^63 a cast would wrap to a small number.
    if (range.max < 0 || number > static_cast<std::uint64_t>(range.max))
      return above_error(param, "integer", range.max, number);
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    if (real != std::floor(real)) return type_error(param, "an integer", value);
    if (real > kExactDouble) return above_error(param, "integer", range.max, real);
    if (real < -kExactDouble) return below_error(param, "integer", range.min, real);
  } else if (!value.is_number_integer()) {
    return type_error(param, "an integer", value);
  }
  const auto number = value.get<std::int64_t>();
  if (number > range.max) return above_error(param, "integer", range.max, number);
  if (number < range.min) return below_error(param, "integer", range.min, number);
  return number;
}

absl::StatusOr<double> read_number(const Json& value, std::string_view param, NumberRange range) {
  if (!value.is_number()) return type_error(param, "a decimal", value);
  const auto number = value.get<double>();
  if (number > range.max) return above_error(param, "decimal", range.max, number);
  // Written so that a NaN cannot pass, whatever the JSON library does.
  if (!(number >= range.min)) return below_error(param, "decimal", range.min, number);
  return number;
}

absl::StatusOr<std::vector<TokenId>> read_token_ids(const Json& value, std::string_view param, TokenId vocab_size) {
  if (!value.is_array()) return type_error(param, "an array of token ids", value);
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    TANDEM_ASSIGN(const std::int64_t id, read_integer(item, param, {.min = 0, .max = std::int64_t{vocab_size} - 1}));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

std::string shortened(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return std::string(text.substr(0, end)) + "...";
}

const Json* Fields::find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status Fields::read(std::string_view name, bool& out) const {
  const Json* value = find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return type_error(param(name), "a boolean", *value);
  out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status Fields::read(std::string_view name, std::string& out) const {
  const Json* value = find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return type_error(param(name), "a string", *value);
  out = value->get_ref<const std::string&>();
  return absl::OkStatus();
}

absl::Status Fields::read(std::string_view name, float& out, NumberRange range) const {
  const Json* value = find(name);
  if (value == nullptr) return absl::OkStatus();
  TANDEM_ASSIGN(const double number, read_number(*value, param(name), range));
  out = static_cast<float>(number);
  return absl::OkStatus();
}

absl::Status Fields::read(std::string_view name, std::optional<std::int64_t>& out, IntegerRange range) const {
  const Json* value = find(name);
  if (value == nullptr) return absl::OkStatus();
  TANDEM_ASSIGN(out, read_integer(*value, param(name), range));
  return absl::OkStatus();
}

}  // namespace tandem
