// str.format of jinja/python.h.
#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/field_format.h"
#include "text/jinja/functions.h"

namespace tandem::jinja {
namespace {

absl::StatusOr<Spec> parse_spec(std::string_view text) {
  Spec spec;
  std::size_t at = 0;
  constexpr std::string_view kAligns = "<>^=";
  const auto is_align = [&](std::size_t i) {
    return i < text.size() && kAligns.find(text[i]) != std::string_view::npos;
  };
  if (!text.empty()) {
    const CodePoint first = decode(text, 0);
    if (is_align(first.bytes)) {
      if (first.value == kIllFormed) return bad_spec(text);
      spec.fill = first.value;
      at = first.bytes;
    }
  }
  if (is_align(at)) spec.align = text[at++];
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = ++at > 0;
  if (at < text.size() && text[at] == '0') {
    ++at;
    if (spec.align == 0) {
      spec.align = '=';
      spec.fill = '0';
    }
  }
  auto number = read_number(text, at);
  if (!number) return bad_spec(text);
  spec.width = *number;
  if (at < text.size() && (text[at] == ',' || text[at] == '_')) spec.grouping = text[at++];
  if (at < text.size() && text[at] == '.') {
    const std::size_t digits = ++at;
    number = read_number(text, at);
    if (!number || at == digits) return bad_spec(text);
    spec.precision = *number;
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) return bad_spec(text);
  return spec;
}

// str.format: replacement fields in braces.
class BraceFormatter final {
 public:
  BraceFormatter(const std::vector<Value>& positional, const Dict& named) : positional_(positional), named_(named) {}

  absl::Status run(const Text& format, TextBuilder& out, int depth) {
    const std::string& f = format.bytes;
    std::size_t plain = 0;
    for (std::size_t at = 0; at < f.size() && !out.full();) {
      if (f[at] != '{' && f[at] != '}') {
        ++at;
        continue;
      }
      if (at + 1 < f.size() && f[at + 1] == f[at]) {
        out.append(format, plain, at + 1);
        at = plain = at + 2;
        continue;
      }
      if (f[at] == '}') return type_error("single '}' in a format string");
      if (depth > 1) return type_error("format fields are nested too deeply");
      const std::size_t end = field_end(f, at + 1);
      if (end == std::string::npos) return type_error("single '{' in a format string");
      out.append(format, plain, at);
      TANDEM_TRY(field(format, at + 1, end, out, depth));
      at = plain = end + 1;
    }
    out.append(format, plain, f.size());
    return absl::OkStatus();
  }

 private:
  static std::size_t field_end(std::string_view f, std::size_t at) {
    for (int open = 1; at < f.size(); ++at) {
      if (f[at] == '{') ++open;
      if (f[at] == '}' && --open == 0) return at;
    }
    return std::string::npos;
  }

  absl::Status field(const Text& format, std::size_t begin, std::size_t end, TextBuilder& out, int depth) {
    const std::string_view field = std::string_view(format.bytes).substr(begin, end - begin);
    const std::size_t colon = field.find(':');
    std::string_view name = field.substr(0, colon);
    char conversion = 0;
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    TANDEM_ASSIGN(Value value, lookup(name));
    TextBuilder spec_text;
    if (colon != std::string_view::npos) {
      TANDEM_TRY(run(*cut(format, begin + colon + 1, end), spec_text, depth + 1));
    }
    TANDEM_ASSIGN(const TextPtr spec_bytes, spec_text.finish());
    TANDEM_ASSIGN(const Spec spec, parse_spec(spec_bytes->bytes));
    if (conversion != 0) {
      if (std::string_view("sra").find(conversion) == std::string_view::npos) return bad_spec(field);
      TANDEM_ASSIGN(TextPtr text, conversion == 's' ? to_text(value) : repr_text(value));
      value = Value{std::move(text)};
    }
    return append(value, spec, spec_bytes->bytes, out);
  }

  absl::Status append(const Value& value, const Spec& spec, std::string_view spec_text, TextBuilder& out) {
    if (is_number(value) && !spec_text.empty() && !value.is<BigInt>())
      return append_number(out, value, spec, FormatIn::kBraces);
    if (value.text() == nullptr && !spec_text.empty()) {
      return type_error(fmt::format("a format for {} is not supported", type_name(value)));
    }
    const bool text_spec = (spec.type == 0 || spec.type == 's') && spec.align != '=' && spec.grouping == 0 &&
                           spec.sign == 0 && !spec.alternate;
    if (!text_spec) return bad_spec(spec_text);
    TANDEM_ASSIGN(const TextPtr text, to_text(value));
    append_padded_text(out, *text, spec, '<');
    return absl::OkStatus();
  }

  // "0", "", "name", each with .attribute and [element] behind it.
  Result lookup(std::string_view path) {
    const std::size_t first_end = std::min(path.find_first_of(".["), path.size());
    const std::string_view first = path.substr(0, first_end);
    Value value;
    std::size_t digits = 0;
    const auto number = read_number(first, digits);
    if (digits == first.size() && number) {
      const std::size_t index = first.empty() ? next_++ : static_cast<std::size_t>(*number);
      if (index >= positional_.size()) return type_error("the format asks for more arguments than given");
      value = positional_[index];
    } else {
      const Value* found = named_.find(first);
      if (found == nullptr) return type_error(fmt::format("the format's argument '{}' is not given", first));
      value = *found;
    }
    for (std::size_t at = first_end; at < path.size();) {
      const bool attribute = path[at] == '.';
      const std::size_t stop = attribute ? std::min(path.find_first_of(".[", at + 1), path.size()) : path.find(']', at);
      if (stop == std::string_view::npos) return type_error("missing ']' in a format string");
      const std::string_view name = path.substr(at + 1, stop - at - 1);
      if (attribute) {
        TANDEM_ASSIGN(value, attribute_of(value, name));
      } else {
        std::size_t end = 0;
        const auto index = read_number(name, end);
        const bool numeric = index && end == name.size() && !name.empty();
        TANDEM_ASSIGN(value, subscript_of(value, numeric ? make_int(*index) : make_text(name)));
      }
      at = attribute ? stop : stop + 1;
    }
    return value;
  }

  const std::vector<Value>& positional_;
  const Dict& named_;
  std::size_t next_ = 0;
};

}  // namespace

Result brace_format(const Text& format, const std::vector<Value>& positional, const Dict& named) {
  BraceFormatter formatter(positional, named);
  TextBuilder out;
  TANDEM_TRY(formatter.run(format, out, 0));
  TANDEM_ASSIGN(auto text, out.finish(format.markup));
  return Value{std::move(text)};
}

}  // namespace tandem::jinja
