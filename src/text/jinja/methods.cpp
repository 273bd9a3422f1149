// Methods of strings.
#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/eval.h"

namespace tandem::jinja {
namespace {

Result as_result(absl::StatusOr<TextPtr> text) {
  if (!text.ok()) return text.status();
  return Value{*std::move(text)};
}

Result as_list(std::vector<TextPtr> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (TextPtr& part : parts) items.push_back({std::move(part)});
  return make_sequence(std::move(items));
}

absl::StatusOr<const Text*> required_text(const Bound& bound, std::size_t parameter) {
  TANDEM_TRY(bound.require(parameter + 1));
  TANDEM_ASSIGN(const Text* text, bound.text(parameter));
  if (text == nullptr) return type_error("a string is expected, not None");
  return text;
}

template <Case kCase>
Result change_case(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the method", args, {}).status());
  return as_result(with_case(*self.text(), kCase));
}

template <Side kSide>
Result strip_method(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("strip", args, {"chars"}));
  if (bound[0] != nullptr && bound[0]->undefined()) return undefined_error(*bound[0]);
  TANDEM_ASSIGN(const Text* chars, bound.text(0));
  return Value{strip(*self.text(), chars, kSide)};
}

template <Side kFrom>
Result split_method(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("split", args, {"sep", "maxsplit"}));
  TANDEM_ASSIGN(const Text* separator, bound.text(0));
  TANDEM_ASSIGN(const std::int64_t max_splits, bound.integer(1, -1));
  if (separator != nullptr && separator->bytes.empty()) return type_error("split wants a separator that is not empty");
  return as_list(kFrom == Side::kRight ? split_from_right(*self.text(), separator, max_splits)
                                       : split(*self.text(), separator, max_splits));
}

Result split_lines_method(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("splitlines", args, {"keepends"}));
  return as_list(split_lines(*self.text(), bound.truth(0, false) ? LineEnds::kKeep : LineEnds::kDrop));
}

template <Side kAt>
Result partition(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("partition", args, {"sep"}));
  TANDEM_ASSIGN(const Text* separator, required_text(bound, 0));
  if (separator->bytes.empty()) return type_error("partition wants a separator that is not empty");
  const Text& text = *self.text();
  const std::size_t at =
      kAt == Side::kRight ? find_last_bytes(text.bytes, separator->bytes) : find_bytes(text.bytes, separator->bytes);
  const Value empty{cut(text, 0, 0)};
  if (at == std::string::npos) {
    if (kAt == Side::kRight) return make_sequence({empty, empty, self}, Sequence::Kind::kTuple);
    return make_sequence({self, empty, empty}, Sequence::Kind::kTuple);
  }
  const std::size_t behind = at + separator->bytes.size();
  return make_sequence(
      {Value{cut(text, 0, at)}, Value{cut(text, at, behind)}, Value{cut(text, behind, text.bytes.size())}},
      Sequence::Kind::kTuple);
}

// The bytes of self[start:end], as the optional arguments behind `parameter` say; none when start is behind the end.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool valid = true;
};
absl::StatusOr<Range> range_of(const Text& text, const Bound& bound, std::size_t parameter) {
  const auto size = static_cast<std::int64_t>(text.num_chars);
  const auto position = [&](std::size_t i, std::int64_t missing) -> absl::StatusOr<std::int64_t> {
    if (bound[i] == nullptr || bound[i]->is<None>()) return missing;
    TANDEM_ASSIGN(const std::int64_t at, bound.integer(i, missing));
    return at < 0 ? std::max<std::int64_t>(at + size, 0) : at;
  };
  TANDEM_ASSIGN(const std::int64_t start, position(parameter, 0));
  TANDEM_ASSIGN(std::int64_t end, position(parameter + 1, size));
  end = std::min(end, size);
  if (start > end) return Range{.begin = 0, .end = 0, .valid = false};
  return Range{.begin = byte_offset(text, static_cast<std::size_t>(start)),
               .end = byte_offset(text, static_cast<std::size_t>(end)),
               .valid = true};
}

template <Side kAt>
Result affix(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("startswith or endswith", args, {"prefix", "start", "end"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const Range range, range_of(*self.text(), bound, 1));
  const std::string_view text = std::string_view(self.text()->bytes).substr(range.begin, range.end - range.begin);
  const auto matches = [&](const Text& part) {
    if (!range.valid || part.bytes.size() > text.size()) return false;
    return text.substr(kAt == Side::kLeft ? 0 : text.size() - part.bytes.size(), part.bytes.size()) == part.bytes;
  };
  if (const Text* part = bound[0]->text()) return Value{matches(*part)};
  const Sequence* tuple = bound[0]->sequence();
  if (tuple == nullptr || tuple->kind != Sequence::Kind::kTuple) {
    return type_error(fmt::format("a string or a tuple of strings is expected, not {}", type_name(*bound[0])));
  }
  bool any = false;
  for (const Value& item : tuple->items) {
    if (item.text() == nullptr) return type_error(fmt::format("a string is expected, not {}", type_name(item)));
    any = any || matches(*item.text());
  }
  return Value{any};
}

enum class Missing : std::uint8_t { kMinusOne, kError };

template <Side kFrom, Missing kMissing>
Result find_method_of(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("find", args, {"sub", "start", "end"}));
  TANDEM_ASSIGN(const Text* part, required_text(bound, 0));
  const Text& text = *self.text();
  TANDEM_ASSIGN(const Range range, range_of(text, bound, 1));
  const std::string_view searched = std::string_view(text.bytes).substr(range.begin, range.end - range.begin);
  const std::size_t at =
      kFrom == Side::kLeft ? find_bytes(searched, part->bytes) : find_last_bytes(searched, part->bytes);
  if (at == std::string_view::npos || !range.valid) {
    if (kMissing == Missing::kError) return type_error("the substring is not found");
    return make_int(-1);
  }
  return make_int(static_cast<std::int64_t>(count_chars(std::string_view(text.bytes).substr(0, range.begin + at))));
}

Result count(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("count", args, {"sub", "start", "end"}));
  TANDEM_ASSIGN(const Text* part, required_text(bound, 0));
  const Text& text = *self.text();
  TANDEM_ASSIGN(const Range range, range_of(text, bound, 1));
  if (!range.valid) return make_int(0);
  const std::string_view searched = std::string_view(text.bytes).substr(range.begin, range.end - range.begin);
  if (part->bytes.empty()) return make_int(static_cast<std::int64_t>(count_chars(searched)) + 1);
  std::int64_t found = 0;
  for (std::size_t at = find_bytes(searched, part->bytes); at != std::string_view::npos;
       at = find_bytes(searched, part->bytes, at + part->bytes.size())) {
    ++found;
  }
  return make_int(found);
}

Result replace_method(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("replace", args, {"old", "new", "count"}));
  TANDEM_ASSIGN(const Text* from, required_text(bound, 0));
  TANDEM_ASSIGN(const Text* to, required_text(bound, 1));
  TANDEM_ASSIGN(const std::int64_t max_count, bound.integer(2, -1));
  return as_result(replace(*self.text(), *from, *to, max_count));
}

template <Side kAt>
Result remove_affix(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("removeprefix or removesuffix", args, {"affix"}));
  TANDEM_ASSIGN(const Text* part, required_text(bound, 0));
  const Text& text = *self.text();
  const std::size_t size = part->bytes.size();
  if (size > text.bytes.size()) return self;
  const std::size_t at = kAt == Side::kLeft ? 0 : text.bytes.size() - size;
  if (std::string_view(text.bytes).substr(at, size) != part->bytes) return self;
  return Value{kAt == Side::kLeft ? cut(text, size, text.bytes.size()) : cut(text, 0, at)};
}

// ljust, rjust, center and zfill, by where the text goes.
template <Side kGap>
Result justify(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("justify", args, {"width", "fillchar"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const std::int64_t width, bound.integer(0, 0));
  TANDEM_ASSIGN(const Text* fill, bound.text(1));
  const TextPtr space = make_text_ptr(" ");
  if (fill == nullptr) fill = space.get();
  if (fill->num_chars != 1) return type_error("the fill character must be exactly one character long");
  const Text& text = *self.text();
  const auto size = static_cast<std::int64_t>(text.num_chars);
  if (width <= size) return self;
  const std::int64_t gap = width - size;
  const std::int64_t left = kGap == Side::kLeft ? gap : kGap == Side::kRight ? 0 : gap / 2 + (gap & width & 1);
  TextBuilder out;
  out.append_repeated(*fill, static_cast<std::uint64_t>(left));
  out.append(text);
  out.append_repeated(*fill, static_cast<std::uint64_t>(gap - left));
  return as_result(out.finish(text.markup));
}

Result zero_fill(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("zfill", args, {"width"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(const std::int64_t width, bound.integer(0, 0));
  const Text& text = *self.text();
  const auto size = static_cast<std::int64_t>(text.num_chars);
  if (width <= size) return self;
  const std::size_t sign = !text.bytes.empty() && (text.bytes[0] == '-' || text.bytes[0] == '+') ? 1 : 0;
  TextBuilder out;
  out.append(text, 0, sign);
  out.append_repeated(*make_text_ptr("0"), static_cast<std::uint64_t>(width - size));
  out.append(text, sign, text.bytes.size());
  return as_result(out.finish(text.markup));
}

Result join(Evaluator& evaluator, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("join", args, {"iterable"}));
  TANDEM_TRY(bound.require(1));
  TANDEM_ASSIGN(Cursor cursor, Cursor::over(*bound[0]));
  TextBuilder out;
  bool first = true;
  for (Value item; cursor.next(item) && !out.full(); first = false) {
    const bool markup = self.text()->markup;  // joins whatever it can escape
    if (item.text() == nullptr && !markup) {
      return type_error(fmt::format("join wants strings, not {}", type_name(item)));
    }
    TANDEM_TRY(evaluator.budget().charge(1 + cost(item) + cost(self)));
    TANDEM_ASSIGN(TextPtr text, to_text(item));
    if (markup && !text->markup) {
      TANDEM_ASSIGN(text, html_escaped(*text));
    }
    if (!first) out.append(*self.text());
    out.append(*text);
  }
  return as_result(out.finish(self.text()->markup));
}

Result format(Evaluator&, const Value& self, const CallArgs& args) {
  Dict named;
  for (const auto& [name, value] : args.named) named.set(make_text(name), value);
  return brace_format(*self.text(), args.positional, named);
}

Result format_map(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_ASSIGN(const Bound bound, Bound::bind("format_map", args, {"mapping"}));
  TANDEM_TRY(bound.require(1));
  if (bound[0]->dict() == nullptr) return type_error("format_map wants a mapping");
  return brace_format(*self.text(), {}, *bound[0]->dict());
}

template <const char* kClass>
Result is_class(Evaluator&, const Value& self, const CallArgs& args) {
  TANDEM_TRY(Bound::bind("the method", args, {}).status());
  return Value{has_class(self.text()->bytes, kClass).value_or(false)};
}

constexpr char kAlpha[] = "alpha";
constexpr char kAlnum[] = "alnum";
constexpr char kAscii[] = "ascii";
constexpr char kDecimal[] = "decimal";
constexpr char kDigit[] = "digit";
constexpr char kLower[] = "lower";
constexpr char kNumeric[] = "numeric";
constexpr char kSpace[] = "space";
constexpr char kUpper[] = "upper";

}  // namespace

Function find_text_method(std::string_view name) {
  static constexpr std::pair<std::string_view, Function> kMethods[] = {
      {"capitalize", change_case<Case::kCapitalized>},
      {"center", justify<Side::kBoth>},
      {"count", count},
      {"endswith", affix<Side::kRight>},
      {"find", find_method_of<Side::kLeft, Missing::kMinusOne>},
      {"format", format},
      {"format_map", format_map},
      {"index", find_method_of<Side::kLeft, Missing::kError>},
      {"isalnum", is_class<kAlnum>},
      {"isalpha", is_class<kAlpha>},
      {"isascii", is_class<kAscii>},
      {"isdecimal", is_class<kDecimal>},
      {"isdigit", is_class<kDigit>},
      {"islower", is_class<kLower>},
      {"isnumeric", is_class<kNumeric>},
      {"isspace", is_class<kSpace>},
      {"isupper", is_class<kUpper>},
      {"join", join},
      {"ljust", justify<Side::kRight>},
      {"lower", change_case<Case::kLower>},
      {"lstrip", strip_method<Side::kLeft>},
      {"partition", partition<Side::kLeft>},
      {"removeprefix", remove_affix<Side::kLeft>},
      {"removesuffix", remove_affix<Side::kRight>},
      {"replace", replace_method},
      {"rfind", find_method_of<Side::kRight, Missing::kMinusOne>},
      {"rindex", find_method_of<Side::kRight, Missing::kError>},
      {"rjust", justify<Side::kLeft>},
      {"rpartition", partition<Side::kRight>},
      {"rsplit", split_method<Side::kRight>},
      {"rstrip", strip_method<Side::kRight>},
      {"split", split_method<Side::kLeft>},
      {"splitlines", split_lines_method},
      {"startswith", affix<Side::kLeft>},
      {"strip", strip_method<Side::kBoth>},
      {"swapcase", change_case<Case::kSwapped>},
      {"title", change_case<Case::kTitle>},
      {"upper", change_case<Case::kUpper>},
      {"zfill", zero_fill}};
  const auto* found =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const auto& m) { return m.first == name; });
  return found == std::end(kMethods) ? nullptr : found->second;
}

}  // namespace tandem::jinja
