#include "text/bpe.h"

#include <algorithm>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/status.h"
#include "text/merges.h"
#include "text_fixture.h"

namespace tandem {
namespace {

using Ids = std::vector<TokenId>;

class Bpe : public testing::Test {
 protected:
  static TokenizerSpec spec_of(const nlohmann::json& fixture, const std::string& variant) {
    TokenizerSpec spec;
    const auto append = [&spec](const nlohmann::json& texts, TokenKind kind) {
      for (const std::string text : texts) {
        spec.tokens.push_back(text);
        spec.kinds.push_back(kind);
      }
    };
    append(fixture["tokens"], TokenKind::kNormal);
    append(fixture["control"], TokenKind::kControl);
    append(fixture["user_defined"], TokenKind::kUserDefined);
    append(fixture["extra"], TokenKind::kNormal);
    for (const auto& merge : fixture["merges"]) spec.merges.emplace_back(merge[0], merge[1]);
    spec.pre_tokenizer = steps_of(fixture["variants"][variant]["steps"]);
    spec.ignore_merges = variant == "ignore_merges";
    spec.add_prefix_space = variant == "prefix_space";
    spec.normalizer = variant == "nfc" ? Normalizer::kNfc : Normalizer::kNone;
    return spec;
  }

  TokenizerSpec spec(const std::string& variant = "plain") const { return spec_of(fixture_, variant); }
  TokenId id_of(const std::string& text) const {
    const std::vector<std::string> tokens = spec().tokens;
    return static_cast<TokenId>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
  }
  static std::unique_ptr<Tokenizer> made(TokenizerSpec spec) {
    auto tokenizer = create_tokenizer(std::move(spec));
    EXPECT_TRUE(tokenizer.ok()) << message(tokenizer.status());
    return *std::move(tokenizer);
  }
  static std::string joined(const Tokenizer& tokenizer, const Ids& ids) {
    std::string out;
    for (const TokenId id : ids) out += tokenizer.token_bytes(id);
    return out;
  }
  // Creating from `spec` must fail with every one of `words` in the message.
  static void expect_refused(TokenizerSpec spec, const std::vector<std::string>& words) {
    const auto tokenizer = create_tokenizer(std::move(spec));
    ASSERT_FALSE(tokenizer.ok());
    for (const std::string& word : words) {
      EXPECT_NE(message(tokenizer.status()).find(word), std::string_view::npos)
          << word << " in: " << message(tokenizer.status());
    }
  }

  const nlohmann::json fixture_ = read_fixture("bpe.json");
};

TEST_F(Bpe, gives_the_ids_of_hugging_face) {
  for (const auto& [name, variant] : fixture_["variants"].items()) {
    const auto tokenizer = made(spec(name));
    for (std::size_t i = 0; i < fixture_["texts"].size(); ++i) {
      const std::string text = fixture_["texts"][i];
      const Ids ids = tokenizer->encode(text, {});
      EXPECT_EQ(ids, variant["ids"][i].get<Ids>()) << name << ": " << text;
      if (name == "plain" || name == "ignore_merges") {
        EXPECT_EQ(joined(*tokenizer, ids), text);
      }
    }
  }
}

TEST_F(Bpe, what_a_user_wrote_never_becomes_a_control_token) {
  const auto tokenizer = made(spec());
  for (const auto& entry : fixture_["user_spans"]) {
    std::vector<TextSpan> spans;
    for (const auto& span : entry[1]) spans.push_back({.begin = span[0], .end = span[1]});
    EXPECT_EQ(tokenizer->encode(entry[0].get<std::string>(), spans), entry[2].get<Ids>()) << entry[0];
  }
}

TEST_F(Bpe, a_raw_prompt_has_its_control_tokens_and_the_begin_and_end_tokens_asked_for) {
  TokenizerSpec with_ends = spec();
  with_ends.bos = id_of("<s>");
  with_ends.eos = id_of("<|im_end|>");
  with_ends.add_bos = true;
  with_ends.add_eos = true;
  const auto tokenizer = made(with_ends);
  const Ids ids = tokenizer->encode_prompt("Hi<|im_end|>x");
  ASSERT_GT(ids.size(), 4U);
  EXPECT_EQ(ids.front(), id_of("<s>"));
  EXPECT_EQ(ids.back(), id_of("<|im_end|>"));
  EXPECT_EQ(std::ranges::count(ids, id_of("<|im_end|>")), 2);
  EXPECT_EQ(joined(*tokenizer, ids), "<s>Hi<|im_end|>x<|im_end|>");
  EXPECT_EQ(tokenizer->encode_prompt("<s>Hi"), tokenizer->encode_prompt("Hi")) << "a begin token is not doubled";
  // A rendered template gets none: only what it wrote itself.
  EXPECT_EQ(tokenizer->encode("<s>Hi", {}).front(), id_of("<s>"));
  EXPECT_EQ(std::ranges::count(tokenizer->encode("<s>Hi", {}), id_of("<s>")), 1);
}

TEST_F(Bpe, token_bytes_are_raw_and_unknown_ids_empty) {
  TokenizerSpec with_unused = spec();
  with_unused.tokens.insert(with_unused.tokens.end(), {"[unused]", "[unused]", ""});
  with_unused.kinds.insert(with_unused.kinds.end(), {TokenKind::kUnused, TokenKind::kUnused, TokenKind::kUnused});
  const auto tokenizer = made(with_unused);
  EXPECT_EQ(tokenizer->token_bytes(id_of("Ġ")), " ");
  EXPECT_EQ(tokenizer->token_bytes(id_of("Ã")), "\xC3");
  EXPECT_EQ(tokenizer->token_bytes(id_of("é!")), "é!");  // added tokens are literal
  EXPECT_EQ(tokenizer->token_bytes(id_of("<|im_end|>")), "<|im_end|>");
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->vocab_size()), "");
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->vocab_size() - 2), "");
  EXPECT_EQ(tokenizer->kind(tokenizer->vocab_size()), TokenKind::kUnused);
  EXPECT_EQ(joined(*tokenizer, tokenizer->encode("[unused]", {})), "[unused]");
}

TEST_F(Bpe, every_end_of_generation_token_ends_it) {
  TokenizerSpec with_ends = spec();
  with_ends.eos = id_of("<|im_end|>");
  with_ends.end_of_generation = {id_of("<s>")};
  const auto tokenizer = made(with_ends);
  EXPECT_TRUE(tokenizer->ends_generation(id_of("<|im_end|>")));
  EXPECT_TRUE(tokenizer->ends_generation(id_of("<s>")));
  EXPECT_FALSE(tokenizer->ends_generation(id_of("Ġ")));
  EXPECT_FALSE(tokenizer->ends_generation(-1));
}

TEST_F(Bpe, ill_formed_text_comes_back_byte_by_byte) {
  std::mt19937_64 random(42);
  for (const char* const variant : {"plain", "ignore_merges", "nfc"}) {
    const auto tokenizer = made(spec(variant));
    for (int i = 0; i < 300; ++i) {
      std::string text(random() % 40, '\0');
      for (char& c : text) c = static_cast<char>(random());
      text += "\xFF";
      EXPECT_EQ(joined(*tokenizer, tokenizer->encode(text, {})), text);
    }
  }
}

TEST_F(Bpe, bytes_without_a_token_become_the_unknown_token_or_nothing_but_never_a_control_token) {
  TokenizerSpec without = spec();
  const TokenId missing = id_of("Ć");  // byte 0x06
  without.kinds[static_cast<std::size_t>(missing)] = TokenKind::kUnused;
  const Ids around = made(without)->encode(
      "a\x06"
      "b",
      {});
  EXPECT_EQ(around, (Ids{id_of("a"), id_of("b")}));
  without.unk = id_of("<s>");
  EXPECT_EQ(made(without)->encode("a\x06"
                                  "b",
                                  {}),
            around);
  without.unk = id_of("<tool_call>");
  EXPECT_EQ(made(without)->encode("a\x06"
                                  "b",
                                  {}),
            (Ids{id_of("a"), id_of("<tool_call>"), id_of("b")}));
}

TEST_F(Bpe, refuses_a_broken_spec_and_names_the_fault) {
  const auto changed = [this](auto change) {
    TokenizerSpec broken = spec();
    change(broken);
    return broken;
  };
  expect_refused({}, {"vocabulary is empty"});
  expect_refused(changed([](auto& s) { s.kinds.pop_back(); }), {"token kinds"});
  expect_refused(changed([](auto& s) { s.merges.insert(s.merges.begin() + 3, {"a", "nowhere"}); }),
                 {"merge 3", "\"nowhere\""});
  expect_refused(changed([](auto& s) { s.merges.emplace_back("a", "!"); }), {"\"a!\""});
  expect_refused(changed([](auto& s) { s.merges.emplace_back("<", "s>"); }), {"merge"});
  expect_refused(changed([](auto& s) { s.tokens.back() = s.tokens.front(); }), {"0 and"});
  expect_refused(changed([](auto& s) {
                   s.kinds[0] = TokenKind::kUnused;
                   s.merges.clear();
                 }),
                 {"byte 0x21"});
  expect_refused(changed([](auto& s) { s.eos = 1 << 20; }), {"end token", "1048576"});
  expect_refused(changed([](auto& s) { s.bos = -1; }), {"begin token", "-1"});
  expect_refused(changed([](auto& s) { s.end_of_generation = {1 << 20}; }), {"end-of-generation"});
  expect_refused(changed([](auto& s) { s.add_bos = true; }), {"begin token"});
  expect_refused(changed([](auto& s) { s.pre_tokenizer = {{.pattern = "(["}}; }), {"(["});
}

TEST_F(Bpe, megabytes_of_one_character_do_not_blow_up) {
  const auto tokenizer = made(spec());
  for (const std::string_view unit : {" ", "a", "\n", "<", "<|im_start|", "ab"}) {
    std::string text;
    while (text.size() < 500'000) text += unit;
    const Ids ids = tokenizer->encode(text, std::array{TextSpan{.begin = 0, .end = text.size()}});
    EXPECT_EQ(joined(*tokenizer, ids), text);
  }
}

TEST_F(Bpe, threads_share_one_tokenizer) {
  const auto tokenizer = made(spec());
  const std::string text = fixture_["texts"][3];
  const Ids expected = tokenizer->encode(text, {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) EXPECT_EQ(tokenizer->encode(text, {}), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The ten-line model: the lowest rank, leftmost, until none is left.
Ids merge_naively(Ids ids, const std::vector<std::array<TokenId, 3>>& merges) {
  while (true) {
    std::size_t best_rank = merges.size();
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank][0] == ids[i] && merges[rank][1] == ids[i + 1]) best_rank = rank, best_at = i;
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_at] = merges[best_rank][2];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(Merges, short_and_long_pieces_follow_the_model) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40; ++round) {
    // Tokens 0..2 are letters; every merge makes a new token of two earlier ones, ranks shuffled.
    std::vector<std::array<TokenId, 3>> merges;
    for (TokenId next = 3; next < 15; ++next) {
      const auto count = static_cast<std::uint64_t>(next);
      merges.push_back({static_cast<TokenId>(random() % count), static_cast<TokenId>(random() % count), next});
    }
    std::shuffle(merges.begin(), merges.end(), random);
    std::vector<std::array<TokenId, 3>> distinct;
    Merges tested;
    for (const auto& merge : merges) {
      const auto same = [&](const auto& m) { return m[0] == merge[0] && m[1] == merge[1]; };
      if (std::ranges::any_of(distinct, same)) continue;
      tested.add(merge[0], merge[1], {.rank = static_cast<std::uint32_t>(distinct.size()), .result = merge[2]});
      distinct.push_back(merge);
    }
    Merges::Scratch scratch;
    for (int i = 0; i < 60; ++i) {
      Ids ids(random() % 90);
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % 3);
      const Ids expected = merge_naively(ids, distinct);
      tested.apply(ids, scratch);
      ASSERT_EQ(ids, expected) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace tandem
