#include "ipc/token_counts.h"

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

std::map<TokenId, std::int32_t> as_map(const std::vector<TokenCount>& counts) {
  std::map<TokenId, std::int32_t> result;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_TRUE(i == 0 || counts[i - 1].token < counts[i].token) << "in order, each token once";
    result[counts[i].token] = counts[i].output_count;
  }
  return result;
}

// Prompt and output counted apart and put together are what counting every token gives, also behind other lists.
TEST(TokenCounts, of_prompt_and_output_agree_with_a_map) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int vocab = 1 + static_cast<int>(random() % 60);
    std::vector<TokenId> prompt(random() % 40);
    for (TokenId& token : prompt) token = static_cast<TokenId>(random() % vocab);
    std::map<TokenId, std::int32_t> expected;
    for (const TokenId token : prompt) expected[token];
    const std::vector<TokenCount> prompt_counts = count_prompt(prompt);
    EXPECT_EQ(as_map(prompt_counts), expected);

    std::vector<TokenCount> outputs{{99, 7}, {3, 7}};  // another list's end
    for (std::size_t i = random() % 20; i-- > 0;) {
      const auto token = static_cast<TokenId>(random() % vocab);
      count_token(outputs, 2, token, 1);
      ++expected[token];
    }
    EXPECT_EQ(outputs[0].output_count + outputs[1].output_count, 14);
    outputs.erase(outputs.begin(), outputs.begin() + 2);
    std::vector<TokenCount> both{{5, 5}};
    append_counts(both, prompt_counts, outputs);
    EXPECT_EQ(both.front().output_count, 5);
    both.erase(both.begin());
    EXPECT_EQ(as_map(both), expected);
  }
}

}  // namespace
}  // namespace tandem
