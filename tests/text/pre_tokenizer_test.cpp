#include "text/pre_tokenizer.h"

#include <string>

#include <gtest/gtest.h>

#include "base/status.h"
#include "text_fixture.h"

namespace tandem {
namespace {

PreTokenizer made(const std::vector<PreTokenizerStep>& steps) {
  auto made = PreTokenizer::create(steps);
  EXPECT_TRUE(made.ok()) << message(made.status());
  return *std::move(made);
}

std::vector<std::string_view> split(const PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string_view> pieces;
  pre_tokenizer.split(text, pieces);
  return pieces;
}

PreTokenizerStep pattern(std::string_view text) {
  return {.kind = PreTokenizerStep::Kind::kSplit, .pattern = std::string(text)};
}

TEST(PreTokenizer, cuts_as_hugging_face_does) {
  for (const auto& group : read_fixture("pre_tokenizer.json")) {
    for (const auto& [name, expected] : group["patterns"].items()) {
      const PreTokenizer pre_tokenizer = made(steps_of(expected["steps"]));
      for (std::size_t i = 0; i < group["texts"].size(); ++i) {
        const std::string text = group["texts"][i];
        std::vector<std::size_t> sizes;
        for (const std::string_view piece : split(pre_tokenizer, text)) sizes.push_back(piece.size());
        EXPECT_EQ(sizes, expected["piece_bytes"][i].get<std::vector<std::size_t>>()) << name << ": " << text;
      }
    }
  }
}

TEST(PreTokenizer, without_steps_leaves_the_text_whole) {
  EXPECT_EQ(split(made({}), "a b"), (std::vector<std::string_view>{"a b"}));
  EXPECT_TRUE(split(made({}), "").empty());
}

TEST(PreTokenizer, keeps_every_byte_of_ill_formed_text) {
  const std::string text = "ab\xFF\xFE \xE2\x82 c\xF0\x9F\x98 \xED\xA0\x80 12\xC3";
  const PreTokenizerStep digits{.kind = PreTokenizerStep::Kind::kIndividualDigits, .pattern = {}};
  for (const std::vector<PreTokenizerStep>& steps :
       {std::vector{pattern(kGpt2Pattern)}, std::vector{digits, pattern(R"(\p{L}+|\s+|[^\s]+?)")},
        std::vector{pattern(R"(\w+)"), digits}}) {
    std::string joined;
    for (const std::string_view piece : split(made(steps), text)) {
      EXPECT_FALSE(piece.empty());
      joined += piece;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(PreTokenizer, empty_matches_and_gaps_make_no_empty_pieces) {
  EXPECT_EQ(split(made({pattern("x*")}), "axxb"), (std::vector<std::string_view>{"a", "xx", "b"}));
  EXPECT_EQ(split(made({pattern("")}), "ab"), (std::vector<std::string_view>{"ab"}));
  EXPECT_EQ(split(made({pattern(R"(a\Kb|b)")}), "abb"), (std::vector<std::string_view>{"a", "b", "b"}));
}

TEST(PreTokenizer, names_the_pattern_that_does_not_compile) {
  const auto broken = PreTokenizer::create(std::vector{pattern("a(b")});
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(message(broken.status()).find("a(b"), std::string_view::npos) << message(broken.status());
}

TEST(PreTokenizer, a_pattern_that_backtracks_without_bound_ends_in_one_last_piece) {
  const std::string text = "b" + std::string(200, 'a') + "!";
  const std::vector<std::string_view> pieces = split(made({pattern("b|(a|aa)+$")}), text);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].size(), 201U);
}

TEST(PreTokenizer, long_runs_take_linear_time) {
  for (const std::string_view unit : {" ", "a", "\n", "7", "<", " \n", "\xE9\xBE\x9C", "'s"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    for (const std::string_view each : {kGpt2Pattern, std::string_view(R"(\s+(?!\S)|\s+|[^\s\p{L}]+|\p{L}+)")}) {
      std::size_t size = 0;
      for (const std::string_view piece : split(made({pattern(each)}), text)) size += piece.size();
      EXPECT_EQ(size, text.size());
    }
  }
}

}  // namespace
}  // namespace tandem
