#include "api/json_fields.h"

#include <cmath>
#include <exception>
#include <limits>
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

absl::StatusOr<std::int64_t> read_integer(const Json& value, std::string_view param, IntegerRange range) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    // Compared unsigned: past 2^63 a cast would wrap to a small number.
    if (range.max < 0 || number > static_cast<std::uint64_t>(range.max))
      return above_error(param, range.max, fmt::format("{}", number));
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    if (real != std::floor(real)) return type_error(param, "an integer", value);
    if (real > kExactDouble) return above_error(param, range.max, fmt::format("{}", real));
    if (real < -kExactDouble) return below_error(param, range.min, fmt::format("{}", real));
  } else if (!value.is_number_integer()) {
    return type_error(param, "an integer", value);
  }
  const auto number = value.get<std::int64_t>();
  TANDEM_TRY(check_integer(param, number, range));
  return number;
}

absl::StatusOr<float> read_number(const Json& value, std::string_view param) {
  if (!value.is_number()) return type_error(param, "a decimal", value);
  const auto number = value.get<double>();
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (std::abs(number) > kLargest)
    return std::copysign(std::numeric_limits<float>::infinity(), number > 0 ? 1.0F : -1.0F);
  return static_cast<float>(number);
}

absl::StatusOr<std::vector<TokenId>> read_token_ids(const Json& value, std::string_view param) {
  constexpr IntegerRange kRange{std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max()};
  if (!value.is_array()) return type_error(param, "an array of token ids", value);
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    TANDEM_ASSIGN(const std::int64_t id, read_integer(item, param, kRange));
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

absl::Status Fields::read(std::string_view name, float& out) const {
  const Json* value = find(name);
  if (value == nullptr) return absl::OkStatus();
  TANDEM_ASSIGN(out, read_number(*value, param(name)));
  return absl::OkStatus();
}

absl::Status Fields::read(std::string_view name, std::optional<std::string>& out) const {
  if (find(name) == nullptr) return absl::OkStatus();
  return read(name, out.emplace());
}

}  // namespace tandem
