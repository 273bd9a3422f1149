#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <pcre2.h>

#include "base/status.h"
#include "text/unicode.h"

namespace tandem {
namespace {

// PCRE2's \s counts U+180E, Oniguruma's does not; \p{Han} means script extensions in PCRE2 and the script in
// Oniguruma. Both are spelled out, as members of a character class.
constexpr std::string_view kSpaceRanges =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNonSpaceRanges =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRewrites = {{
    {R"(\s)", kSpaceRanges},
    {R"(\S)", kNonSpaceRanges},
    {R"(\p{Han})", R"(\p{sc:Han})"},
    {R"(\P{Han})", R"(\P{sc:Han})"},
}};

std::string rewrite(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size();) {
    std::size_t length = pattern[i] == '\\' && i + 1 < pattern.size() ? 2 : 1;
    std::string_view text = pattern.substr(i, length);
    for (const auto& [from, to] : kRewrites) {
      if (!pattern.substr(i).starts_with(from)) continue;
      length = from.size();
      text = to;
    }
    const bool ranges = text.data() == kSpaceRanges.data() || text.data() == kNonSpaceRanges.data();
    out += ranges && !in_class ? fmt::format("[{}]", text) : std::string(text);
    if (text == "[") in_class = true;
    if (text == "]") in_class = false;
    i += length;
  }
  return out;
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;

constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKib = 64U << 10U;

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Regex::FreeLimits::operator()(pcre2_real_match_context_8* limits) const { pcre2_match_context_free(limits); }

absl::StatusOr<std::unique_ptr<const Regex>> Regex::create(std::string_view pattern) {
  const std::string rewritten = rewrite(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    return absl::InvalidArgumentError(
        fmt::format("pre-tokenizer pattern \"{}\" does not compile: {} at offset {} of \"{}\"", pattern,
                    reinterpret_cast<const char*>(reason.data()), offset, rewritten));
  }
  // Without the JIT (a platform that forbids it) matching is slower and the same.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  std::unique_ptr<Regex> regex = std::make_unique<Regex>(Key(), code, pcre2_match_context_create(nullptr));
  if (regex->limits_ == nullptr) return absl::ResourceExhaustedError("out of memory compiling a pattern");
  pcre2_set_match_limit(regex->limits_.get(), kMatchLimit);
  pcre2_set_heap_limit(regex->limits_.get(), kHeapLimitKib);
  return regex;
}

void Regex::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) split_valid(text.substr(0, valid), pieces);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const std::size_t bad = decode_utf8(text).length;
    pieces.push_back(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

void Regex::split_valid(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  std::size_t begin = 0;  // of what no piece covers yet
  for (std::size_t from = 0; data != nullptr && from < text.size();) {
    // Checked by the caller: validating here would be quadratic, since every match checks the whole rest.
    const auto match_with = [&](std::uint32_t options) {
      return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, data.get(), limits_.get());
    };
    int rc = match_with(0);
    // The JIT has 32 KiB of stack; the interpreter keeps its frames on the heap.
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match_with(PCRE2_NO_JIT);
    if (rc < 0) break;  // no more matches, or a limit
    const PCRE2_SIZE* const match = pcre2_get_ovector_pointer(data.get());
    if (match[1] <= match[0] || match[0] < from) {  // empty (or moved back by \K): step over one character
      from += decode_utf8(text.substr(from)).length;
      continue;
    }
    if (match[0] > begin) pieces.push_back(text.substr(begin, match[0] - begin));
    pieces.push_back(text.substr(match[0], match[1] - match[0]));
    begin = from = match[1];
  }
  if (begin < text.size()) pieces.push_back(text.substr(begin));
}

}  // namespace tandem
