// str() and repr() of jinja/python.h, and Python's float text.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "fmt/core.h"

#include "text/jinja/functions.h"
#include "text/jinja/python.h"

namespace tandem::jinja {
namespace {

// `digits` without a point, the first of them worth 10^exponent.
std::string lay_out(std::string_view digits, int exponent) {
  if (exponent < -4 || exponent >= 16) {
    std::string out(digits.substr(0, 1));
    if (digits.size() > 1) out.append(".").append(digits.substr(1));
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + std::string(digits);
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return std::string(digits) + std::string(whole - digits.size(), '0') + ".0";
  return std::string(digits.substr(0, whole)) + "." + std::string(digits.substr(whole));
}

void append_entries(TextBuilder& out, const Dict& dict, int depth) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (out.full()) return;
    if (!first) out.append(", ");
    first = false;
    append_repr(out, key, depth + 1);
    out.append(": ");
    append_repr(out, value, depth + 1);
  }
  out.append("}");
}

void append_sequence(TextBuilder& out, const Sequence& sequence, int depth) {
  using Kind = Sequence::Kind;
  if (sequence.kind == Kind::kRange) return out.append(sequence.label);
  if (sequence.kind == Kind::kGenerator) return out.append("<generator object>");
  const bool tuple = sequence.kind == Kind::kTuple;
  const char* view = sequence.kind == Kind::kItems    ? "dict_items("
                     : sequence.kind == Kind::kKeys   ? "dict_keys("
                     : sequence.kind == Kind::kValues ? "dict_values("
                                                      : nullptr;
  if (view != nullptr) out.append(view);
  out.append(tuple ? "(" : "[");
  bool first = true;
  for (const Value& item : sequence.items) {
    if (out.full()) return;
    if (!first) out.append(", ");
    first = false;
    append_repr(out, item, depth + 1);
  }
  out.append(!tuple ? "]" : sequence.items.size() == 1 ? ",)" : ")");
  if (view != nullptr) out.append(")");
}

// What prints the same with str() and repr().
void append_scalar(TextBuilder& out, const Value& value) {
  if (value.is<None>()) return out.append("None");
  if (const auto* boolean = value.get<bool>()) return out.append(*boolean ? "True" : "False");
  if (const auto* integer = value.get<std::int64_t>()) return out.append(std::to_string(*integer));
  if (const auto* big = value.get<BigInt>()) return out.append(*big->digits, Origin::kUser);
  if (const auto* real = value.get<double>()) return out.append(float_repr(*real));
  if (const auto* callable = value.object<const Callable>()) {
    return out.append(callable->macro != nullptr ? fmt::format("<Macro '{}'>", callable->name)
                                                 : fmt::format("<function {}>", callable->name));
  }
  out.append(fmt::format("<{}>", type_name(value)));
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  std::array<char, 40> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(value), std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t mark = shortest.find('e');
  std::string digits(shortest.substr(0, 1));
  if (mark > 2) digits += shortest.substr(2, mark - 2);
  const int exponent = std::atoi(std::string(shortest.substr(mark + 1)).c_str());
  return (value < 0 ? "-" : "") + lay_out(digits, exponent);
}

void append_text_repr(TextBuilder& out, const Text& text) {
  const bool has_single = text.bytes.find('\'') != std::string::npos;
  const char quote = has_single && text.bytes.find('"') == std::string::npos ? '"' : '\'';
  if (text.markup) out.append("Markup(");
  out.append({&quote, 1});
  std::size_t plain = 0;  // start of what needs no escape
  for (std::size_t at = 0; at < text.bytes.size() && !out.full();) {
    const CodePoint c = decode(text.bytes, at);
    std::string escape;
    if (c.value == U'\\' || c.value == static_cast<char32_t>(quote)) {
      escape = {'\\', static_cast<char>(c.value)};
    } else if (c.value == '\n') {
      escape = "\\n";
    } else if (c.value == '\r') {
      escape = "\\r";
    } else if (c.value == '\t') {
      escape = "\\t";
    } else if (c.value != kIllFormed && !is_printable(c.value)) {
      const auto code = static_cast<std::uint32_t>(c.value);
      escape = code < 0x100     ? fmt::format("\\x{:02x}", code)
               : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                : fmt::format("\\U{:08x}", code);
    }
    if (!escape.empty()) {
      out.append(text, plain, at);
      out.append(escape, origin_at(text, at));
      plain = at + c.bytes;
    }
    at += c.bytes;
  }
  out.append(text, plain, text.bytes.size());
  out.append({&quote, 1});
  if (text.markup) out.append(")");
}

void append_repr(TextBuilder& out, const Value& value, int depth) {
  // Only namespaces that hold each other get here; Python raises RecursionError.
  if (depth > 2 * kMaxNesting) return out.append("...");
  if (value.undefined()) return out.append("Undefined");
  if (const auto* text = value.text()) return append_text_repr(out, *text);
  if (const auto* sequence = value.sequence()) return append_sequence(out, *sequence, depth);
  if (const auto* dict = value.dict()) return append_entries(out, *dict, depth);
  if (const auto* names = value.object<Namespace>()) {
    out.append("<Namespace ");
    append_entries(out, names->values, depth + 1);
    return out.append(">");
  }
  append_scalar(out, value);
}

absl::StatusOr<TextPtr> to_text(const Value& value) {
  if (const auto* text = value.get<TextPtr>()) return *text;
  TextBuilder out;
  if (!value.undefined()) append_repr(out, value);
  return out.finish();
}

}  // namespace tandem::jinja
