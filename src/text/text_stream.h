// Turns generated tokens into text that may be sent: whole characters only, and nothing that may still become
// the beginning of a stop string. Joined, the pieces are the same however the bytes were cut into tokens, so a
// reply that is not streamed is the join of the same pieces.
// One per generation, owned by the thread that feeds it. It ends text; it does not end the generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/tokenizer.h"
#include "text/unicode.h"

namespace tandem {

enum class ControlText : std::uint8_t { kHidden, kShown };
enum class StopText : std::uint8_t { kTrimmed, kIncluded };

struct TextStreamOptions {
  // Empty and ill-formed strings never match.
  std::vector<std::string> stop;
  ControlText control_text = ControlText::kHidden;
  StopText stop_text = StopText::kTrimmed;
};

// What one push or the finish releases. Often empty.
struct Piece {
  std::string text;  // valid UTF-8
  // How many of the tokens pushed so far, from the first, are wholly released: their log-probabilities may go out
  // with this piece. Never shrinks. A token without text counts with the one before it. At finish it is all of
  // them; at a stop, those that have at least one byte in the released text or come before one that has. The
  // tokens whose text is all trimmed are never counted.
  std::size_t released_tokens = 0;
  // Index in TextStreamOptions::stop of what ended the text; set once and then in every later piece.
  std::optional<std::size_t> stop_idx;

  bool stopped() const { return stop_idx.has_value(); }
};

class TextStream final {
 public:
  // The tokenizer must outlive the stream.
  TextStream(const Tokenizer& tokenizer, TextStreamOptions options);

  // Ill-formed bytes become U+FFFD, one for each maximal part, as Python's bytes.decode("utf-8", "replace")
  // gives, as soon as no further byte can mend them. The stop string whose last byte comes first ends the text
  // (of several that end there, the longest); what follows it is dropped, later pushes too.
  Piece push(TokenId token);

  // Releases what was held back; a character still incomplete becomes one U+FFFD. Call once, at the end.
  Piece finish();

 private:
  // One stop string and how much of it the text now ends with (Knuth, Morris, Pratt 1977).
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  // border[i]: longest proper border of the first i bytes
    std::size_t idx = 0;              // in the options
    std::size_t matched = 0;          // bytes

    bool advance(char byte);  // true: the text now ends with it
  };

  // Where a token's characters lie in the whole text, in bytes; not known while it ends in an incomplete one.
  struct TokenText {
    std::size_t begin = kUnknown;
    std::size_t end = kUnknown;
  };
  static constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

  void append_unit(std::string_view text, std::size_t num_tokens);
  void end_text(const Stop& stop);
  Piece release(std::size_t keep_bytes);

  const Tokenizer& tokenizer_;
  ControlText control_text_;
  StopText stop_text_;
  std::vector<Stop> stops_;
  std::string tail_;  // the bytes of an incomplete character, at most 3 between calls
  std::string held_;  // whole characters not yet released
  std::size_t released_bytes_ = 0;
  std::deque<TokenText> tokens_;  // not yet released
  std::size_t released_tokens_ = 0;
  std::optional<std::size_t> stop_idx_;
};

}  // namespace tandem
