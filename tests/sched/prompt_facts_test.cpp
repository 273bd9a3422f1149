#include "sched/prompt_facts.h"

#include <numeric>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "memory/prefix_key.h"
#include "sched/prefix_reuse.h"
#include "sched/test_requests.h"

namespace tandem {
namespace {

std::vector<TokenId> text(std::size_t num_tokens) {
  std::vector<TokenId> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), 3);
  return tokens;
}

TEST(PromptFacts, has_counts_only_for_a_penalty_and_names_only_with_a_root) {
  SampleRow plain;
  SampleRow penalty;
  penalty.presence_penalty = 0.5F;
  const PrefixKey root = prefix_root("model", "salt");
  EXPECT_TRUE(make_prompt_facts(text(9), plain, std::nullopt, 4).counts.empty());
  EXPECT_TRUE(make_prompt_facts(text(9), plain, std::nullopt, 4).keys.empty());
  const PromptFacts facts = make_prompt_facts(text(9), penalty, root, 4);
  EXPECT_EQ(facts.tokens, text(9));
  EXPECT_EQ(facts.counts.size(), 9U);
  EXPECT_EQ(facts.prefix_root, root);
  ASSERT_EQ(facts.keys.size(), 2U);
  EXPECT_EQ(facts.keys[0], prefix_key(root, std::span(facts.tokens).first(4)));
  EXPECT_EQ(facts.keys[1], prefix_key(facts.keys[0], std::span(facts.tokens).subspan(4, 4)));
  EXPECT_EQ(make_prompt_facts(text(8), plain, root, 4).keys.size(), 2U);
  EXPECT_EQ(make_prompt_facts(text(3), plain, root, 4).keys.size(), 0U);
}

TEST(PromptFacts, each_penalty_alone_wants_counts) {
  EXPECT_FALSE(wants_counts({}));
  for (int penalty = 0; penalty < 3; ++penalty) {
    SampleRow sampling;
    (penalty == 0   ? sampling.repetition_penalty
     : penalty == 1 ? sampling.presence_penalty
                    : sampling.frequency_penalty) = 0.5F;
    EXPECT_TRUE(wants_counts(sampling)) << penalty;
  }
}

// A sequence whose prompt was given to it, and the same text as prompt and output: one name for one text.
TEST(BlockNames, are_those_of_the_text_wherever_the_prompt_ends) {
  const PrefixKey root = prefix_root("model", "salt");
  const std::vector<TokenId> whole = text(22);
  const PromptFacts all = make_prompt_facts(whole, {}, root, 4);
  for (std::size_t prompt_tokens = 1; prompt_tokens <= whole.size(); ++prompt_tokens) {
    SCOPED_TRACE(prompt_tokens);
    Sequence sequence;
    const auto border = whole.begin() + static_cast<std::ptrdiff_t>(prompt_tokens);
    sequence.request.prompt =
        std::make_shared<const PromptFacts>(make_prompt_facts({whole.begin(), border}, {}, root, 4));
    sequence.output.assign(border, whole.end());
    for (std::uint32_t num_blocks = 1; num_blocks <= 5; ++num_blocks) {
      name_blocks(sequence, num_blocks, 4);
      ASSERT_GE(sequence.keys().size(), num_blocks);
    }
    EXPECT_EQ(std::vector(sequence.keys().begin(), sequence.keys().end()), all.keys);
    std::vector<TokenId> tokens;
    sequence.append_tokens(0, 22, tokens);
    EXPECT_EQ(tokens, whole);
    tokens.clear();
    sequence.append_tokens(5, 9, tokens);
    EXPECT_EQ(tokens, std::vector<TokenId>(whole.begin() + 5, whole.begin() + 9));
  }
}

// ---- leaders ------------------------------------------------------------------------------------------------------

Sequence sequence_of(std::vector<TokenId> tokens) {
  Sequence sequence;
  sequence.request.prompt =
      std::make_shared<const PromptFacts>(make_prompt_facts(std::move(tokens), {}, prefix_root("model", ""), 4));
  return sequence;
}

TEST(FindLeader, names_the_one_that_shares_most_and_how_much) {
  Sequence waiting = sequence_of(text(30));
  std::vector<TokenId> other_end = text(30);
  other_end[17] = 0;
  Sequence shares_four = sequence_of(other_end);
  other_end[9] = 0;
  Sequence shares_two = sequence_of(other_end);
  Sequence shares_none = sequence_of({1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(find_leader(waiting, {}, 4).sequence, nullptr);
  std::vector<Sequence*> prefilling{&shares_none};
  EXPECT_EQ(find_leader(waiting, prefilling, 4).sequence, nullptr);
  prefilling = {&shares_two, &shares_four, &shares_none};
  EXPECT_EQ(find_leader(waiting, prefilling, 4).sequence, &shares_four);
  EXPECT_EQ(find_leader(waiting, prefilling, 4).num_blocks, 4U);
  prefilling = {&shares_two};
  EXPECT_EQ(find_leader(waiting, prefilling, 4).num_blocks, 2U);
}

// The block of a prompt's last token is computed in any case: nobody waits for it.
TEST(FindLeader, waits_for_no_block_that_cannot_be_reused) {
  Sequence waiting = sequence_of(text(16));
  Sequence twin = sequence_of(text(16));
  std::vector<Sequence*> prefilling{&twin};
  EXPECT_EQ(find_leader(waiting, prefilling, 4).num_blocks, 3U);
  Sequence longer = sequence_of(text(17));
  EXPECT_EQ(find_leader(longer, prefilling, 4).num_blocks, 4U);
  Sequence short_one = sequence_of(text(4));
  EXPECT_EQ(find_leader(short_one, prefilling, 4).sequence, nullptr);
}

}  // namespace
}  // namespace tandem
