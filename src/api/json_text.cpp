#include "api/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr float kLogprobFloor = -9999.0F;

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

bool is_continuation(std::string_view text, std::size_t i) {
  return i < text.size() && (byte_at(text, i) & 0xC0U) == 0x80U;
}

// Bytes of the longest prefix that could have begun a character (at least one): what one U+FFFD stands for.
std::size_t ill_formed_length(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  const std::size_t wanted = lead >= 0xF0U && lead <= 0xF4U  ? 4
                             : lead >= 0xE0U && lead < 0xF0U ? 3
                             : lead >= 0xC2U && lead < 0xE0U ? 2
                                                             : 1;
  std::size_t n = 1;
  while (n + 1 < wanted && is_continuation(text, n)) ++n;
  return n;
}

}  // namespace

std::size_t utf8_sequence(std::string_view text) {
  if (text.empty()) return 0;
  const unsigned lead = byte_at(text, 0);
  if (lead < 0x80U) return 1;
  if (lead < 0xC2U || lead > 0xF4U || !is_continuation(text, 1)) return 0;
  if (lead < 0xE0U) return 2;
  const unsigned second = byte_at(text, 1);
  if (lead < 0xF0U) {
    // No overlong forms, no surrogates.
    if ((lead == 0xE0U && second < 0xA0U) || (lead == 0xEDU && second > 0x9FU)) return 0;
    return is_continuation(text, 2) ? 3 : 0;
  }
  if ((lead == 0xF0U && second < 0x90U) || (lead == 0xF4U && second > 0x8FU)) return 0;
  return is_continuation(text, 2) && is_continuation(text, 3) ? 4 : 0;
}

void append_utf8(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t n = utf8_sequence(bytes);
    out.append(n > 0 ? bytes.substr(0, n) : kReplacement);
    bytes.remove_prefix(n > 0 ? n : ill_formed_length(bytes));
  }
}

std::size_t count_code_points(std::string_view bytes) {
  return static_cast<std::size_t>(
      std::ranges::count_if(bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out.push_back('"');
  std::size_t i = 0;
  while (i < text.size()) {
    const unsigned c = byte_at(text, i);
    if (c >= 0x80U) {
      const std::string_view rest = text.substr(i);
      const std::size_t n = utf8_sequence(rest);
      out.append(n > 0 ? rest.substr(0, n) : kReplacement);
      i += n > 0 ? n : ill_formed_length(rest);
      continue;
    }
    ++i;
    switch (c) {
      case '"': out.append("\\\""); break;
      case '\\': out.append("\\\\"); break;
      case '\n': out.append("\\n"); break;
      case '\r': out.append("\\r"); break;
      case '\t': out.append("\\t"); break;
      default:
        if (c >= 0x20U) {
          out.push_back(static_cast<char>(c));
        } else {
          out.append("\\u00");
          out.push_back(kHex[c >> 4U]);
          out.push_back(kHex[c & 0xFU]);
        }
    }
  }
  out.push_back('"');
}

void append_json_number(std::string& out, std::uint64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  out.append(digits, end.ptr);
}

void append_json_logprob(std::string& out, float logprob) {
  // The comparison with NaN is false, so NaN falls to the floor.
  const float value = logprob > kLogprobFloor ? std::min(logprob, 0.0F) : kLogprobFloor;
  char digits[48];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value == 0.0F ? 0.0F : value);
  const std::string_view text(digits, static_cast<std::size_t>(end.ptr - digits));
  out.append(text);
  // Clients with typed readers expect a float.
  if (text.find_first_of(".e") == std::string_view::npos) out.append(".0");
}

}  // namespace tandem
