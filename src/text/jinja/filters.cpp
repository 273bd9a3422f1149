// Filters on text and numbers; those on lists are in jinja/list_filters.cpp.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "fmt/core.h"

#include "text/jinja/eval.h"

namespace tandem::jinja {
namespace {

Result as_result(absl::StatusOr<TextPtr> text) {
  if (!text.ok()) return text.status();
  return Value{*std::move(text)};
}

template <Case kCase>
Result change_case(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the filter", args, {}).status());
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  return as_result(with_case(*text, kCase));
}

Result trim(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("trim", args, {"chars"}));
  TANDEM_ASSIGN(const Text* chars, bound.text(0));
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  return Value{strip(*text, chars, Side::kBoth)};
}

Result replace_filter(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("replace", args, {"old", "new", "count"}));
  TANDEM_TRY(bound.require(2));
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  TANDEM_ASSIGN(const TextPtr from, to_text(*bound[0]));
  TANDEM_ASSIGN(const TextPtr to, to_text(*bound[1]));
  std::int64_t count = -1;
  if (bound[2] != nullptr && !bound[2]->is<None>()) {
    TANDEM_ASSIGN(count, bound.integer(2, -1));
  }
  Text plain = *text;  // the filter turns markup into plain text
  plain.markup = false;
  return as_result(replace(plain, *from, *to, count));
}

Result string(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("string", args, {}).status());
  return as_result(to_text(self));
}

Result safe(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("safe", args, {}).status());
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  Text marked = *text;
  marked.markup = true;
  return Value{std::make_shared<const Text>(std::move(marked))};
}

Result escape(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("escape", args, {}).status());
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  return text->markup ? Value{text} : as_result(html_escaped(*text));
}

Result force_escape(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("forceescape", args, {}).status());
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  return as_result(html_escaped(*text));
}

Result indent(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("indent", args, {"width", "first", "blank"}));
  TextPtr indention;
  if (bound[0] != nullptr && bound[0]->text() != nullptr) {
    indention = *bound[0]->get<TextPtr>();
  } else {
    TANDEM_ASSIGN(const std::int64_t width, bound.integer(0, 4));
    TANDEM_ASSIGN(const Value spaces,
                  arithmetic(Operator::kMultiply, make_text(" "), make_int(width), evaluator.budget()));
    indention = *spaces.get<TextPtr>();
  }
  if (self.undefined()) return undefined_error(self);
  if (self.text() == nullptr) return type_error(fmt::format("indent wants a string, not {}", type_name(self)));
  const bool blank = bound.truth(2, false);
  TextBuilder padded;  // a last line break would be lost otherwise
  padded.append(*self.text());
  padded.append("\n");
  TANDEM_ASSIGN(const TextPtr text, padded.finish(self.text()->markup));
  TextBuilder out;
  bool first = true;
  for (const TextPtr& line : split_lines(*text, LineEnds::kDrop)) {
    if (out.full()) break;
    if (!first) out.append("\n");
    const bool indents = first ? bound.truth(1, false) : blank || !line->bytes.empty();
    if (indents) out.append(*indention);
    out.append(*line);
    first = false;
  }
  return as_result(out.finish(text->markup));
}

Result center(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("center", args, {"width"}));
  TANDEM_ASSIGN(const std::int64_t width, bound.integer(0, 80));
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  const Value value{text};
  return find_method(value, "center")(evaluator, value, {.positional = {make_int(width)}, .named = {}});
}

Result truncate(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("truncate", args, {"length", "killwords", "end", "leeway"}));
  TANDEM_ASSIGN(const std::int64_t length, bound.integer(0, 255));
  TANDEM_ASSIGN(const Text* end, bound.text(2));
  const TextPtr dots = make_text_ptr("...");
  if (end == nullptr) end = dots.get();
  const bool no_leeway = bound[3] == nullptr || bound[3]->is<None>();
  std::int64_t leeway = 5;
  if (!no_leeway) {
    TANDEM_ASSIGN(leeway, bound.integer(3, 5));
  }
  const auto end_chars = static_cast<std::int64_t>(end->num_chars);
  if (length < end_chars || leeway < 0) return type_error("truncate wants a length that its end fits in");
  TANDEM_ASSIGN(const std::size_t size, jinja::length(self));
  if (size <= static_cast<std::uint64_t>(length) + static_cast<std::uint64_t>(leeway)) return self;
  const Text* text = self.text();
  if (text == nullptr) return type_error(fmt::format("truncate wants a string, not {}", type_name(self)));
  TextPtr kept = cut(*text, 0, byte_offset(*text, static_cast<std::size_t>(length - end_chars)));
  if (!bound.truth(1, false)) kept = split_from_right(*kept, make_text_ptr(" ").get(), 1).front();
  TextBuilder out;
  out.append(*kept);
  out.append(*end);
  return as_result(out.finish(text->markup));
}

Result word_count(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("wordcount", args, {}).status());
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  std::int64_t count = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text->bytes.size();) {
    const CodePoint c = decode(text->bytes, at);
    const bool word =
        c.value == '_' || has_class(std::string_view(text->bytes).substr(at, c.bytes), "alnum").value_or(false);
    if (word && !inside) ++count;
    inside = word;
    at += c.bytes;
  }
  return make_int(count);
}

Result format(Evaluator&, const Value& self, const CallArgs& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    return type_error("format takes positional or named arguments, not both");
  }
  TANDEM_ASSIGN(const TextPtr text, to_text(self));
  if (args.named.empty()) {
    TANDEM_ASSIGN(const Value tuple, make_sequence(args.positional, Sequence::Kind::kTuple));
    return percent_format(*text, tuple);
  }
  Dict named;
  for (const auto& [name, value] : args.named) named.set(make_text(name), value);
  TANDEM_ASSIGN(const Value dict, make_dict(std::move(named)));
  return percent_format(*text, dict);
}

// Without white space around it and underscores between digits; empty when it is no number's text.
std::string number_text(const Text& text) {
  const TextPtr stripped = strip(text, nullptr, Side::kBoth);
  std::string out;
  for (std::size_t i = 0; i < stripped->bytes.size(); ++i) {
    const auto alnum = [&](std::size_t at) {
      return at < stripped->bytes.size() && std::isalnum(static_cast<unsigned char>(stripped->bytes[at])) != 0;
    };
    if (stripped->bytes[i] != '_') {
      out += stripped->bytes[i];
    } else if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) {
      return "";
    }
  }
  return out;
}

std::optional<double> read_float(const Text& text) {
  std::string digits = number_text(text);
  if (!digits.empty() && digits.front() == '+') digits.erase(0, 1);
  const std::size_t sign = !digits.empty() && digits.front() == '-' ? 1 : 0;
  if (digits.size() > sign && (digits[sign] == '+' || digits[sign] == '-')) return std::nullopt;
  double value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (parsed.ptr != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) return std::strtod(digits.c_str(), nullptr);
  if (parsed.ec != std::errc() || digits.find('(') != std::string::npos) return std::nullopt;
  return value;
}

absl::StatusOr<std::optional<std::int64_t>> read_int(const Text& text, std::int64_t base) {
  std::string digits = number_text(text);
  const bool negative = !digits.empty() && digits.front() == '-';
  if (negative || (!digits.empty() && digits.front() == '+')) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const std::int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      digits.erase(0, 2);
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || digits.empty() || digits.front() == '-') return std::nullopt;
  if (negative) digits.insert(0, "-");
  std::int64_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (parsed.ptr != digits.data() + digits.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) return type_error("an integer grows beyond 64 bits");
  return value;
}

absl::StatusOr<std::int64_t> truncated(double value) {
  if (!(std::fabs(value) < 9.2e18)) return type_error("a float is too large for an integer");
  return static_cast<std::int64_t>(value);
}

Result to_int(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("int", args, {"default", "base"}));
  TANDEM_ASSIGN(const std::int64_t base, bound.integer(1, 10));
  const Value fallback = bound[0] != nullptr ? *bound[0] : make_int(0);
  if (self.undefined()) return undefined_error(self);
  if (const auto integer = as_int(self)) return make_int(*integer);
  if (self.is<BigInt>()) return self;
  if (const auto* real = self.get<double>()) {
    if (std::isnan(*real)) return fallback;
    TANDEM_ASSIGN(const std::int64_t integer, truncated(*real));
    return make_int(integer);
  }
  const Text* text = self.text();
  if (text == nullptr) return fallback;
  TANDEM_ASSIGN(const auto integer, read_int(*text, base));
  if (integer) return make_int(*integer);
  const auto real = read_float(*text);
  if (!real || !std::isfinite(*real)) return fallback;
  TANDEM_ASSIGN(const std::int64_t whole, truncated(*real));
  return make_int(whole);
}

Result to_float(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("float", args, {"default"}));
  if (self.undefined()) return undefined_error(self);
  if (is_number(self)) return Value{as_double(self)};
  const auto real = self.text() != nullptr ? read_float(*self.text()) : std::nullopt;
  if (real) return Value{*real};
  return bound[0] != nullptr ? *bound[0] : Value{0.0};
}

Result absolute(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("abs", args, {}).status());
  if (const auto* real = self.get<double>()) return Value{std::fabs(*real)};
  const auto integer = as_int(self);
  if (!integer) return type_error(fmt::format("abs wants a number, not {}", type_name(self)));
  return *integer < 0 ? negate(self) : Result(make_int(*integer));
}

Result round_filter(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("round", args, {"precision", "method"}));
  TANDEM_ASSIGN(const std::int64_t precision, bound.integer(0, 0));
  TANDEM_ASSIGN(const Text* method_text, bound.text(1));
  const std::string_view method = method_text == nullptr ? "common" : std::string_view(method_text->bytes);
  if (method != "common" && method != "ceil" && method != "floor") {
    return type_error("round's method is common, ceil or floor");
  }
  if (self.undefined()) return undefined_error(self);
  if (!is_number(self) || self.is<BigInt>()) {
    return type_error(fmt::format("round wants a number, not {}", type_name(self)));
  }
  if (precision > 300 || precision < -300) return type_error("round's precision is out of range");
  const double value = as_double(self);
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    if (!std::isfinite(value)) return type_error("a float that is no number cannot be rounded");
    return Value{(method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale};
  }
  if (const auto integer = as_int(self)) {
    if (precision >= 0) return make_int(*integer);
    if (precision < -18) return make_int(0);
    std::int64_t unit = 1;
    for (std::int64_t i = 0; i > precision; --i) unit *= 10;
    const std::int64_t low = *integer - ((*integer % unit) + unit) % unit;
    const std::int64_t rest = *integer - low;
    const bool up = rest > unit - rest || (rest == unit - rest && (low / unit) % 2 != 0);
    return make_int(up ? low + unit : low);
  }
  if (!std::isfinite(value)) return self;
  if (precision >= 0) {  // exactly, half to even, as printf rounds
    return Value{std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr)};
  }
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return Value{std::nearbyint(value / unit) * unit};
}

Result default_filter(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("default", args, {"default_value", "boolean"}));
  const bool replaced = self.undefined() || (bound.truth(1, false) && !truthy(self));
  if (!replaced) return self;
  return bound[0] != nullptr ? *bound[0] : make_text("");
}

// Hugging Face's own: nothing is escaped for HTML.
Result to_json_filter(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (bound[1] != nullptr && !bound[1]->is<None>()) {
    if (const Text* indention = bound[1]->text()) {
      style.indent = indention->bytes;
    } else {
      TANDEM_ASSIGN(const std::int64_t width, bound.integer(1, 0));
      if (width > 1000) return type_error("tojson indents by at most 1000");
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
  }
  style.item_separator = make_text_ptr(style.indent ? "," : ", ");
  style.key_separator = make_text_ptr(": ");
  if (bound[2] != nullptr && !bound[2]->is<None>()) {
    TANDEM_ASSIGN(const auto separators, to_vector(*bound[2], evaluator.budget()));
    const bool two_texts = separators.size() == 2 && separators[0].text() != nullptr && separators[1].text() != nullptr;
    if (!two_texts) return type_error("tojson wants two strings as separators");
    style.item_separator = *separators[0].get<TextPtr>();
    style.key_separator = *separators[1].get<TextPtr>();
  }
  return to_json(self, style, evaluator.budget());
}

}  // namespace

Function find_text_filter(std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kFilters[] = {{"abs", absolute},
                                                                       {"capitalize", change_case<Case::kCapitalized>},
                                                                       {"center", center},
                                                                       {"d", default_filter},
                                                                       {"default", default_filter},
                                                                       {"e", escape},
                                                                       {"escape", escape},
                                                                       {"float", to_float},
                                                                       {"forceescape", force_escape},
                                                                       {"format", format},
                                                                       {"indent", indent},
                                                                       {"int", to_int},
                                                                       {"lower", change_case<Case::kLower>},
                                                                       {"replace", replace_filter},
                                                                       {"round", round_filter},
                                                                       {"safe", safe},
                                                                       {"string", string},
                                                                       {"title", change_case<Case::kWords>},
                                                                       {"tojson", to_json_filter},
                                                                       {"trim", trim},
                                                                       {"truncate", truncate},
                                                                       {"upper", change_case<Case::kUpper>},
                                                                       {"wordcount", word_count}};
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const auto& f) { return f.first == name; });
  return found == std::end(kFilters) ? nullptr : found->second;
}

Function find_filter(std::string_view name) {
  const Function function = find_text_filter(name);
  return function != nullptr ? function : find_list_filter(name);
}

}  // namespace tandem::jinja
