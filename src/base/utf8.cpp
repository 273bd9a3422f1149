#include "base/utf8.h"

#include <algorithm>

namespace tandem {

Utf8Unit decode_wide_utf8(std::string_view text) {
  const auto byte_at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte_at(0);
  std::uint8_t length = 0;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead < 0x80) {
    return {.code_point = lead, .length = 1, .state = Utf8State::kValid};
  } else if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {.code_point = kReplacement, .length = 1, .state = Utf8State::kInvalid};
  }
  char32_t code_point = lead & (0x7FU >> length);
  for (std::uint8_t i = 1; i < length; ++i) {
    if (i == text.size()) return {.code_point = kReplacement, .length = i, .state = Utf8State::kIncomplete};
    const unsigned byte = byte_at(i);
    if (byte < low || byte > high) return {.code_point = kReplacement, .length = i, .state = Utf8State::kInvalid};
    code_point = code_point << 6 | (byte & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {.code_point = code_point, .length = length, .state = Utf8State::kValid};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Unit unit = decode_utf8(text.substr(pos));
    if (unit.state != Utf8State::kValid) break;
    pos += unit.length;
  }
  return pos;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

void append_repaired_utf8(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    out.append(kReplacementUtf8);
    bytes.remove_prefix(decode_utf8(bytes).length);
  }
}

std::size_t count_code_points(std::string_view bytes) {
  return static_cast<std::size_t>(
      std::ranges::count_if(bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace tandem
