// What the text module knows about Unicode: the character classes that pre-tokenisation patterns split by, and NFC.
// Pure functions over constant tables, safe from any thread. UTF-8 itself is base/utf8.h.
// The classes are those of Hugging Face tokenizers (tests/support/unicode_tables.py), not of the system's ICU:
// equal token ids need equal Unicode versions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace tandem {

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

// Normalisation form C. Ill-formed text comes back as it is.
std::string to_nfc(std::string_view text);

}  // namespace tandem
