// Letter case and character classes of jinja/text.h, by ICU's character database.
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <array>

#include "text/jinja/text.h"
#include "text/unicode.h"

namespace tandem::jinja {
namespace {

enum class Letter : std::uint8_t { kUpper, kLower, kTitle };

// The full mapping, which may be several code points ("ß" is "SS").
void append_mapped(std::string& out, char32_t c, Letter to) {
  if (c < 0x80) {
    const char byte = static_cast<char>(c);
    if (to == Letter::kLower) {
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(byte + 32) : byte;
    } else {
      out += c >= 'a' && c <= 'z' ? static_cast<char>(byte - 32) : byte;
    }
    return;
  }
  std::array<UChar, 2> source{};
  std::int32_t length = 0;
  if (c < 0x10000) {
    source[length++] = static_cast<UChar>(c);
  } else {
    source[length++] = static_cast<UChar>(0xD7C0 + (c >> 10));
    source[length++] = static_cast<UChar>(0xDC00 + (c & 0x3FF));
  }
  std::array<UChar, 8> mapped{};
  UErrorCode error = U_ZERO_ERROR;
  const auto capacity = static_cast<std::int32_t>(mapped.size());
  std::int32_t size = 0;
  if (to == Letter::kTitle) {
    // Python's titlecase of a single code point; ICU's string function would need a break iterator.
    const auto simple = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
    if (simple != c) return append_utf8(out, simple);
    size = u_strToUpper(mapped.data(), capacity, source.data(), length, "", &error);
    if (U_SUCCESS(error) && size > 1 && source[0] != mapped[0]) {  // "ß" becomes "Ss"
      std::array<char, 32> utf8{};
      std::int32_t bytes = 0;
      u_strToUTF8(utf8.data(), static_cast<std::int32_t>(utf8.size()), &bytes, mapped.data(), size, &error);
      const CodePoint first = decode({utf8.data(), static_cast<std::size_t>(bytes)}, 0);
      out.append(utf8.data(), first.bytes);
      for (std::size_t at = first.bytes; at < static_cast<std::size_t>(bytes);) {
        const CodePoint next = decode({utf8.data(), static_cast<std::size_t>(bytes)}, at);
        append_mapped(out, next.value, Letter::kLower);
        at += next.bytes;
      }
      return;
    }
    return append_utf8(out, c);
  }
  size = to == Letter::kUpper ? u_strToUpper(mapped.data(), capacity, source.data(), length, "", &error)
                              : u_strToLower(mapped.data(), capacity, source.data(), length, "", &error);
  std::array<char, 32> utf8{};
  std::int32_t bytes = 0;
  if (U_SUCCESS(error)) {
    u_strToUTF8(utf8.data(), static_cast<std::int32_t>(utf8.size()), &bytes, mapped.data(), size, &error);
  }
  if (U_SUCCESS(error)) {
    out.append(utf8.data(), static_cast<std::size_t>(bytes));
  } else {
    append_utf8(out, c);
  }
}

bool is_upper(char32_t c) { return c < 0x80 ? c >= 'A' && c <= 'Z' : u_isUUppercase(static_cast<UChar32>(c)) != 0; }
bool cased(char32_t c) {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0;
}
bool ignorable(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASE_IGNORABLE) != 0; }
bool separates_words(char32_t c) {
  return is_space(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
}

// A capital sigma ends a word: a cased letter stands before it and none after.
bool final_sigma(std::string_view text, std::size_t at, bool cased_before) {
  if (!cased_before) return false;
  for (at += 2; at < text.size();) {
    const CodePoint c = decode(text, at);
    if (!ignorable(c.value)) return !cased(c.value);
    at += c.bytes;
  }
  return true;
}

bool is_class(char32_t code_point, std::string_view name) {
  const auto c = static_cast<UChar32>(code_point);
  const auto type = u_charType(c);
  const auto numeric = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
  const bool alpha = type == U_UPPERCASE_LETTER || type == U_LOWERCASE_LETTER || type == U_TITLECASE_LETTER ||
                     type == U_MODIFIER_LETTER || type == U_OTHER_LETTER;
  if (name == "alpha") return alpha;
  if (name == "decimal") return numeric == U_NT_DECIMAL;
  if (name == "digit") return numeric == U_NT_DECIMAL || numeric == U_NT_DIGIT;
  if (name == "numeric") return numeric != U_NT_NONE;
  if (name == "alnum") return alpha || numeric != U_NT_NONE;
  if (name == "space") return is_space(code_point);
  return code_point < 0x80;  // "ascii"
}

}  // namespace

absl::StatusOr<TextPtr> with_case(const Text& text, Case letter_case) {
  TextBuilder out;
  std::string run;  // mapped text of one origin
  Origin origin = Origin::kTemplate;
  auto span = text.user.begin();
  const bool has_sigma = text.bytes.find("\u03A3") != std::string::npos;
  bool cased_before = false;  // of the nearest code point that is not ignorable, for the final sigma
  bool in_word = false;       // no word begins here, for title case
  for (std::size_t at = 0; at < text.bytes.size() && !out.full();) {
    while (span != text.user.end() && span->end <= at) ++span;
    const bool user = span != text.user.end() && span->begin <= at;
    if (user != (origin == Origin::kUser)) {
      out.append(run, origin);
      run.clear();
      origin = user ? Origin::kUser : Origin::kTemplate;
    }
    const CodePoint c = decode(text.bytes, at);
    Letter to = Letter::kLower;
    if (letter_case == Case::kUpper || (letter_case == Case::kWords && !in_word)) to = Letter::kUpper;
    if (letter_case == Case::kSwapped && !is_upper(c.value)) to = Letter::kUpper;
    if (letter_case == Case::kTitle && !in_word) to = Letter::kTitle;
    if (letter_case == Case::kCapitalized && at == 0) to = Letter::kTitle;
    if (c.value == kIllFormed) {
      run.append(text.bytes, at, c.bytes);
    } else if (c.value == 0x3A3 && to == Letter::kLower && final_sigma(text.bytes, at, cased_before)) {
      append_utf8(run, 0x3C2);
    } else {
      append_mapped(run, c.value, to);
    }
    const bool is_cased = cased(c.value);
    in_word = letter_case == Case::kWords ? !separates_words(c.value) : is_cased;
    if (has_sigma && !ignorable(c.value)) cased_before = is_cased;
    at += c.bytes;
    if (run.size() > kMaxTextBytes) break;  // which the builder refuses
  }
  out.append(run, origin);
  return out.finish(text.markup);
}

std::optional<bool> has_class(std::string_view text, std::string_view name) {
  if (name == "upper" || name == "lower") {
    bool any = false;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = decode(text, at);
      const auto code_point = static_cast<UChar32>(c.value);
      const bool title = u_charType(code_point) == U_TITLECASE_LETTER;
      const bool is_upper = u_isUUppercase(code_point) != 0;
      const bool is_lower = u_isULowercase(code_point) != 0;
      if (title || (name == "upper" ? is_lower : is_upper)) return false;
      any = any || is_upper || is_lower;
      at += c.bytes;
    }
    return any;
  }
  if (name == "ascii" && text.empty()) return true;
  if (name != "alpha" && name != "decimal" && name != "digit" && name != "numeric" && name != "alnum" &&
      name != "space" && name != "ascii") {
    return std::nullopt;
  }
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    if (!is_class(c.value, name)) return false;
    at += c.bytes;
  }
  return !text.empty();
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
    case U_SPACE_SEPARATOR: return false;
    default: return true;
  }
}

}  // namespace tandem::jinja
