// What the text module knows about Unicode: UTF-8 unit by unit, the character classes that pre-tokenisation
// patterns split by, and NFC. Pure functions over constant tables, safe from any thread.
// The classes are those of Hugging Face tokenizers (tests/support/unicode_tables.py), not of the system's ICU:
// equal token ids need equal Unicode versions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class CharClass : std::uint8_t {
  kOther,        // controls, format characters, unassigned
  kLetter,       // \p{L}
  kNumber,       // \p{N}
  kMark,         // \p{M}
  kPunctuation,  // \p{P}
  kSymbol,       // \p{S}
  kSpace,        // \s
  kLateNumber,   // a number to the Digits step, whose Unicode is newer; unassigned to patterns
};

extern const std::array<std::uint8_t, 128> kAsciiClasses;
// Sorted starts of runs, first code point << 3 | class.
std::span<const std::uint32_t> char_class_runs();
CharClass wide_char_class(char32_t c);

inline CharClass char_class(char32_t c) {
  return c < kAsciiClasses.size() ? static_cast<CharClass>(kAsciiClasses[c]) : wide_char_class(c);
}

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

void append_utf8(std::string& out, char32_t code_point);

// Normalisation form C. Ill-formed text comes back as it is.
std::string to_nfc(std::string_view text);

}  // namespace tandem
