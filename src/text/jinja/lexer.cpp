#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "fmt/core.h"

#include "text/unicode.h"

namespace tandem::jinja {
namespace {

// One kind of line end, and not the last of them.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

class Lexer final {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)) {}

  absl::StatusOr<std::vector<Token>> run() {
    while (at_ < source_.size()) TANDEM_TRY(data());
    add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status fail(std::string_view what) const { return template_error(line_, what); }
  bool starts(std::string_view text) const { return starts_at(at_, text); }
  bool starts_at(std::size_t at, std::string_view text) const {
    return std::string_view(source_).substr(at, text.size()) == text;
  }
  void add(TokenType type, std::string text) {
    tokens_.push_back({.type = type, .line = line_, .text = std::move(text), .number = {}});
  }
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_starting_ = to > at_ ? source_[to - 1] == '\n' : line_starting_;
    at_ = to;
  }
  std::size_t after_spaces(std::size_t at) const {
    while (at < source_.size()) {
      const CodePoint c = decode(source_, at);
      if (!is_space(c.value)) break;
      at += c.bytes;
    }
    return at;
  }

  // The text before a tag at `end`, without what the tag's sign or lstrip_blocks takes away.
  void add_data(std::size_t end, char sign, bool print) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, strip(*make_text_ptr(text), nullptr, Side::kRight)->bytes.size());
    } else if (sign != '+' && !print) {
      const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      const bool blank = after_spaces(at_ + line) >= end && line < text.size();
      if ((line > 0 || line_starting_) && blank) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenType::kData, std::string(text));
  }

  absl::Status data() {
    std::size_t tag = at_;
    do {
      tag = source_.find('{', tag);
    } while (tag != std::string::npos && !starts_at(tag, "{%") && !starts_at(tag, "{{") && !starts_at(tag, "{#") &&
             ++tag);
    if (tag == std::string::npos) {
      add(TokenType::kData, source_.substr(at_));
      advance(source_.size());
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    std::size_t inside = tag + 2;
    const char next = inside < source_.size() ? source_[inside] : ' ';
    const char sign = next == '-' || next == '+' ? next : ' ';
    if (sign != ' ') ++inside;
    add_data(tag, sign, kind == '{');
    if (kind == '#') return comment(inside);
    if (kind == '%') {
      const std::size_t raw_end = raw_begin(inside);
      if (raw_end != std::string::npos) return raw(raw_end);
    }
    advance(inside);
    add(kind == '{' ? TokenType::kPrintBegin : TokenType::kBlockBegin, std::string(source_, tag, 2));
    return tag_body(kind == '{');
  }

  absl::Status comment(std::size_t from) {
    const std::size_t close = source_.find("#}", from);
    if (close == std::string::npos) return fail("a comment is not closed");
    const char sign = close > from ? source_[close - 1] : ' ';
    advance(end_of_tag(close + 2, sign));
    return absl::OkStatus();
  }

  // Behind a block's or comment's end whose sign is `sign`.
  std::size_t end_of_tag(std::size_t at, char sign) const {
    if (sign == '-') return after_spaces(at);
    return sign != '+' && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  // Behind "raw %}" at `at`, npos when it is another tag.
  std::size_t raw_begin(std::size_t at) const {
    at = after_spaces(at);
    if (!starts_at(at, "raw")) return std::string::npos;
    at = after_spaces(at + 3);
    if (starts_at(at, "%}")) return at + 2;
    return starts_at(at, "-%}") ? after_spaces(at + 3) : std::string::npos;
  }

  absl::Status raw(std::size_t from) {
    advance(from);
    for (std::size_t tag = source_.find("{%", from); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      std::size_t at = tag + 2;
      const char next = at < source_.size() ? source_[at] : ' ';
      const char sign = next == '-' || next == '+' ? next : ' ';
      at = after_spaces(sign == ' ' ? at : at + 1);
      if (!starts_at(at, "endraw")) continue;
      at = after_spaces(at + 6);
      const char end_sign = starts_at(at, "-%}") ? '-' : starts_at(at, "+%}") ? '+' : ' ';
      if (end_sign != ' ') ++at;
      if (!starts_at(at, "%}")) continue;
      add_data(tag, sign, false);
      advance(end_of_tag(at + 2, end_sign));
      return absl::OkStatus();
    }
    return fail("a raw block is not closed");
  }

  absl::Status tag_body(bool print) {
    std::string open;  // closing brackets that are due
    while (true) {
      advance(after_spaces(at_));
      if (at_ >= source_.size()) return fail(print ? "'{{' is not closed" : "'{%' is not closed");
      if (open.empty() && tag_end(print)) return absl::OkStatus();
      const char c = source_[at_];
      if (is_digit(c)) {
        TANDEM_TRY(number());
      } else if (is_name_char(c)) {
        std::size_t end = at_;
        while (end < source_.size() && is_name_char(source_[end])) ++end;
        add(TokenType::kName, source_.substr(at_, end - at_));
        advance(end);
      } else if (c == '\'' || c == '"') {
        TANDEM_TRY(string(c));
      } else {
        TANDEM_TRY(symbol(open));
      }
    }
  }

  bool tag_end(bool print) {
    const char sign = source_[at_] == '-' || (source_[at_] == '+' && !print) ? source_[at_] : ' ';
    const std::size_t close = sign == ' ' ? at_ : at_ + 1;
    if (!starts_at(close, print ? "}}" : "%}")) return false;
    add(print ? TokenType::kPrintEnd : TokenType::kBlockEnd, print ? "}}" : "%}");
    advance(print ? (sign == '-' ? after_spaces(close + 2) : close + 2) : end_of_tag(close + 2, sign));
    return true;
  }

  absl::Status symbol(std::string& open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    const auto two = std::find_if(std::begin(kTwo), std::end(kTwo), [&](auto text) { return starts(text); });
    const char c = source_[at_];
    if (two == std::end(kTwo) && kOne.find(c) == std::string_view::npos) {
      return fail(fmt::format("unexpected character '{}'", source_.substr(at_, decode(source_, at_).bytes)));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return fail(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    const std::size_t size = two == std::end(kTwo) ? 1 : 2;
    add(TokenType::kSymbol, source_.substr(at_, size));
    advance(at_ + size);
    return absl::OkStatus();
  }

  // Behind digits with single underscores between them.
  std::size_t after_digits(std::size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  absl::Status number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // x.1.2 has no float in it
    std::size_t end = after_digits(at_);
    bool real = false;
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = after_digits(end + 1);
        real = true;
      }
      std::size_t exponent = end + 1;
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          end = after_digits(exponent);
          real = true;
        }
      }
    }
    int base = 10;
    std::size_t begin = at_;
    if (!real && source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char mark = static_cast<char>(source_[at_ + 1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) {
        begin = end = at_ + 2;
        while (end < source_.size() && (std::isxdigit(static_cast<unsigned char>(source_[end])) || source_[end] == '_'))
          ++end;
      }
    }
    std::string digits = source_.substr(begin, end - begin);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    Value value;
    std::from_chars_result parsed{};
    if (real) {
      double read = 0;
      parsed = std::from_chars(digits.data(), digits.data() + digits.size(), read);
      value = {read};
    } else {
      std::int64_t read = 0;
      parsed = std::from_chars(digits.data(), digits.data() + digits.size(), read, base);
      value = make_int(read);
    }
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
      return fail(fmt::format("the number {} cannot be represented", source_.substr(at_, end - at_)));
    }
    add(TokenType::kNumber, source_.substr(at_, end - at_));
    tokens_.back().number = std::move(value);
    advance(end);
    return absl::OkStatus();
  }

  absl::Status string(char quote) {
    std::string text;
    std::size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        text += source_[at++];
        continue;
      }
      TANDEM_TRY(escape(at, text));
    }
    if (at >= source_.size()) return fail("a string is not closed");
    add(TokenType::kString, std::move(text));
    advance(at + 1);
    return absl::OkStatus();
  }

  // Python's escapes; an unknown one stays as it is written.
  absl::Status escape(std::size_t& at, std::string& text) const {
    if (at + 1 >= source_.size()) return fail("a string is not closed");
    const char c = source_[at + 1];
    constexpr std::string_view kNames = "\\'\"abfnrtv\n";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
      if (i < kMeanings.size()) text += kMeanings[i];
      at += 2;
      return absl::OkStatus();
    }
    const bool octal = c >= '0' && c <= '7';
    const std::size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : octal ? 3 : 0;
    if (c == 'N') return fail("\\N escapes are not supported");
    if (wanted == 0) {
      text += '\\';
      ++at;
      return absl::OkStatus();
    }
    std::size_t begin = octal ? at + 1 : at + 2;
    std::uint32_t code = 0;
    const char* first = source_.data() + begin;
    const char* last = source_.data() + std::min(begin + wanted, source_.size());
    const auto parsed = std::from_chars(first, last, code, octal ? 8 : 16);
    const auto used = static_cast<std::size_t>(parsed.ptr - first);
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if ((!octal && used != wanted) || code > 0x10FFFF || surrogate) {
      return fail(fmt::format("'{}' is no character", source_.substr(at, begin - at + used)));
    }
    append_utf8(text, static_cast<char32_t>(code));
    at = begin + used;
    return absl::OkStatus();
  }

  const std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status template_error(int line, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("chat template, line {}: {}", line, what));
}

absl::StatusOr<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace tandem::jinja
