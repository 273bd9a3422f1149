#include "text/unicode.h"

#include <algorithm>
#include <limits>

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>

namespace tandem {

CharClass wide_char_class(char32_t c) {
  const std::span<const std::uint32_t> runs = char_class_runs();
  // The last run that begins at or before c: its key is at most (c, highest class).
  const auto after = std::upper_bound(runs.begin(), runs.end(), static_cast<std::uint32_t>(c) << 3 | 7U);
  return static_cast<CharClass>(*(after - 1) & 7U);
}

std::string to_nfc(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
  // ICU counts bytes in 32 bits.
  const bool fits = text.size() <= std::numeric_limits<std::int32_t>::max();
  if (ascii || !fits || !is_utf8(text)) return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const nfc = icu::Normalizer2::getNFCInstance(error);
  std::string out;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&out);
    nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr, error);
  }
  return U_SUCCESS(error) ? out : std::string(text);
}

}  // namespace tandem
