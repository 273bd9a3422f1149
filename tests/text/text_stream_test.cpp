#include "text/text_stream.h"

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "text_fixture.h"

namespace tandem {
namespace {

// A tokenizer whose tokens are any bytes that a test wants. A control token's text is its bytes.
class FakeTokenizer final : public Tokenizer {
 public:
  TokenId add(std::string bytes, TokenKind kind = TokenKind::kNormal) {
    tokens_.emplace_back(std::move(bytes), kind);
    return vocab_size() - 1;
  }
  std::vector<TokenId> add_all(const std::vector<std::string>& bytes) {
    std::vector<TokenId> ids;
    for (const std::string& each : bytes) ids.push_back(add(each));
    return ids;
  }

  std::vector<TokenId> encode(std::string_view, std::span<const TextSpan>) const override { return {}; }
  std::vector<TokenId> encode_prompt(std::string_view) const override { return {}; }
  std::string_view token_bytes(TokenId id) const override { return tokens_[static_cast<std::size_t>(id)].first; }
  TokenKind kind(TokenId id) const override { return tokens_[static_cast<std::size_t>(id)].second; }
  bool ends_generation(TokenId) const override { return false; }
  TokenId vocab_size() const override { return static_cast<TokenId>(tokens_.size()); }
  const TokenizerSpec& spec() const override { return spec_; }

 private:
  std::vector<std::pair<std::string, TokenKind>> tokens_;
  TokenizerSpec spec_;
};

struct Reply {
  std::string text;
  std::vector<Piece> pieces;  // one per push, then that of the finish
  const Piece& last() const { return pieces.back(); }
};

Reply stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, const TextStreamOptions& options) {
  TextStream text_stream(tokenizer, options);
  Reply reply;
  for (const TokenId id : ids) reply.pieces.push_back(text_stream.push(id));
  reply.pieces.push_back(text_stream.finish());
  for (const Piece& piece : reply.pieces) reply.text += piece.text;
  return reply;
}

Reply stream(const std::vector<std::string>& tokens, const std::vector<std::string>& stop = {},
             StopText stop_text = StopText::kTrimmed) {
  FakeTokenizer tokenizer;
  const std::vector<TokenId> ids = tokenizer.add_all(tokens);
  return stream(tokenizer, ids, {.stop = stop, .control_text = ControlText::kHidden, .stop_text = stop_text});
}

std::vector<std::string> texts(const Reply& reply) {
  std::vector<std::string> out;
  for (const Piece& piece : reply.pieces) out.push_back(piece.text);
  return out;
}

using Texts = std::vector<std::string>;

TEST(TextStream, a_character_waits_for_its_last_byte) {
  const Reply reply = stream({"a\xF0\x9F", "\x98", "\x80z", "\xC3", "\xA9"});
  EXPECT_EQ(texts(reply), (Texts{"a", "", "\xF0\x9F\x98\x80z", "", "\xC3\xA9", ""}));
  EXPECT_EQ(reply.pieces[0].released_tokens, 0U);
  EXPECT_EQ(reply.pieces[2].released_tokens, 3U);
  EXPECT_EQ(reply.pieces[3].released_tokens, 3U);
  EXPECT_EQ(reply.last().released_tokens, 5U);
}

TEST(TextStream, an_unfinished_character_is_one_replacement_at_the_end) {
  EXPECT_EQ(texts(stream({"a", "\xF0\x9F\x98"})), (Texts{"a", "", "\uFFFD"}));
  EXPECT_EQ(stream({"\xE2", "\x82"}).text, "\uFFFD");
  EXPECT_EQ(stream({"\xE2\x82", "x"}).text, "\uFFFDx");
}

TEST(TextStream, holds_only_what_may_begin_a_stop_string) {
  const Reply reply = stream({"one S", "T", "x S", "TO", "P more", " text"}, {"STOP"});
  EXPECT_EQ(texts(reply), (Texts{"one ", "", "STx ", "", "", "", ""}));
  EXPECT_EQ(reply.last().stop_idx, 0U);
  EXPECT_FALSE(reply.pieces[3].stopped());
  EXPECT_TRUE(reply.pieces[4].stopped());
  EXPECT_EQ(reply.last().released_tokens, 3U);
}

TEST(TextStream, text_held_back_comes_out_when_the_model_ends_by_itself) {
  const Reply reply = stream({"gam", "ma\"}", "##"}, {"gamma\"}#####"});
  EXPECT_EQ(reply.text, "gamma\"}##");
  EXPECT_FALSE(reply.last().stopped());
  EXPECT_EQ(reply.last().released_tokens, 3U);
}

TEST(TextStream, a_stop_that_never_comes_delays_nothing) {
  const Reply reply = stream({"a", " b", " Z", "Y"}, {"ZZZ-never"});
  EXPECT_EQ(texts(reply), (Texts{"a", " b", " ", "ZY", ""}));
}

TEST(TextStream, the_stop_that_ends_first_wins_and_of_two_the_longer) {
  EXPECT_EQ(stream({"xabcd"}, {"abcd", "bc"}).text, "xa");
  EXPECT_EQ(stream({"xab", "cd"}, {"abcd", "bc"}).text, "xa");
  const Reply longer = stream({"xabc"}, {"bc", "c", "abc", "abcd"});
  EXPECT_EQ(longer.text, "x");
  EXPECT_EQ(longer.last().stop_idx, 2U);
}

TEST(TextStream, a_failed_prefix_may_contain_the_real_one) {
  EXPECT_EQ(stream({"aa", "aab", "c"}, {"aaab"}).text, "a");
  EXPECT_EQ(stream({"abab", "abac"}, {"ababac"}).text, "ab");
}

TEST(TextStream, the_stop_string_is_kept_when_asked_for_but_not_what_follows) {
  const Reply reply = stream({"go S", "TOP on"}, {"STOP"}, StopText::kIncluded);
  EXPECT_EQ(texts(reply), (Texts{"go ", "STOP", ""}));
  EXPECT_EQ(reply.last().released_tokens, 2U);
  EXPECT_TRUE(reply.last().stopped());
}

TEST(TextStream, empty_and_ill_formed_stop_strings_never_match) {
  const Reply reply = stream({"\xC3\xA9", "\xA9", "a"}, {"", "\xA9", "\xC3", "a"});
  EXPECT_EQ(reply.text, "\xC3\xA9\uFFFD");
  EXPECT_EQ(reply.last().stop_idx, 3U);
}

TEST(TextStream, stops_may_be_of_any_script) {
  EXPECT_EQ(stream({"\xE2\x82", "\xAC\xE9\xBE", "\x9C!"}, {"龜"}).text, "€");
  EXPECT_EQ(stream({"\xE2\x82", "x"}, {"\uFFFDx"}).text, "");
}

TEST(TextStream, control_tokens_show_only_when_asked_for) {
  FakeTokenizer tokenizer;
  const TokenId text = tokenizer.add("hi");
  const TokenId half = tokenizer.add("\xC3");
  const TokenId control = tokenizer.add("<|im_end|>", TokenKind::kControl);
  const TokenId user_defined = tokenizer.add("<tool_call>", TokenKind::kUserDefined);
  const std::vector<TokenId> ids = {control, text, control, user_defined, half, control};
  const Reply hidden = stream(tokenizer, ids, {});
  EXPECT_EQ(hidden.text, "hi<tool_call>\uFFFD");
  EXPECT_EQ(hidden.pieces[0].released_tokens, 1U);
  EXPECT_EQ(hidden.pieces[2].released_tokens, 3U);
  EXPECT_EQ(hidden.pieces[5].released_tokens, 4U);  // the last one waits with the character before it
  EXPECT_EQ(hidden.last().released_tokens, 6U);
  EXPECT_EQ(stream(tokenizer, ids, {.stop = {}, .control_text = ControlText::kShown, .stop_text = {}}).text,
            "<|im_end|>hi<|im_end|><tool_call>\uFFFD<|im_end|>");
}

// "hi", a turn marker, a line end, and the halves of a character around it.
struct Marked {
  Marked() {
    hi = tokenizer.add("hi");
    marker = tokenizer.add("<|im_end|>", TokenKind::kControl);
    line = tokenizer.add("\n");
    half = tokenizer.add("\xC3");
    rest = tokenizer.add("\xA9");
  }
  Reply run(const std::vector<TokenId>& ids, const std::vector<std::string>& stop, ControlText control,
            StopText stop_text = StopText::kTrimmed) const {
    return stream(tokenizer, ids, {.stop = stop, .control_text = control, .stop_text = stop_text});
  }
  FakeTokenizer tokenizer;
  TokenId hi, marker, line, half, rest;
};

TEST(TextStream, a_stop_string_of_a_control_tokens_text_stops_there_hidden_or_shown) {
  const Marked m;
  for (const ControlText control : {ControlText::kHidden, ControlText::kShown}) {
    const Reply reply = m.run({m.hi, m.marker, m.hi}, {"never", "<|im_end|>"}, control);
    EXPECT_EQ(reply.text, "hi");
    EXPECT_EQ(reply.pieces[1].stop_idx, 1U);
    EXPECT_EQ(reply.last().released_tokens, 1U);
    EXPECT_EQ(m.run({m.hi, m.marker, m.hi}, {"<|im_end|>"}, control, StopText::kIncluded).text, "hi<|im_end|>");
    EXPECT_EQ(m.run({m.half, m.marker, m.rest}, {"<|im_end|>"}, control).text, "\uFFFD");
  }
}

TEST(TextStream, a_stop_string_may_go_on_before_and_after_a_control_token) {
  const Marked m;
  for (const ControlText control : {ControlText::kHidden, ControlText::kShown}) {
    EXPECT_EQ(m.run({m.hi, m.marker, m.line, m.hi}, {"<|im_end|>\n"}, control).text, "hi");
    EXPECT_EQ(m.run({m.hi, m.marker, m.line, m.hi}, {"i<|im_end|>\n"}, control).text, "h");
    EXPECT_EQ(m.run({m.hi, m.marker, m.marker, m.line}, {"<|im_end|><|im_end|>\n"}, control).text, "hi");
    EXPECT_EQ(m.run({m.hi, m.marker, m.line}, {"i<|im_end|>\n"}, control, StopText::kIncluded).text, "hi<|im_end|>\n");
  }
  // What only might have been a stop string comes out, in its place.
  EXPECT_EQ(texts(m.run({m.hi, m.marker, m.hi}, {"i<|im_end|>\n"}, ControlText::kHidden)), (Texts{"h", "", "ih", "i"}));
}

TEST(TextStream, a_part_of_a_hidden_token_is_no_stop_string) {
  const Marked m;
  for (const char* stop : {"<", "|", "im_end", "<|im_end", ">", "i<", ">\n", "|>\n"}) {
    const Reply reply = m.run({m.hi, m.marker, m.line, m.hi}, {stop}, ControlText::kHidden);
    EXPECT_EQ(reply.text, "hi\nhi") << stop;
    EXPECT_FALSE(reply.last().stopped()) << stop;
  }
  EXPECT_EQ(m.run({m.hi, m.marker, m.line}, {"i\n"}, ControlText::kHidden).text, "h") << "the text that shows has it";
  EXPECT_EQ(m.run({m.half, m.marker, m.rest}, {"x"}, ControlText::kHidden).text, "\u00E9");
}

TEST(TextStream, no_stop_string_ends_the_text_with_one_of_the_first_tokens) {
  FakeTokenizer tokenizer;
  const TokenId stop = tokenizer.add("STOP");
  const TokenId first = tokenizer.add("ST");
  const TokenId second = tokenizer.add("OP");
  const TokenId marker = tokenizer.add("<|im_end|>", TokenKind::kControl);
  const auto run = [&](const std::vector<TokenId>& ids, std::uint32_t min_tokens) {
    return stream(tokenizer, ids,
                  {.stop = {"STOP", "<|im_end|>"}, .control_text = {}, .stop_text = {}, .min_tokens = min_tokens});
  };
  EXPECT_EQ(run({stop, stop, stop}, 0).text, "");
  EXPECT_EQ(run({stop, stop, stop}, 1).text, "STOP");
  EXPECT_EQ(run({stop, stop, stop}, 2).text, "STOPSTOP");
  EXPECT_EQ(run({stop, stop, stop}, 3).text, "STOPSTOPSTOP");
  // What begins early and ends late stops.
  EXPECT_EQ(run({first, second}, 1).text, "");
  EXPECT_EQ(run({first, second}, 2).text, "STOP");
  EXPECT_FALSE(run({marker, marker}, 2).last().stopped());
  EXPECT_TRUE(run({marker, marker}, 1).last().stopped());
  FakeTokenizer letters;
  const std::vector<TokenId> three = letters.add_all({"a", "a", "a"});
  EXPECT_EQ(stream(letters, three, {.stop = {"aa"}, .control_text = {}, .stop_text = {}, .min_tokens = 2}).text, "a")
      << "the second and third make another one";
}

TEST(TextStream, a_stop_counts_the_tokens_that_show) {
  EXPECT_EQ(stream({"a", "b", "STOP"}, {"STOP"}).last().released_tokens, 2U);
  EXPECT_EQ(stream({"a", "bST", "OP"}, {"STOP"}).last().released_tokens, 2U);
  EXPECT_EQ(stream({"STOP"}, {"STOP"}).last().released_tokens, 0U);
  // The second token is only the stop; its coming ended the broken character of the first.
  EXPECT_EQ(stream({"\xF0\x9F", "a"}, {"a"}).last().released_tokens, 1U);
  // The second token holds the rest of a character that shows.
  EXPECT_EQ(stream({"\xC3", "\xA9!"}, {"!"}).last().released_tokens, 2U);
}

// --- Random streams against a model that sees the whole text at once. ---

struct Unit {
  std::size_t byte_begin = 0;
  std::size_t byte_end = 0;
  std::size_t text_end = 0;
};

struct Decoded {
  std::string text;
  std::vector<Unit> units;
};

// With Ending::kOpen an incomplete character at the end is not decoded.
enum class Ending { kOpen, kFinal };

Decoded decode(std::string_view bytes, Ending ending) {
  Decoded out;
  for (std::size_t pos = 0; pos < bytes.size();) {
    const Utf8Unit unit = decode_utf8(bytes.substr(pos));
    if (unit.state == Utf8State::kIncomplete && ending == Ending::kOpen) break;
    append_utf8(out.text, unit.code_point);
    out.units.push_back({.byte_begin = pos, .byte_end = pos + unit.length, .text_end = out.text.size()});
    pos += unit.length;
  }
  return out;
}

struct Match {
  std::size_t end = std::string::npos;
  std::size_t length = 0;
};

Match first_match(const std::string& text, const std::vector<std::string>& stops) {
  Match first;
  for (const std::string& stop : stops) {
    const std::size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const Match match{.end = begin + stop.size(), .length = stop.size()};
    if (match.end < first.end || (match.end == first.end && match.length > first.length)) first = match;
  }
  return first;
}

std::size_t held_bytes(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t held = 0;
  for (const std::string& stop : stops) {
    for (std::size_t size = 1; size < stop.size() && size <= text.size(); ++size) {
      if (text.ends_with(stop.substr(0, size))) held = std::max(held, size);
    }
  }
  return held;
}

class RandomStreams : public testing::TestWithParam<StopText> {
 protected:
  // Bytes of a small alphabet, so that stops occur, with characters of every length and some broken ones.
  std::string random_bytes() {
    static constexpr std::array<std::string_view, 14> kParts = {
        "a",        "b",    "a",    "b",        "ab",  " ", "\xC3\xA9", "\xE9\xBE\x9C", "\xF0\x9F\xA5\xB9",
        "\xF0\x9F", "\xC3", "\xFF", "\xE2\x82", "\x80"};
    std::string out;
    for (std::uint64_t n = random_() % 30; n > 0; --n) out += kParts[random_() % kParts.size()];
    return out;
  }

  std::vector<std::string> random_stops() {
    std::vector<std::string> stops;
    for (std::uint64_t n = random_() % 4; n > 0; --n) {
      static constexpr std::array<std::string_view, 7> kParts = {"a",      "b", "ab", "\xC3\xA9", "\xE9\xBE\x9C",
                                                                 "\uFFFD", " "};
      std::string stop;
      for (std::uint64_t k = 1 + random_() % 4; k > 0; --k) stop += kParts[random_() % kParts.size()];
      stops.push_back(stop);
    }
    return stops;
  }

  std::vector<std::string> random_cut(const std::string& bytes) {
    std::vector<std::string> tokens;
    for (std::size_t pos = 0; pos < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(random_() % 5, bytes.size() - pos);
      tokens.push_back(bytes.substr(pos, size));
      pos += size;
    }
    return tokens;
  }

  // The reply up to and with token `last`, seen at once.
  void check(const std::vector<std::string>& tokens, const std::vector<std::string>& stops);

  std::mt19937_64 random_{20240607};
};

void RandomStreams::check(const std::vector<std::string>& tokens, const std::vector<std::string>& stops) {
  const Reply reply = stream(tokens, stops, GetParam());
  std::string bytes;
  std::string joined;
  std::size_t released_tokens = 0;
  for (std::size_t i = 0; i <= tokens.size(); ++i) {
    const Ending ending = i == tokens.size() ? Ending::kFinal : Ending::kOpen;
    if (i < tokens.size()) bytes += tokens[i];
    joined += reply.pieces[i].text;
    ASSERT_EQ(valid_utf8_prefix(reply.pieces[i].text), reply.pieces[i].text.size());
    ASSERT_GE(reply.pieces[i].released_tokens, released_tokens);
    released_tokens = reply.pieces[i].released_tokens;

    const Decoded decoded = decode(bytes, ending);
    const Match match = first_match(decoded.text, stops);
    ASSERT_EQ(reply.pieces[i].stopped(), match.end != std::string::npos);
    if (match.end != std::string::npos) {
      const std::size_t cut = match.end - (GetParam() == StopText::kTrimmed ? match.length : 0);
      ASSERT_EQ(joined, decoded.text.substr(0, cut));
      // Bytes of characters that begin before the cut are shown; tokens with one of them count.
      std::size_t shown_bytes = 0;
      for (const Unit& unit : decoded.units) {
        if (unit.text_end <= cut) shown_bytes = unit.byte_end;
      }
      std::size_t expected = 0;
      for (std::size_t begin = 0, k = 0; k < std::min(i + 1, tokens.size()); begin += tokens[k].size(), ++k) {
        if (begin < shown_bytes || (tokens[k].empty() && begin == shown_bytes)) expected = k + 1;
        if (begin + tokens[k].size() > shown_bytes) break;
      }
      ASSERT_EQ(released_tokens, expected);
      return;
    }
    const std::size_t held = ending == Ending::kFinal ? 0 : held_bytes(decoded.text, stops);
    ASSERT_EQ(joined, decoded.text.substr(0, decoded.text.size() - held));
    std::size_t expected = 0;
    for (std::size_t end = 0; expected < std::min(i + 1, tokens.size()); ++expected) {
      end += tokens[expected].size();
      std::size_t text_end = 0;
      std::size_t decoded_bytes = 0;
      for (const Unit& unit : decoded.units) {
        if (unit.byte_begin < end) text_end = unit.text_end;
        decoded_bytes = unit.byte_end;
      }
      if (end > decoded_bytes || text_end > joined.size()) break;
    }
    ASSERT_EQ(released_tokens, expected);
  }
  ASSERT_EQ(released_tokens, tokens.size());
}

TEST_P(RandomStreams, agree_with_the_whole_text_at_every_token) {
  for (int round = 0; round < 20000 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const std::string bytes = random_bytes();
    const std::vector<std::string> stops = random_stops();
    check(random_cut(bytes), stops);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, RandomStreams, testing::Values(StopText::kTrimmed, StopText::kIncluded),
                         [](const auto& each) { return each.param == StopText::kTrimmed ? "trimmed" : "included"; });

}  // namespace
}  // namespace tandem
