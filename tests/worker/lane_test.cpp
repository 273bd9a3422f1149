// A lane over the tiny model: what a plan says is what is computed, and a plan that cannot be is refused, not run.
#include "worker/lane.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "ipc/token_counts.h"
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

  std::vector<TokenId> generate(std::uint32_t depth, std::uint32_t count, const PlanItem& settings,
                                const std::vector<TokenId>& stops);

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

// Draws `count` tokens after `prompt`, one a step, with every token known (depth 0) or sent ahead.
std::vector<TokenId> LaneTest::generate(std::uint32_t depth, std::uint32_t count, const PlanItem& settings,
                                        const std::vector<TokenId>& stops) {
  const std::vector<TokenId> prompt{476, 465, 3};
  std::vector<TokenId> drawn;
  for (std::uint32_t step = 0; step < count; ++step) {
    const std::uint32_t unknown = std::min(depth, step);
    const std::uint32_t known = step - unknown;  // of the drawn ones
    std::vector<TokenId> tokens = prompt;
    if (step > 0) tokens = unknown > 0 ? std::vector<TokenId>() : std::vector<TokenId>{drawn.back()};
    Plan next = plan(tokens, step == 0 ? 0 : static_cast<std::uint32_t>(prompt.size()) + step - 1);
    next.step = step + 1;
    PlanItem& item = next.items[0];
    item.unknown_tokens = unknown;
    item.sampling = settings.sampling;
    item.sampling.position = prompt.size() + step;
    if (settings.sampling.presence_penalty != 0.0F) {
      for (const TokenId token : prompt) count_token(next.counts, 0, token, 0);
      for (std::uint32_t i = 0; i < known; ++i) count_token(next.counts, 0, drawn[i], 1);
      item.counts = {0, static_cast<std::uint32_t>(next.counts.size())};
    }
    next.stops = stops;
    item.stops = {0, static_cast<std::uint32_t>(stops.size())};
    lane->step(next, result_);
    EXPECT_EQ(result_.error, "");
    if (result_.items[0].has_token != 0) drawn.push_back(result_.items[0].sampled.token);
  }
  return drawn;
}

TEST_F(LaneTest, steps_sent_ahead_draw_what_steps_with_known_tokens_draw) {
  PlanItem greedy, drawn, penalised;
  drawn.sampling.temperature = 1.5F;
  drawn.sampling.seed = 7;
  penalised.sampling.presence_penalty = 1.5F;
  penalised.sampling.frequency_penalty = 0.7F;
  penalised.sampling.repetition_penalty = 1.3F;
  for (const PlanItem& settings : {greedy, drawn, penalised}) {
    const std::vector<TokenId> known = generate(0, 20, settings, {});
    ASSERT_EQ(known.size(), 20U);
    for (const std::uint32_t depth : {1U, 2U, kMaxLookAhead}) EXPECT_EQ(generate(depth, 20, settings, {}), known);
  }
  EXPECT_NE(generate(0, 20, penalised, {}), generate(0, 20, greedy, {})) << "or the counts are not tried";
}

TEST_F(LaneTest, what_was_sent_ahead_of_a_stop_token_is_not_run) {
  const std::vector<TokenId> all = generate(0, 20, {}, {});
  const TokenId stop = all[6];
  const std::vector<TokenId> until(all.begin(), std::ranges::find(all, stop) + 1);
  EXPECT_EQ(generate(3, 20, {}, {stop}), until);
  EXPECT_EQ(result_.items.size(), 1U) << "but answered";
}

TEST_F(LaneTest, a_step_sent_ahead_of_what_this_lane_did_not_draw_is_refused) {
  const auto ahead = [](std::uint64_t step, std::uint32_t position, std::uint32_t unknown_tokens = 1) {
    Plan next = plan({}, position);
    next.step = step;
    next.items[0].unknown_tokens = unknown_tokens;
    return next;
  };
  const auto refused = [this](const Plan& bad) {
    lane->step(plan({476, 465, 3}), result_);
    lane->step(bad, result_);
    EXPECT_EQ(result_.error, "");
    return result_.items[0].status == ItemStatus::kRefused && result_.items[0].has_token == 0;
  };
  EXPECT_FALSE(refused(ahead(2, 3)));
  EXPECT_TRUE(refused(ahead(3, 3))) << "a step between them is missing";
  EXPECT_TRUE(refused(ahead(2, 4))) << "another position";
  EXPECT_TRUE(refused(ahead(2, 3, 2))) << "it drew only one";
  Plan other = ahead(2, 3);
  other.items[0].sequence = SequenceId{9};
  EXPECT_TRUE(refused(other));
  other = ahead(2, 3);
  other.items[0].previous_index = 1;
  EXPECT_TRUE(refused(other));
  other = ahead(2, 3);
  other.tokens = {1};
  other.items[0].tokens = {0, 1};
  EXPECT_TRUE(refused(other)) << "a token that it says it does not know";
  // After a step that failed nothing goes on, and what does not depend on it is run.
  lane->step(plan({-1}), result_);
  Plan mixed = ahead(2, 1);
  testing::add_item(mixed, {476, 465, 3}, 0, 9, 2);
  lane->step(mixed, result_);
  EXPECT_EQ(result_.error, "");
  EXPECT_EQ(result_.items[0].has_token, 0U);
  EXPECT_EQ(result_.items[1].sampled.token, 391);
}

TEST_F(LaneTest, an_item_that_names_what_does_not_exist_is_refused_and_the_others_are_run) {
  const auto refused = [this](Plan bad) {
    testing::add_item(bad, {476, 465, 3}, 0, 9, 2);
    lane->step(bad, result_);
    EXPECT_EQ(result_.error, "");
    EXPECT_EQ(result_.items.size(), 2U);
    EXPECT_EQ(result_.items[1].status, ItemStatus::kOk);
    EXPECT_EQ(result_.items[1].sampled.token, 391) << "as alone";
    return result_.items[0].status == ItemStatus::kRefused && result_.items[0].has_token == 0;
  };
  EXPECT_TRUE(refused(plan({-1})));
  EXPECT_TRUE(refused(plan({model->spec().vocab_size})));
  EXPECT_TRUE(refused(plan({1}, 0, kNumBlocks)));
  EXPECT_TRUE(refused(plan({1}, 2 * kBlockTokens))) << "beyond its blocks";
  EXPECT_TRUE(refused(plan({1}, 0xFFFFFFFFU)));
  Plan target = plan({1});
  target.targets = {model->spec().vocab_size};
  target.items[0].targets = {0, 1};
  EXPECT_TRUE(refused(target));
  EXPECT_FALSE(refused(plan({1})));
}

TEST_F(LaneTest, a_plan_that_does_not_fit_the_lane_is_refused_as_a_whole) {
  const auto refused = [this](const Plan& bad) {
    lane->step(bad, result_);
    return !result_.error.empty();
  };
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

// Logits that are copied late, as by a device, have a place that does not move.
TEST_F(LaneTest, logits_of_several_items_come_with_their_items) {
  Plan both = plan({476, 465, 3});
  testing::add_item(both, {1, 2}, 0, 9, 2);
  for (PlanItem& item : both.items) item.wants_logits = 1;
  lane->step(both, result_);
  const auto vocab = static_cast<std::uint32_t>(model->spec().vocab_size);
  ASSERT_EQ(result_.logits.size(), 2 * vocab);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result_.items[i].logits.begin, i * vocab);
    EXPECT_EQ(result_.items[i].logits.count, vocab);
    const auto first = result_.logits.begin() + i * vocab;
    EXPECT_EQ(std::max_element(first, first + vocab) - first, result_.items[i].sampled.token) << i;
  }
}

TEST_F(LaneTest, weights_that_give_no_number_fail_the_item) {
  const std::size_t floats =
      static_cast<std::size_t>(
          KvView{nullptr, kv_layout(model->spec(), DType::kF32, kBlockTokens)}.layout.block_bytes()) /
      sizeof(float);
  lane->step(plan({476, 465, 3}), result_);
  std::fill_n(reinterpret_cast<float*>(memory.get()), floats * kNumBlocks, std::numeric_limits<float>::quiet_NaN());
  Plan broken = plan({5}, 3);
  testing::add_item(broken, {476, 465, 3}, 0, 9, 2);
  lane->step(broken, result_);
  EXPECT_EQ(result_.error, "");
  EXPECT_EQ(result_.items[0].status, ItemStatus::kNumeric);
  EXPECT_EQ(result_.items[0].has_token, 0U);
  EXPECT_EQ(result_.items[1].sampled.token, 391);
}

// The worker's end of a channel as Lane::run sees it: plans to give out, answers to keep.
class ScriptedPort final : public WorkerPort {
 public:
  absl::StatusOr<bool> receive(Plan& plan, std::chrono::milliseconds /*timeout*/) override {
    if (!end.ok()) return end;
    if (plans.empty()) return false;
    plan = std::move(plans.front());
    plans.erase(plans.begin());
    return true;
  }
  absl::Status send(const Result& result) override {
    const std::size_t size = result.items.size() * sizeof(ResultItem) + result.scores.size() * sizeof(Sampled) +
                             result.logits.size() * sizeof(float);
    if (size > room) return absl::InvalidArgumentError("larger than the ring");
    sent.push_back(result);
    return sending;
  }
  std::vector<Plan> plans;
  std::vector<Result> sent;
  absl::Status end, sending;
  std::size_t room = 1U << 20U;
};

TEST_F(LaneTest, runs_until_its_parent_is_gone_or_its_port_fails) {
  ScriptedPort port;
  port.plans = {plan({476, 465, 3}), plan({1})};
  port.plans[0].step = 5;
  EXPECT_TRUE(lane->run(port, [] { return false; }).ok()) << "an orderly end";
  ASSERT_EQ(port.sent.size(), 2U);
  EXPECT_EQ(port.sent[0].step, 5U);
  EXPECT_EQ(port.sent[0].items[0].sampled.token, 391);
  port.end = absl::UnavailableError("closed");
  EXPECT_TRUE(absl::IsUnavailable(lane->run(port, [] { return true; })));
  port.end = absl::OkStatus();
  port.plans = {plan({1})};
  port.sending = absl::ResourceExhaustedError("nobody reads");
  EXPECT_TRUE(absl::IsResourceExhausted(lane->run(port, [] { return true; })));
}

TEST_F(LaneTest, an_answer_too_large_for_its_message_fails_the_items_that_asked_for_it) {
  ScriptedPort port;
  port.room = 1000;
  Plan both = plan({476, 465, 3});
  testing::add_item(both, {1, 2}, 0, 9, 2);
  both.items[1].wants_logits = 1;  // more floats than fit
  port.plans = {both};
  EXPECT_TRUE(lane->run(port, [] { return false; }).ok());
  ASSERT_EQ(port.sent.size(), 1U);
  EXPECT_EQ(port.sent[0].items[0].status, ItemStatus::kOk);
  EXPECT_EQ(port.sent[0].items[0].sampled.token, 391);
  EXPECT_EQ(port.sent[0].items[1].status, ItemStatus::kTooLarge);
  EXPECT_EQ(port.sent[0].items[1].sequence, both.items[1].sequence);
  EXPECT_EQ(port.sent[0].items[1].has_token, 0U);
  EXPECT_TRUE(port.sent[0].logits.empty());
}

}  // namespace
}  // namespace tandem
