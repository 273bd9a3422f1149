// `format % arguments` of jinja/python.h.
#include <cmath>
#include <cstdlib>

#include "fmt/core.h"

#include "text/jinja/field_format.h"
#include "text/unicode.h"

namespace tandem::jinja {
namespace {

// One "%..." of `format`, from behind the percent sign; `next` hands out the arguments.
class PercentFormatter final {
 public:
  PercentFormatter(const Text& format, const Value& arguments) : format_(format), arguments_(arguments) {
    const Sequence* sequence = arguments.sequence();
    if (sequence != nullptr && sequence->kind == Sequence::Kind::kTuple) tuple_ = sequence;
  }

  Result run() {
    const std::string& f = format_.bytes;
    std::size_t plain = 0;
    for (std::size_t at = 0; at < f.size() && !out_.full();) {
      if (f[at] != '%') {
        ++at;
        continue;
      }
      out_.append(format_, plain, at);
      TANDEM_TRY(convert(++at));
      plain = at;
    }
    out_.append(format_, plain, f.size());
    // Python takes whatever has elements, tuples and strings apart, for a mapping, of which not all must be used.
    const bool mapping = arguments_.dict() != nullptr || arguments_.undefined() ||
                         (tuple_ == nullptr && arguments_.sequence() != nullptr && arguments_.sequence()->indexable());
    const bool all_used = tuple_ != nullptr ? used_ >= tuple_->items.size() : used_ > 0 || mapping;
    if (!all_used) return type_error("not all arguments were used by the format");
    TANDEM_ASSIGN(auto text, out_.finish(format_.markup));
    return Value{std::move(text)};
  }

 private:
  absl::StatusOr<Value> next() {
    if (tuple_ != nullptr && used_ < tuple_->items.size()) return tuple_->items[used_++];
    if (tuple_ == nullptr && used_ == 0) {
      ++used_;
      return arguments_;
    }
    return type_error("not enough arguments for the format");
  }

  absl::Status convert(std::size_t& at) {
    const std::string& f = format_.bytes;
    Spec spec;
    std::optional<Value> named;
    if (at < f.size() && f[at] == '(') {
      const std::size_t close = f.find(')', at);
      const Dict* dict = arguments_.dict();
      if (close == std::string::npos || dict == nullptr) return type_error("the format requires a mapping");
      const Value* found = dict->find(std::string_view(f).substr(at + 1, close - at - 1));
      if (found == nullptr) return type_error(fmt::format("no key '{}'", f.substr(at + 1, close - at - 1)));
      named = *found;
      at = close + 1;
    }
    bool left = false;
    bool zero = false;
    for (; at < f.size() && std::string_view("-+ #0").find(f[at]) != std::string_view::npos; ++at) {
      left = left || f[at] == '-';
      zero = zero || f[at] == '0';
      if (f[at] == '+' || (f[at] == ' ' && spec.sign != '+')) spec.sign = f[at];
      spec.alternate = spec.alternate || f[at] == '#';
    }
    TANDEM_ASSIGN(spec.width, read_size(at));
    if (at < f.size() && f[at] == '.') {
      ++at;
      TANDEM_ASSIGN(spec.precision, read_size(at));
    }
    while (at < f.size() && (f[at] == 'l' || f[at] == 'h' || f[at] == 'L')) ++at;
    if (at >= f.size()) return type_error("incomplete format");
    spec.type = f[at++];
    if (spec.type == '%') {
      out_.append("%");
      return absl::OkStatus();
    }
    Value value;
    if (named) {
      value = *std::move(named);
    } else {
      TANDEM_ASSIGN(value, next());
    }
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    spec.align = left ? '<' : '>';
    return append(value, spec, zero && !left);
  }

  absl::StatusOr<std::int64_t> read_size(std::size_t& at) {
    if (at < format_.bytes.size() && format_.bytes[at] == '*') {
      ++at;
      TANDEM_ASSIGN(const Value value, next());
      const auto size = as_int(value);
      if (!size) return type_error("* wants an integer");
      if (std::abs(*size) > static_cast<std::int64_t>(kMaxTextBytes)) return bad_spec("*");
      return *size;
    }
    const auto size = read_number(format_.bytes, at);
    if (!size) return bad_spec(format_.bytes.substr(0, 100));
    return *size;
  }

  absl::Status append(const Value& value, Spec spec, bool zero) {
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      TANDEM_ASSIGN(TextPtr text, spec.type == 's' ? to_text(value) : repr_text(value));
      if (format_.markup && !text->markup) {
        TANDEM_ASSIGN(text, html_escaped(*text));
      }
      append_padded_text(out_, *text, spec, '>');
      return absl::OkStatus();
    }
    if (spec.type == 'c' && value.text() != nullptr && value.text()->num_chars == 1) {
      append_padded_text(out_, *value.text(), spec, '>');
      return absl::OkStatus();
    }
    if (value.undefined()) return undefined_error(value);
    if (const auto code = as_int(value); spec.type == 'c' && code) {
      if (*code < 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) return type_error("no such character");
      std::string character;
      append_utf8(character, static_cast<char32_t>(*code));
      append_padded_text(out_, *make_text_ptr(character), spec, '>');
      return absl::OkStatus();
    }
    if (!is_number(value)) {
      return type_error(fmt::format("%{} wants a number, not {}", spec.type, type_name(value)));
    }
    if (zero) {
      spec.align = '=';
      spec.fill = '0';
    }
    const bool integral = std::string_view("diuxXo").find(spec.type) != std::string_view::npos;
    if (integral && value.is<double>()) {
      const double real = std::trunc(as_double(value));
      if (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || !(std::fabs(real) < 9e18)) {
        return type_error(fmt::format("%{} wants an integer", spec.type));
      }
      return append_number(out_, make_int(static_cast<std::int64_t>(real)), spec, FormatIn::kPercent);
    }
    if (!integral && std::string_view("fFeEgG").find(spec.type) == std::string_view::npos) {
      return type_error(fmt::format("unsupported format character '{}'", spec.type));
    }
    return append_number(out_, value, spec, FormatIn::kPercent);
  }

  const Text& format_;
  const Value& arguments_;
  const Sequence* tuple_ = nullptr;
  std::size_t used_ = 0;
  TextBuilder out_;
};

}  // namespace

Result percent_format(const Text& format, const Value& arguments) { return PercentFormatter(format, arguments).run(); }

}  // namespace tandem::jinja
