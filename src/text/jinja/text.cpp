#include "text/jinja/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/core.h"

#include "text/unicode.h"

namespace tandem::jinja {

absl::Status Budget::charge(std::uint64_t units) {
  if (units > left_) {
    left_ = 0;
    return absl::ResourceExhaustedError("rendering takes too many steps for one request");
  }
  left_ -= units;
  return absl::OkStatus();
}

namespace {

// The first span that ends behind `byte`.
std::vector<TextSpan>::const_iterator span_after(const Text& text, std::size_t byte) {
  return std::upper_bound(text.user.begin(), text.user.end(), byte,
                          [](std::size_t position, const TextSpan& span) { return position < span.end; });
}

}  // namespace

bool TextBuilder::fits(std::size_t bytes) {
  full_ = full_ || bytes > kMaxTextBytes - bytes_.size();
  return !full_;
}

void TextBuilder::mark(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!user_.empty() && user_.back().end == begin) {
    user_.back().end = end;
  } else {
    user_.push_back({.begin = begin, .end = end});
  }
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  if (!fits(bytes.size())) return;
  const std::size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (origin == Origin::kUser) mark(begin, bytes_.size());
}

void TextBuilder::append(const Text& text, std::size_t begin, std::size_t end) {
  if (!fits(end - begin)) return;
  const std::size_t at = bytes_.size();
  bytes_.append(text.bytes, begin, end - begin);
  for (auto span = span_after(text, begin); span != text.user.end() && span->begin < end; ++span) {
    mark(at + std::max(span->begin, begin) - begin, at + std::min(span->end, end) - begin);
  }
}

void TextBuilder::append_repeated(const Text& text, std::uint64_t count) {
  if (text.bytes.empty()) return;
  if (text.bytes.size() == 1 && text.user.empty() && fits(std::min<std::uint64_t>(count, kMaxTextBytes + 1))) {
    bytes_.append(count, text.bytes.front());
    return;
  }
  for (; count > 0 && !full_; --count) append(text);
}

absl::StatusOr<TextPtr> TextBuilder::finish(bool markup) {
  if (full_) {
    return absl::ResourceExhaustedError(fmt::format("a text grows beyond {} MiB", kMaxTextBytes >> 20));
  }
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes_);
  text->user = std::move(user_);
  text->num_chars = count_chars(text->bytes);
  text->markup = markup;
  return text;
}

TextPtr make_text_ptr(std::string_view bytes, Origin origin) {
  auto text = std::make_shared<Text>();
  text->bytes = bytes;
  text->num_chars = count_chars(bytes);
  if (origin == Origin::kUser && !bytes.empty()) text->user.push_back({.begin = 0, .end = bytes.size()});
  return text;
}

Origin origin_at(const Text& text, std::size_t byte) {
  const auto span = span_after(text, byte);
  return span != text.user.end() && span->begin <= byte ? Origin::kUser : Origin::kTemplate;
}

TextPtr cut(const Text& text, std::size_t begin, std::size_t end) {
  TextBuilder builder;
  builder.append(text, begin, end);
  auto part = builder.finish(text.markup);
  TANDEM_CHECK(part.ok(), "a part of a text is no longer than the text");
  return *std::move(part);
}

CodePoint decode(std::string_view text, std::size_t position) {
  const Utf8Unit unit = decode_utf8(text.substr(position));
  return {.value = unit.state == Utf8State::kValid ? unit.code_point : kIllFormed, .bytes = unit.length};
}

std::size_t count_chars(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    at += static_cast<unsigned char>(text[at]) < 0x80 ? 1 : decode(text, at).bytes;
  }
  return count;
}

std::size_t byte_offset(const Text& text, std::size_t char_index) {
  if (text.one_byte_chars()) return std::min(char_index, text.bytes.size());
  std::size_t at = 0;
  for (; char_index > 0 && at < text.bytes.size(); --char_index) at += decode(text.bytes, at).bytes;
  return at;
}

std::size_t find_bytes(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last_bytes(std::string_view text, std::string_view part) {
  const std::string mirrored(text.rbegin(), text.rend());
  const std::size_t at = find_bytes(mirrored, std::string(part.rbegin(), part.rend()));
  return at == std::string_view::npos ? at : text.size() - at - part.size();
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {

// The characters to strip: those of a text, or white space.
class StripSet final {
 public:
  explicit StripSet(const Text* chars) : white_space_(chars == nullptr) {
    if (white_space_) return;
    for (std::size_t at = 0; at < chars->bytes.size();) {
      const CodePoint c = decode(chars->bytes, at);
      members_.push_back(c.value);
      at += c.bytes;
    }
    std::sort(members_.begin(), members_.end());
  }
  bool has(char32_t c) const {
    return white_space_ ? is_space(c) : std::binary_search(members_.begin(), members_.end(), c);
  }

 private:
  bool white_space_;
  std::vector<char32_t> members_;
};

// Start of the code point that ends at `end`.
std::size_t previous(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode(text, begin).bytes == end - begin ? begin : end - 1;
}

}  // namespace

TextPtr strip(const Text& text, const Text* chars, Side side) {
  const StripSet set(chars);
  std::size_t begin = 0;
  std::size_t end = text.bytes.size();
  while (side != Side::kRight && begin < end) {
    const CodePoint c = decode(text.bytes, begin);
    if (!set.has(c.value)) break;
    begin += c.bytes;
  }
  while (side != Side::kLeft && begin < end) {
    const std::size_t last = previous(text.bytes, end);
    if (!set.has(decode(text.bytes, last).value)) break;
    end = last;
  }
  return cut(text, begin, std::max(begin, end));
}

namespace {

// [begin, end) of the runs without white space.
std::vector<TextSpan> words(const Text& text) {
  std::vector<TextSpan> found;
  bool inside = false;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const CodePoint c = decode(text.bytes, at);
    const bool space = is_space(c.value);
    if (!space && !inside) {
      if (found.size() > kMaxElements) break;
      found.push_back({.begin = at, .end = at});
    }
    if (!space) found.back().end = at + c.bytes;
    inside = !space;
    at += c.bytes;
  }
  return found;
}

std::size_t limit_of(std::int64_t max_splits) {
  return max_splits < 0 ? std::string::npos : static_cast<std::size_t>(max_splits);
}

}  // namespace

std::vector<TextPtr> split(const Text& text, const Text* separator, std::int64_t max_splits) {
  std::vector<TextPtr> parts;
  const std::size_t limit = std::min(limit_of(max_splits), kMaxElements);
  if (separator == nullptr) {
    const auto found = words(text);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i == limit) {  // the rest, as it is
        parts.push_back(cut(text, found[i].begin, text.bytes.size()));
        break;
      }
      parts.push_back(cut(text, found[i].begin, found[i].end));
    }
    return parts;
  }
  std::size_t begin = 0;
  while (parts.size() < limit) {
    const std::size_t at = find_bytes(text.bytes, separator->bytes, begin);
    if (at == std::string::npos) break;
    parts.push_back(cut(text, begin, at));
    begin = at + separator->bytes.size();
  }
  parts.push_back(cut(text, begin, text.bytes.size()));
  return parts;
}

std::vector<TextPtr> split_from_right(const Text& text, const Text* separator, std::int64_t max_splits) {
  std::vector<TextPtr> parts;
  const std::size_t limit = std::min(limit_of(max_splits), kMaxElements);
  if (separator == nullptr) {
    const auto found = words(text);
    for (std::size_t i = found.size(); i-- > 0;) {
      if (parts.size() == limit) {
        parts.push_back(cut(text, 0, found[i].end));
        break;
      }
      parts.push_back(cut(text, found[i].begin, found[i].end));
    }
  } else {
    // Forwards through the mirror image, which is linear.
    const std::string mirrored(text.bytes.rbegin(), text.bytes.rend());
    const std::string mark(separator->bytes.rbegin(), separator->bytes.rend());
    std::size_t end = text.bytes.size();
    while (parts.size() < limit) {
      const std::size_t at = find_bytes(mirrored, mark, text.bytes.size() - end);
      if (at == std::string::npos) break;
      const std::size_t behind = text.bytes.size() - at;
      parts.push_back(cut(text, behind, end));
      end = behind - mark.size();
    }
    parts.push_back(cut(text, 0, end));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<TextPtr> split_lines(const Text& text, LineEnds ends) {
  std::vector<TextPtr> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.bytes.size() && lines.size() < kMaxElements;) {
    const CodePoint c = decode(text.bytes, at);
    const std::size_t line_end = at;
    at += c.bytes;
    const bool breaks = (c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) ||
                        c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (!breaks) continue;
    if (c.value == '\r' && at < text.bytes.size() && text.bytes[at] == '\n') ++at;
    lines.push_back(cut(text, begin, ends == LineEnds::kKeep ? at : line_end));
    begin = at;
  }
  if (begin < text.bytes.size()) lines.push_back(cut(text, begin, text.bytes.size()));
  return lines;
}

absl::StatusOr<TextPtr> replace(const Text& text, const Text& from, const Text& to, std::int64_t max_count) {
  TextBuilder out;
  std::size_t left = limit_of(max_count);
  std::size_t begin = 0;
  if (from.bytes.empty()) {  // before every code point and at the end
    for (; left > 0 && !out.full(); --left) {
      out.append(to);
      if (begin == text.bytes.size()) break;
      const std::size_t next = begin + decode(text.bytes, begin).bytes;
      out.append(text, begin, next);
      begin = next;
    }
  } else {
    for (; left > 0 && !out.full(); --left) {
      const std::size_t at = find_bytes(text.bytes, from.bytes, begin);
      if (at == std::string::npos) break;
      out.append(text, begin, at);
      out.append(to);
      begin = at + from.bytes.size();
    }
  }
  out.append(text, begin, text.bytes.size());
  return out.finish(text.markup);
}

absl::StatusOr<TextPtr> html_escaped(const Text& text) {
  TextBuilder out;
  std::size_t plain = 0;  // start of what needs no escape
  for (std::size_t at = text.bytes.find_first_of("&<>'\""); at != std::string::npos && !out.full();
       at = text.bytes.find_first_of("&<>'\"", at + 1)) {
    const char c = text.bytes[at];
    out.append(text, plain, at);
    out.append(c == '&'    ? "&amp;"
               : c == '<'  ? "&lt;"
               : c == '>'  ? "&gt;"
               : c == '\'' ? "&#39;"
                           : "&#34;",
               origin_at(text, at));
    plain = at + 1;
  }
  out.append(text, plain, text.bytes.size());
  return out.finish(true);
}

}  // namespace tandem::jinja
