#include "text/text_stream.h"

#include <algorithm>
#include <utility>

namespace tandem {

bool TextStream::Stop::advance(char byte) {
  // `matched` is never all of the text here: a full match ends the stream.
  while (matched > 0 && text[matched] != byte) matched = border[matched];
  if (text[matched] == byte) ++matched;
  return matched == text.size();
}

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options)
    : tokenizer_(tokenizer), control_text_(options.control_text), stop_text_(options.stop_text) {
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
    stops_.push_back({.text = std::move(text), .border = std::move(border), .idx = idx});
  }
}

Piece TextStream::push(TokenId token) {
  if (stop_idx_.has_value()) return release(0);
  tokens_.emplace_back();
  const std::size_t own_begin = tail_.size();  // bytes before it belong to earlier tokens
  const bool hidden = tokenizer_.kind(token) == TokenKind::kControl && control_text_ == ControlText::kHidden;
  if (!hidden) tail_ += tokenizer_.token_bytes(token);
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
  std::size_t keep_bytes = 0;
  for (const Stop& stop : stops_) keep_bytes = std::max(keep_bytes, stop.matched);
  return release(keep_bytes);
}

Piece TextStream::finish() {
  if (!stop_idx_.has_value() && !tail_.empty()) append_unit(kReplacementUtf8, tokens_.size());
  tail_.clear();
  return release(0);
}

// Appends one whole character, to which every one of the first `num_tokens` tokens without a known end belongs,
// and the last of them in any case. A stop string can only end at its last byte.
void TextStream::append_unit(std::string_view text, std::size_t num_tokens) {
  const std::size_t begin = released_bytes_ + held_.size();
  held_ += text;
  for (std::size_t i = num_tokens; i-- > 0;) {
    if (i + 1 < num_tokens && tokens_[i].end != kUnknown) break;
    tokens_[i].begin = std::min(tokens_[i].begin, begin);
    tokens_[i].end = begin + text.size();
  }
  const Stop* longest = nullptr;
  for (Stop& stop : stops_) {
    bool complete = false;
    for (const char byte : text) complete = stop.advance(byte);
    if (complete && (longest == nullptr || stop.text.size() > longest->text.size())) longest = &stop;
  }
  if (longest != nullptr) end_text(*longest);
}

void TextStream::end_text(const Stop& stop) {
  const std::size_t end = released_bytes_ + held_.size();
  const std::size_t cut = stop_text_ == StopText::kTrimmed ? end - stop.text.size() : end;
  while (!tokens_.empty() && (tokens_.front().end <= cut || tokens_.front().begin < cut)) {
    tokens_.pop_front();
    ++released_tokens_;
  }
  tokens_.clear();
  // Never negative: what may begin a stop string has been held back.
  held_.resize(cut - released_bytes_);
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
