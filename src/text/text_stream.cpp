#include "text/text_stream.h"

#include <algorithm>
#include <utility>

namespace tandem {

bool TextStream::Stop::advance(std::size_t& matched, char byte) const {
  while (matched > 0 && text[matched] != byte) matched = border[matched];
  if (text[matched] == byte) ++matched;
  if (matched < text.size()) return false;
  matched = border[matched];  // another one may begin within this one
  return true;
}

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options)
    : tokenizer_(tokenizer),
      control_text_(options.control_text),
      stop_text_(options.stop_text),
      min_tokens_(options.min_tokens) {
  for (std::size_t idx = 0; idx < options.stop.size(); ++idx) {
    std::string& text = options.stop[idx];
    // The text is made of whole characters. An ill-formed stop string could only match inside one.
    if (text.empty() || !is_utf8(text)) continue;
    std::vector<std::size_t> border(text.size() + 1, 0);
    for (std::size_t i = 1, length = 0; i < text.size(); ++i) {
      while (length > 0 && text[i] != text[length]) length = border[length];
      if (text[i] == text[length]) ++length;
      border[i + 1] = length;
    }
    longest_stop_ = std::max(longest_stop_, text.size());
    stops_.push_back({.text = std::move(text), .border = std::move(border), .idx = idx});
  }
}

Piece TextStream::push(TokenId token) {
  if (stop_idx_.has_value()) return release(0);
  ++num_pushed_;
  tokens_.emplace_back();
  const std::size_t own_begin = tail_.size();  // bytes before it belong to earlier tokens
  const bool hidden = tokenizer_.kind(token) == TokenKind::kControl && control_text_ == ControlText::kHidden;
  if (hidden) {
    pass_hidden(tokenizer_.token_bytes(token));
  } else {
    tail_ += tokenizer_.token_bytes(token);
  }
  std::size_t pos = 0;
  while (pos < tail_.size() && !stop_idx_.has_value()) {
    const std::string_view rest = std::string_view(tail_).substr(pos);
    const Utf8Unit unit = decode_utf8(rest);
    if (unit.state == Utf8State::kIncomplete) break;
    pos += unit.length;
    // A byte of this token may end an earlier character by not belonging to it.
    const bool has_own_byte = pos > own_begin;
    append_unit(unit.state == Utf8State::kValid ? rest.substr(0, unit.length) : kReplacementUtf8,
                has_own_byte ? tokens_.size() : tokens_.size() - 1);
  }
  tail_.erase(0, pos);
  if (stop_idx_.has_value()) return release(0);
  tokens_.back().end = tail_.empty() ? released_bytes_ + held_.size() : kUnknown;
  return release(num_kept_bytes());
}

Piece TextStream::finish() {
  if (!stop_idx_.has_value() && !tail_.empty()) append_unit(kReplacementUtf8, tokens_.size());
  tail_.clear();
  return release(0);
}

// Appends one whole character, to which every one of the first `num_tokens` tokens without a known end belongs,
// and the last of them in any case. A stop string can only end at its last byte.
void TextStream::append_unit(std::string_view text, std::size_t num_tokens) {
  const std::size_t begin = shown_end();
  held_ += text;
  for (std::size_t i = num_tokens; i-- > 0;) {
    if (i + 1 < num_tokens && tokens_[i].end != kUnknown) break;
    tokens_[i].begin = std::min(tokens_[i].begin, begin);
    tokens_[i].end = begin + text.size();
  }
  if (stops_.empty()) return;
  for (std::size_t i = 0; i < text.size(); ++i) push_origin({.shown_at = begin + i});
  const Stop* longest = nullptr;
  std::size_t cut = 0;
  for (Stop& stop : stops_) {
    bool in_shown = false;
    bool in_all = false;
    for (const char byte : text) {
      in_shown = stop.advance(stop.in_shown, byte);
      in_all = stop.advance(stop.in_all, byte);
    }
    const auto from = in_all ? begin_in_shown(stop.text.size()) : std::nullopt;
    if ((!in_shown && !from) || (longest != nullptr && stop.text.size() <= longest->text.size())) continue;
    longest = &stop;
    cut = in_shown ? shown_end() - stop.text.size() : *from;
  }
  if (longest != nullptr && may_stop()) end_text(*longest, cut);
}

// A control token that is not shown: its text can end a stop string, wholly.
void TextStream::pass_hidden(std::string_view text) {
  if (stops_.empty() || text.empty()) return;
  if (!tail_.empty()) {
    // The bytes of a character stand before and perhaps behind it. Only a stop string that is the token's text can
    // match here; it ends the character, too.
    const bool stops = may_stop() && std::ranges::any_of(stops_, [&](const Stop& stop) { return stop.text == text; });
    if (stops) {
      tail_.clear();
      append_unit(kReplacementUtf8, tokens_.size() - 1);
      if (stop_idx_.has_value()) return;
    }
    for (Stop& stop : stops_) stop.in_all = 0;
  }
  for (std::size_t i = 0; i < text.size(); ++i) push_origin({.shown_at = shown_end(), .may_begin_stop = i == 0});
  const Stop* longest = nullptr;
  std::size_t cut = 0;
  for (Stop& stop : stops_) {
    bool in_all = false;
    for (const char byte : text) in_all = stop.advance(stop.in_all, byte);
    const auto from = in_all ? begin_in_shown(stop.text.size()) : std::nullopt;
    if (!from || (longest != nullptr && stop.text.size() <= longest->text.size())) continue;
    longest = &stop;
    cut = *from;
  }
  if (longest == nullptr || !may_stop()) return;
  if (stop_text_ == StopText::kIncluded) tokens_.back().begin = cut;  // shown after all
  end_text(*longest, cut);
}

void TextStream::push_origin(Origin origin) {
  if (origins_.size() == longest_stop_) origins_.pop_front();
  origins_.push_back(origin);
}

std::optional<std::size_t> TextStream::begin_in_shown(std::size_t num_bytes) const {
  const Origin& begin = origins_[origins_.size() - num_bytes];
  return begin.may_begin_stop ? std::optional(begin.shown_at) : std::nullopt;
}

// How much of the end of the shown text may still become part of a stop string.
std::size_t TextStream::num_kept_bytes() const {
  std::size_t kept = 0;
  for (const Stop& stop : stops_) {
    kept = std::max(kept, stop.in_shown);
    if (stop.in_all > 0) kept = std::max(kept, shown_end() - origins_[origins_.size() - stop.in_all].shown_at);
  }
  return kept;
}

// `cut`: where in the shown text the stop string begins.
void TextStream::end_text(const Stop& stop, std::size_t cut) {
  // Never negative: what may begin a stop string has been held back.
  held_.resize(cut - released_bytes_);
  if (stop_text_ == StopText::kIncluded) held_ += stop.text;
  const std::size_t end = shown_end();
  while (!tokens_.empty() && (tokens_.front().end <= end || tokens_.front().begin < end)) {
    tokens_.pop_front();
    ++released_tokens_;
  }
  tokens_.clear();
  stop_idx_ = stop.idx;
}

Piece TextStream::release(std::size_t keep_bytes) {
  const std::size_t count = held_.size() - keep_bytes;
  Piece piece;
  piece.text = held_.substr(0, count);
  held_.erase(0, count);
  released_bytes_ += count;
  while (!tokens_.empty() && tokens_.front().end <= released_bytes_) {
    tokens_.pop_front();
    ++released_tokens_;
  }
  piece.released_tokens = released_tokens_;
  piece.stop_idx = stop_idx_;
  return piece;
}

}  // namespace tandem
