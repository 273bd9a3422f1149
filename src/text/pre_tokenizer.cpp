#include "text/pre_tokenizer.h"

#include <array>
#include <utility>

#include "base/status.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tandem {
namespace {

// Every scanner below follows one pattern alternative by alternative, in the pattern's order; together the
// alternatives cover every character, so that there are no gaps between matches.

struct Char {
  CharClass char_class = CharClass::kOther;
  std::size_t end = 0;
};

Char char_at(std::string_view text, std::size_t pos) {
  const Utf8Unit unit = decode_utf8(text.substr(pos));
  // An ill-formed unit decodes to U+FFFD, a symbol.
  return {.char_class = char_class(unit.code_point), .end = pos + unit.length};
}

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// \p{N}; what only the Digits step's newer Unicode calls a number is none here.
bool is_number(CharClass c) { return c == CharClass::kNumber; }
bool is_letter(CharClass c) { return c == CharClass::kLetter; }
bool is_space(CharClass c) { return c == CharClass::kSpace; }
// [^\s\p{L}\p{N}]
bool is_rest(CharClass c) { return !is_number(c) && !is_letter(c) && !is_space(c); }

// The end of the longest run from `pos` whose classes satisfy `wanted`, of at most `max_chars` characters.
template <class Wanted>
std::size_t run_end(std::string_view text, std::size_t pos, Wanted wanted, std::size_t max_chars = SIZE_MAX) {
  for (; pos < text.size() && max_chars > 0; --max_chars) {
    const Char c = char_at(text, pos);
    if (!wanted(c.char_class)) break;
    pos = c.end;
  }
  return pos;
}

enum class LetterCase : std::uint8_t { kLowerOnly, kAny };

// 's|'t|'re|'ve|'m|'ll|'d at `begin`: its end, or `begin` when there is none.
std::size_t contraction_end(std::string_view text, std::size_t begin, LetterCase letter_case) {
  if (text[begin] != '\'' || begin + 1 >= text.size()) return begin;
  const auto letter = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return letter_case == LetterCase::kAny && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(begin + 1);
  const char second = letter(begin + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) {
    return begin + 3;
  }
  // U+017F, the long s, folds to s.
  constexpr std::string_view kLongS = "\xC5\xBF";
  if (letter_case == LetterCase::kAny && text.substr(begin + 1).starts_with(kLongS)) return begin + 3;
  return begin;
}

// \s+(?!\S)|\s+ at a whitespace character: the run without its last character where something else follows.
std::size_t space_end(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  std::size_t last = begin;  // where the last whitespace character begins
  while (end < text.size()) {
    const Char c = char_at(text, end);
    if (!is_space(c.char_class)) return last > begin ? last : end;
    last = end;
    end = c.end;
  }
  return end;
}

// kGpt2Pattern
std::size_t scan_gpt2(std::string_view text, std::size_t begin) {
  if (const std::size_t end = contraction_end(text, begin, LetterCase::kLowerOnly); end > begin) return end;
  // " ?" before a run of letters, numbers or the rest.
  const std::size_t body = text[begin] == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
  const CharClass kind = char_at(text, body).char_class;
  if (is_letter(kind)) return run_end(text, body, is_letter);
  if (is_number(kind)) return run_end(text, body, is_number);
  if (is_rest(kind)) return run_end(text, body, is_rest);
  return space_end(text, begin);
}

// kLlama3Pattern and kQwen2Pattern, which differ in how many numbers make a piece.
template <std::size_t kMaxNumbers>
std::size_t scan_cl100k(std::string_view text, std::size_t begin) {
  if (const std::size_t end = contraction_end(text, begin, LetterCase::kAny); end > begin) return end;
  const Char first = char_at(text, begin);
  if (is_letter(first.char_class)) return run_end(text, begin, is_letter);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (!is_newline(text[begin]) && !is_number(first.char_class)) {
    if (const std::size_t end = run_end(text, first.end, is_letter); end > first.end) return end;
  }
  if (is_number(first.char_class)) return run_end(text, begin, is_number, kMaxNumbers);
  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  const std::size_t body = text[begin] == ' ' ? begin + 1 : begin;
  if (std::size_t end = run_end(text, body, is_rest); end > body) {
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+ takes a run of whitespace to its last line break.
  const std::size_t spaces_end = run_end(text, begin, is_space);
  const std::size_t newline = text.substr(begin, spaces_end - begin).find_last_of("\r\n");
  if (newline != std::string_view::npos) return begin + newline + 1;
  return space_end(text, begin);
}

// Numbers one by one, all else between them in one piece.
std::size_t scan_digits(std::string_view text, std::size_t begin) {
  const auto is_digit = [](CharClass c) { return c == CharClass::kNumber || c == CharClass::kLateNumber; };
  const Char first = char_at(text, begin);
  if (is_digit(first.char_class)) return first.end;
  return run_end(text, begin, [&](CharClass c) { return !is_digit(c); });
}

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<PreTokenizer> PreTokenizer::create(std::span<const PreTokenizerStep> steps) {
  constexpr std::array<std::pair<std::string_view, Scanner>, 3> kScanners = {{
      {kGpt2Pattern, scan_gpt2},
      {kLlama3Pattern, scan_cl100k<3>},
      {kQwen2Pattern, scan_cl100k<1>},
  }};
  PreTokenizer result;
  for (const PreTokenizerStep& step : steps) {
    Step made;
    if (step.kind == PreTokenizerStep::Kind::kIndividualDigits) made.scanner = scan_digits;
    if (step.kind == PreTokenizerStep::Kind::kSplit) {
      for (const auto& [pattern, scanner] : kScanners) {
        if (step.pattern == pattern) made.scanner = scanner;
      }
      if (made.scanner == nullptr) {
        TANDEM_ASSIGN(made.regex, Regex::create(step.pattern));
      }
    }
    result.steps_.push_back(std::move(made));
  }
  return result;
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  split_from(0, text, pieces);
}

void PreTokenizer::split_from(std::size_t step_idx, std::string_view text,
                              std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  if (step_idx == steps_.size()) {
    pieces.push_back(text);
    return;
  }
  const Step& step = steps_[step_idx];
  if (step.scanner != nullptr) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = step.scanner(text, begin);
      split_from(step_idx + 1, text.substr(begin, end - begin), pieces);
      begin = end;
    }
    return;
  }
  std::vector<std::string_view> parts;
  step.regex->split(text, parts);
  for (const std::string_view part : parts) split_from(step_idx + 1, part, pieces);
}

}  // namespace tandem
