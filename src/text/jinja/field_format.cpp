#include "text/jinja/field_format.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "fmt/core.h"

#include "text/unicode.h"

namespace tandem::jinja {

absl::Status bad_spec(std::string_view spec) { return type_error(fmt::format("invalid format '{}'", spec)); }

std::optional<std::int64_t> read_number(std::string_view text, std::size_t& at) {
  std::int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > static_cast<std::int64_t>(kMaxTextBytes)) return std::nullopt;
  }
  return number;
}

namespace {

constexpr std::int64_t kMaxPrecision = 1000;

std::string print_double(const char* format, std::int64_t precision, double value) {
  std::array<char, 1400> buffer{};  // 309 digits, the point and kMaxPrecision more
  const int size = std::snprintf(buffer.data(), buffer.size(), format, static_cast<int>(precision), value);
  return {buffer.data(), static_cast<std::size_t>(size)};
}

std::string group(std::string_view digits, char separator, std::size_t every) {
  const std::size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out + std::string(digits.substr(whole));
}

// The magnitude's digits; `prefix` gets 0x and the like.
absl::StatusOr<std::string> integer_digits(std::int64_t value, const Spec& spec, std::string& prefix) {
  const auto magnitude = value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
  std::string digits;
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
    case 'i':
    case 'u': digits = fmt::format("{}", magnitude); break;
    case 'x': digits = fmt::format("{:x}", magnitude); break;
    case 'X': digits = fmt::format("{:X}", magnitude); break;
    case 'o': digits = fmt::format("{:o}", magnitude); break;
    case 'b': digits = fmt::format("{:b}", magnitude); break;
    default: return bad_spec({&spec.type, 1});
  }
  const bool based = spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b';
  if (spec.alternate && based) prefix = {'0', spec.type};
  if (spec.grouping != 0) digits = group(digits, spec.grouping, based ? 4 : 3);
  return digits;
}

absl::StatusOr<std::string> float_digits(double value, const Spec& spec) {
  const double magnitude = std::fabs(value);
  const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  if (!std::isfinite(value)) {
    const std::string name = std::isnan(value) ? "nan" : "inf";
    return upper ? std::string(std::isnan(value) ? "NAN" : "INF") : name + (spec.type == '%' ? "%" : "");
  }
  const std::int64_t precision = spec.precision < 0 ? 6 : spec.precision;
  std::string digits;
  switch (spec.type) {
    case 'f':
    case 'F': digits = print_double("%.*f", precision, magnitude); break;
    case '%': digits = print_double("%.*f", precision, magnitude * 100) + "%"; break;
    case 'e': digits = print_double("%.*e", precision, magnitude); break;
    case 'E': digits = print_double("%.*E", precision, magnitude); break;
    case 'g':
    case 'n': digits = print_double(spec.alternate ? "%#.*g" : "%.*g", precision, magnitude); break;
    case 'G': digits = print_double(spec.alternate ? "%#.*G" : "%.*G", precision, magnitude); break;
    case 0:
      if (spec.precision < 0) {
        digits = float_repr(magnitude);
      } else {  // like g, but with a digit behind the point
        digits = print_double("%.*g", std::max<std::int64_t>(precision, 1), magnitude);
        if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
      }
      break;
    default: return bad_spec({&spec.type, 1});
  }
  return spec.grouping != 0 ? group(digits, spec.grouping, 3) : digits;
}

// Lays out `body` (sign and prefix apart) in the width.
void pad(TextBuilder& out, std::string_view lead, const Text& body, const Spec& spec, char align) {
  const auto used = static_cast<std::int64_t>(count_chars(lead) + body.num_chars);
  const auto gap = static_cast<std::uint64_t>(std::max<std::int64_t>(spec.width - used, 0));
  std::string fill;
  append_utf8(fill, spec.fill);
  const TextPtr filler = make_text_ptr(fill);
  if (align == '=') out.append(lead);
  const std::uint64_t before = align == '>' || align == '=' ? gap : align == '^' ? gap / 2 : 0;
  out.append_repeated(*filler, before);
  if (align != '=') out.append(lead);
  out.append(body);
  out.append_repeated(*filler, gap - before);
}

std::string_view sign_of(bool negative, const Spec& spec) {
  return negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
}

}  // namespace

absl::Status append_number(TextBuilder& out, const Value& value, const Spec& spec, FormatIn in) {
  if (spec.precision > kMaxPrecision) return type_error(fmt::format("a precision beyond {}", kMaxPrecision));
  const bool float_type = spec.type != 0 && std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos;
  std::string prefix;
  std::string digits;
  bool negative = false;
  if (value.is<double>() || float_type) {
    const double real = as_double(value);
    negative = std::signbit(real) && !std::isnan(real);
    TANDEM_ASSIGN(digits, float_digits(real, spec));
  } else {
    const auto integer = as_int(value);
    if (!integer) return type_error("an integer beyond 64 bits cannot be formatted");
    if (spec.precision >= 0 && in == FormatIn::kBraces) return type_error("an integer's format has no precision");
    negative = *integer < 0;
    TANDEM_ASSIGN(digits, integer_digits(*integer, spec, prefix));
  }
  const std::string lead = std::string(sign_of(negative, spec)) + prefix;
  pad(out, lead, *make_text_ptr(digits), spec, spec.align != 0 ? spec.align : '>');
  return absl::OkStatus();
}

void append_padded_text(TextBuilder& out, const Text& text, const Spec& spec, char default_align) {
  TextPtr shown;
  const Text* body = &text;
  if (spec.precision >= 0 && static_cast<std::size_t>(spec.precision) < text.num_chars) {
    shown = cut(text, 0, byte_offset(text, static_cast<std::size_t>(spec.precision)));
    body = shown.get();
  }
  pad(out, "", *body, spec, spec.align != 0 ? spec.align : default_align);
}

absl::StatusOr<TextPtr> repr_text(const Value& value) {
  TextBuilder out;
  append_repr(out, value);
  return out.finish();
}

}  // namespace tandem::jinja
