// UTF-8 character by character (RFC 3629): the one place that decides which bytes are well-formed text. Every module
// that reads, repairs or refuses text uses it. Pure functions, any thread; what characters mean is text/unicode.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class Utf8State : std::uint8_t {
  kValid,
  kInvalid,     // no continuation can make it valid
  kIncomplete,  // the text ends inside what may still become a character
};

// The first character of a text or, where it is ill-formed, the longest part that one U+FFFD stands for
// (the Unicode Standard, section 3.9, "substitution of maximal subparts"; what Python's "replace" does).
struct Utf8Unit {
  char32_t code_point = kReplacement;  // kReplacement unless valid
  std::uint8_t length = 0;             // bytes, 1 to 4
  Utf8State state = Utf8State::kInvalid;
};

// `text` must not be empty.
Utf8Unit decode_wide_utf8(std::string_view text);

inline Utf8Unit decode_utf8(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {.code_point = lead, .length = 1, .state = Utf8State::kValid};
  return decode_wide_utf8(text);
}

// Length of the longest prefix that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

void append_utf8(std::string& out, char32_t code_point);

// Appends `bytes` with every ill-formed part as one U+FFFD.
void append_repaired_utf8(std::string& out, std::string_view bytes);

// Number of code points that start in `bytes`; an ill-formed start counts as none.
std::size_t count_code_points(std::string_view bytes);

}  // namespace tandem
