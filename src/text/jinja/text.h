// Text of the Jinja engine: UTF-8 that counts in code points, as Python's str does, and that knows which of its
// bytes came from the user, so that the tokenizer never makes a control token of them. Immutable once built;
// bytes that are not valid UTF-8 pass through. Also the budget of one render.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tandem/tokenizer.h"

namespace tandem::jinja {

// What one render may cost. A unit of work is an evaluated node, a list element or 32 bytes of text.
struct Limits {
  std::uint64_t max_work = 20'000'000;
  int max_depth = 600;  // nested evaluations; bounds the stack
};

class Budget final {
 public:
  explicit Budget(const Limits& limits) : left_(limits.max_work) {}
  absl::Status charge(std::uint64_t units);

 private:
  std::uint64_t left_;
};

inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxElements = 1'000'000;  // of a list

enum class Origin : std::uint8_t { kTemplate, kUser };

struct Text {
  std::string bytes;
  std::vector<TextSpan> user;  // sorted, disjoint
  std::size_t num_chars = 0;
  bool markup = false;  // made by `safe` or `escape`: `+` then escapes the other side

  bool one_byte_chars() const { return num_chars == bytes.size(); }
};
using TextPtr = std::shared_ptr<const Text>;

// Collects text and its origin. What exceeds kMaxTextBytes is dropped, and finish() reports it.
class TextBuilder final {
 public:
  void append(std::string_view bytes, Origin origin = Origin::kTemplate);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, std::size_t begin, std::size_t end);  // bytes [begin, end)
  void append_repeated(const Text& text, std::uint64_t count);
  bool full() const { return full_; }
  absl::StatusOr<TextPtr> finish(bool markup = false);

 private:
  bool fits(std::size_t bytes);
  void mark(std::size_t begin, std::size_t end);
  std::string bytes_;
  std::vector<TextSpan> user_;
  bool full_ = false;
};

TextPtr make_text_ptr(std::string_view bytes, Origin origin = Origin::kTemplate);
Origin origin_at(const Text& text, std::size_t byte);
TextPtr cut(const Text& text, std::size_t begin, std::size_t end);  // bytes [begin, end), markup kept

// The code point at `position`; kIllFormed stands for bytes that are not UTF-8.
inline constexpr char32_t kIllFormed = 0xDC00;
struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
};
CodePoint decode(std::string_view text, std::size_t position);
std::size_t count_chars(std::string_view text);
std::size_t byte_offset(const Text& text, std::size_t char_index);
bool is_space(char32_t code_point);  // as str.isspace
// Position of `part` at or behind `from`, npos if none. Linear whatever the texts, unlike std::string::find.
std::size_t find_bytes(std::string_view text, std::string_view part, std::size_t from = 0);

std::size_t find_last_bytes(std::string_view text, std::string_view part);

// As Python's str methods of these names. Case::kWords is Jinja's `title`.
enum class Side : std::uint8_t { kLeft, kRight, kBoth };
TextPtr strip(const Text& text, const Text* chars, Side side);
// At most kMaxElements parts and one more.
std::vector<TextPtr> split(const Text& text, const Text* separator, std::int64_t max_splits);
std::vector<TextPtr> split_from_right(const Text& text, const Text* separator, std::int64_t max_splits);
enum class LineEnds : std::uint8_t { kDrop, kKeep };
std::vector<TextPtr> split_lines(const Text& text, LineEnds ends);
// `max_count` negative: all.
absl::StatusOr<TextPtr> replace(const Text& text, const Text& from, const Text& to, std::int64_t max_count);
enum class Case : std::uint8_t { kUpper, kLower, kTitle, kWords, kCapitalized, kSwapped };
absl::StatusOr<TextPtr> with_case(const Text& text, Case letter_case);
absl::StatusOr<TextPtr> html_escaped(const Text& text);
// Python's isalpha, isdigit ... by name without "is"; nullopt: no such test.
std::optional<bool> has_class(std::string_view text, std::string_view char_class);
bool is_printable(char32_t code_point);

}  // namespace tandem::jinja
