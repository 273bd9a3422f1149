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
  // No stop string ends the text with one of the first so many tokens.
  std::uint32_t min_tokens = 0;
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
  // (of several that end there, the longest); what follows it is dropped, later pushes too. Stop strings are looked
  // for in the text that is shown and, since clients stop at turn markers, also in the text with the hidden control
  // tokens in it, of which they must have whole ones.
  Piece push(TokenId token);

  // Releases what was held back; a character still incomplete becomes one U+FFFD. Call once, at the end.
  Piece finish();

 private:
  // One stop string and how many of its bytes the text now ends with (Knuth, Morris, Pratt 1977).
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  // border[i]: longest proper border of the first i bytes
    std::size_t idx = 0;              // in the options
    std::size_t in_shown = 0;         // matched in the shown text
    std::size_t in_all = 0;           // matched in the text with the hidden tokens

    bool advance(std::size_t& matched, char byte) const;  // true: the text now ends with all of it
  };

  // A byte of the text with the hidden tokens.
  struct Origin {
    std::size_t shown_at = 0;       // where it stands, or would stand, in the shown text
    bool may_begin_stop = true;     // false within a hidden token
  };

  // Where a token's characters lie in the whole text, in bytes; not known while it ends in an incomplete one.
  struct TokenText {
    std::size_t begin = kUnknown;
    std::size_t end = kUnknown;
  };
  static constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

  void append_unit(std::string_view text, std::size_t num_tokens);
  void pass_hidden(std::string_view text);
  void push_origin(Origin origin);
  // Where in the shown text the last `num_bytes` of the text with the hidden tokens begin; nullopt within a hidden one.
  std::optional<std::size_t> begin_in_shown(std::size_t num_bytes) const;
  std::size_t shown_end() const { return released_bytes_ + held_.size(); }
  bool may_stop() const { return num_pushed_ > min_tokens_; }
  std::size_t num_kept_bytes() const;
  void end_text(const Stop& stop, std::size_t cut);
  Piece release(std::size_t keep_bytes);

  const Tokenizer& tokenizer_;
  ControlText control_text_;
  StopText stop_text_;
  const std::uint32_t min_tokens_;
  std::uint64_t num_pushed_ = 0;  // tokens
  std::vector<Stop> stops_;
  std::size_t longest_stop_ = 0;  // bytes
  std::deque<Origin> origins_;  // of the last bytes, as many as the longest stop string has
  std::string tail_;  // the bytes of an incomplete character, at most 3 between calls
  std::string held_;  // whole characters not yet released
  std::size_t released_bytes_ = 0;
  std::deque<TokenText> tokens_;  // not yet released
  std::size_t released_tokens_ = 0;
  std::optional<std::size_t> stop_idx_;
};

}  // namespace tandem
