#include "api/request_error.h"

#include "absl/strings/cord.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr char kCodeUrl[] = "tandem/code";

std::string prefix_of(std::string_view field) { return fmt::format("Invalid '{}': ", field); }

template <class Number>
absl::Status above(std::string_view field, std::string_view kind, Number max, std::string_view got) {
  return field_error(field,
                     fmt::format("{} above maximum value. Expected a value <= {}, but got {} instead.", kind, max, got),
                     fmt::format("{}_above_max_value", kind));
}

template <class Number>
absl::Status below(std::string_view field, std::string_view kind, Number min, std::string_view got) {
  return field_error(field,
                     fmt::format("{} below minimum value. Expected a value >= {}, but got {} instead.", kind, min, got),
                     fmt::format("{}_below_min_value", kind));
}

}  // namespace

absl::Status request_error(std::string_view message, std::string_view field, std::string_view code,
                           absl::StatusCode status_code) {
  absl::Status status = request_error(message, field, status_code);
  if (!code.empty()) status.SetPayload(kCodeUrl, absl::Cord(std::string(code)));
  return status;
}

std::optional<std::string> error_code(const absl::Status& status) {
  const auto cord = status.GetPayload(kCodeUrl);
  if (!cord) return std::nullopt;
  return std::string(*cord);
}

absl::Status field_error(std::string_view field, std::string_view problem, std::string_view code) {
  return request_error(prefix_of(field) + std::string(problem), field, code);
}

absl::Status missing_error(std::string_view field) {
  return request_error(fmt::format("Missing required parameter: '{}'.", field), field, "missing_required_parameter");
}

absl::Status rename_field(const absl::Status& status, std::string_view name) {
  const std::optional<std::string> field = error_field(status);
  if (!field || *field == name) return status;
  std::string text(message(status));
  if (const std::string prefix = prefix_of(*field); text.starts_with(prefix)) {
    text = prefix_of(name) + text.substr(prefix.size());
  }
  return request_error(text, name, error_code(status).value_or(""), status.code());
}

absl::Status check_integer(std::string_view field, std::int64_t value, IntegerRange range) {
  if (value > range.max) return above_error(field, range.max, fmt::format("{}", value));
  if (value < range.min) return below_error(field, range.min, fmt::format("{}", value));
  return absl::OkStatus();
}

absl::Status check_number(std::string_view field, float value, NumberRange range) {
  if (value > range.max) return above(field, "decimal", range.max, fmt::format("{}", value));
  if (!(value >= range.min)) return below(field, "decimal", range.min, fmt::format("{}", value));  // NaN comes here
  return absl::OkStatus();
}

absl::Status above_error(std::string_view field, std::int64_t max, std::string_view got) {
  return above(field, "integer", max, got);
}

absl::Status below_error(std::string_view field, std::int64_t min, std::string_view got) {
  return below(field, "integer", min, got);
}

}  // namespace tandem
