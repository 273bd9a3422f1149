// A lane over the tiny model: what a plan says is what is computed, and a plan that cannot be is refused, not run.
#include "worker/lane.h"

#include <numeric>

#include "gtest/gtest.h"
#include "worker/tiny_lane.h"

namespace tandem {
namespace {

using testing::TinyLane;

constexpr std::uint32_t kNumBlocks = TinyLane::kNumBlocks;
constexpr std::int32_t kBlockTokens = TinyLane::kBlockTokens;

class LaneTest : public ::testing::Test, protected TinyLane {
 protected:
  // One sequence's tokens from `position`, with two blocks, sampled greedily.
  static Plan plan(const std::vector<TokenId>& tokens, std::uint32_t position = 0, std::uint32_t first_block = 3) {
    Plan plan;
    plan.step = 1;
    testing::add_item(plan, tokens, position, first_block, 2);
    return plan;
  }

  Result result_;
};

TEST_F(LaneTest, a_step_answers_its_items_and_beats_with_every_layer) {
  lane->step(plan({476, 465, 3}), result_);
  ASSERT_EQ(result_.error, "");
  ASSERT_EQ(result_.items.size(), 1U);
  EXPECT_EQ(result_.items[0].sequence, SequenceId{8});
  EXPECT_EQ(result_.items[0].has_token, 1U);
  EXPECT_EQ(result_.items[0].sampled.token, 391) << "the recorded reference's argmax";
  EXPECT_GE(counters.heartbeat.load(), static_cast<std::uint64_t>(model->spec().num_layers));
}

TEST_F(LaneTest, a_step_run_twice_gives_the_same_answer) {
  lane->step(plan({476, 465, 3}), result_);
  const TokenId first = result_.items[0].sampled.token;
  lane->step(plan({first}, 3), result_);
  const TokenId second = result_.items[0].sampled.token;
  lane->step(plan({first}, 3), result_);  // as after the death of a worker between step and answer
  EXPECT_EQ(result_.items[0].sampled.token, second);
}

TEST_F(LaneTest, scores_and_logits_are_those_of_the_model_even_over_several_slices) {
  std::vector<TokenId> tokens{476, 465, 3, 346, 296, 325, 347, 509, 389};
  Plan scored = plan(tokens);
  scored.targets.assign(tokens.begin() + 1, tokens.end());
  scored.items[0].targets = {0, static_cast<std::uint32_t>(scored.targets.size())};
  scored.items[0].wants_logits = 1;
  lane->step(scored, result_);
  ASSERT_EQ(result_.error, "");
  ASSERT_EQ(result_.scores.size(), tokens.size() - 1) << "in slices of 4 rows";
  ASSERT_EQ(result_.logits.size(), static_cast<std::size_t>(model->spec().vocab_size));
  const auto best = std::max_element(result_.logits.begin(), result_.logits.end()) - result_.logits.begin();
  EXPECT_EQ(result_.items[0].sampled.token, best);
  for (const Sampled& score : result_.scores) EXPECT_LT(score.logprob, 0.0F);

  // The same score as the log-probability of a sample that bias forces to that token.
  Plan forced = plan({tokens.begin(), tokens.begin() + 6}, 0, 9);
  forced.items[0].sampling.wants_logprob = true;
  forced.bias = {{tokens[6], 1000.0F}};
  forced.items[0].bias = {0, 1};
  const float expected = result_.scores[5].logprob;
  lane->step(forced, result_);
  EXPECT_EQ(result_.items[0].sampled.token, tokens[6]);
  EXPECT_EQ(result_.items[0].sampled.logprob, expected);
}

TEST_F(LaneTest, a_chunk_that_samples_nothing_gives_no_token) {
  Plan chunk = plan({476, 465, 3});
  chunk.items[0].wants_sample = 0;
  lane->step(chunk, result_);
  EXPECT_EQ(result_.error, "");
  EXPECT_EQ(result_.items[0].has_token, 0U);
}

TEST_F(LaneTest, a_plan_that_names_what_does_not_exist_is_refused) {
  const auto refused = [this](const Plan& bad) {
    lane->step(bad, result_);
    return !result_.error.empty();
  };
  EXPECT_TRUE(refused(plan({-1})));
  EXPECT_TRUE(refused(plan({model->spec().vocab_size})));
  EXPECT_TRUE(refused(plan({1}, 0, kNumBlocks)));
  EXPECT_TRUE(refused(plan({1}, 2 * kBlockTokens))) << "beyond its blocks";
  EXPECT_TRUE(refused(plan({1}, 0xFFFFFFFFU)));
  EXPECT_TRUE(refused(plan(std::vector<TokenId>(65, 1)))) << "more rows than the lane has";
  Plan targets = plan({1});
  targets.targets = {1, 2};
  targets.items[0].targets = {0, 2};
  EXPECT_TRUE(refused(targets));
  Plan orphan = plan({1, 2});
  orphan.items[0].tokens.count = 1;
  EXPECT_TRUE(refused(orphan)) << "a token of no item";
  Plan share = plan({1});
  share.share = {100, 5000};
  EXPECT_TRUE(refused(share)) << "units that are not there";
  EXPECT_FALSE(refused(plan({1})));
}

}  // namespace
}  // namespace tandem
