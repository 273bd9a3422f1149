#include "api/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace tandem {
namespace {

constexpr float kLogprobFloor = -9999.0F;

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out.push_back('"');
  std::size_t i = 0;
  while (i < text.size()) {
    const unsigned c = byte_at(text, i);
    if (c >= 0x80U) {
      const Utf8Unit unit = decode_utf8(text.substr(i));
      out.append(unit.state == Utf8State::kValid ? text.substr(i, unit.length) : kReplacementUtf8);
      i += unit.length;
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
