// What a plan says of a request: every field of the request reaches the lane, in each kind of step that needs it.
#include "sched/plan_builder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "ipc/plan_codec.h"
#include "sched/turn_rig.h"

namespace tandem {
namespace {

using test::make_request;
using test::TurnRig;

constexpr float kNever = -std::numeric_limits<float>::infinity();

template <class T>
std::vector<T> run_of(const std::vector<T>& list, const Run& run) {
  return {list.begin() + run.begin, list.begin() + run.begin + run.count};
}

std::vector<std::pair<TokenId, float>> pairs(const std::vector<TokenLogprob>& list) {
  std::vector<std::pair<TokenId, float>> result;
  for (const TokenLogprob& each : list) result.emplace_back(each.token, each.logprob);
  return result;
}

std::vector<std::pair<TokenId, std::int32_t>> pairs(const std::vector<TokenCount>& list) {
  std::vector<std::pair<TokenId, std::int32_t>> result;
  for (const TokenCount& each : list) result.emplace_back(each.token, each.output_count);
  return result;
}

// Counts by hand what the penalties need.
std::vector<std::pair<TokenId, std::int32_t>> counts_of(const std::vector<TokenId>& prompt,
                                                        const std::vector<TokenId>& output) {
  std::map<TokenId, std::int32_t> counts;
  for (const TokenId token : prompt) counts[token];
  for (const TokenId token : output) ++counts[token];
  return {counts.begin(), counts.end()};
}

SequenceRequest with_every_field_set() {
  SequenceRequest request;
  request.id = SequenceId{7};
  SampleRow& sampling = request.sampling;
  sampling.temperature = 0.7F;
  sampling.top_p = 0.9F;
  sampling.min_p = 0.05F;
  sampling.top_k = 40;
  sampling.repetition_penalty = 1.1F;
  sampling.presence_penalty = 0.2F;
  sampling.frequency_penalty = 0.3F;
  sampling.seed = 1234;
  sampling.num_top_logprobs = 5;
  sampling.wants_logprob = true;
  test::set_prompt(request, {9, 4, 4, 100, 2, 9, 50, 51, 4, 3});
  request.bias = {{11, 1.5F}, {12, -2.0F}};
  request.max_tokens = 6;
  request.min_tokens = 3;
  request.stop_tokens = {115, 116};
  request.score_prompt = true;
  request.wants_logits = true;
  return request;
}

void expect_sampling(const SampleRow& sampling, std::uint64_t position) {
  EXPECT_EQ(sampling.temperature, 0.7F);
  EXPECT_EQ(sampling.top_p, 0.9F);
  EXPECT_EQ(sampling.min_p, 0.05F);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(sampling.presence_penalty, 0.2F);
  EXPECT_EQ(sampling.frequency_penalty, 0.3F);
  EXPECT_EQ(sampling.seed, 1234U);
  EXPECT_EQ(sampling.num_top_logprobs, 5);
  EXPECT_TRUE(sampling.wants_logprob);
  EXPECT_EQ(sampling.position, position);
}

TEST(PlanOfARequest, has_every_field_in_prefill_decode_and_ahead) {
  TurnRig rig({.look_ahead_steps = 1, .chunk_tokens = 8});
  const SequenceRequest request = with_every_field_set();
  const std::vector<TokenId>& prompt = request.prompt->tokens;
  rig.submit_now(request);

  // The first chunk samples nothing.
  ASSERT_EQ(rig.prefill_lane().plans().size(), 1U);
  const Plan first = rig.prefill_lane().plans().front();
  ASSERT_EQ(first.items.size(), 1U);
  EXPECT_EQ(first.items[0].sequence, request.id);
  EXPECT_EQ(first.items[0].position, 0U);
  EXPECT_EQ(run_of(first.tokens, first.items[0].tokens), std::vector<TokenId>(prompt.begin(), prompt.begin() + 8));
  EXPECT_EQ(run_of(first.targets, first.items[0].targets),
            std::vector<TokenId>(prompt.begin() + 1, prompt.begin() + 9));
  EXPECT_EQ(first.items[0].blocks.count, 2U);
  EXPECT_EQ(first.items[0].wants_sample, 0U);
  EXPECT_EQ(first.items[0].wants_logits, 0U);
  EXPECT_TRUE(first.bias.empty() && first.counts.empty() && first.stops.empty());

  // The last chunk does. Its last token has no target in the prompt.
  rig.step(0);
  ASSERT_EQ(rig.prefill_lane().plans().size(), 1U);
  const Plan last = rig.prefill_lane().plans().front();
  const PlanItem& item = last.items.at(0);
  EXPECT_EQ(item.position, 8U);
  EXPECT_EQ(run_of(last.tokens, item.tokens), (std::vector<TokenId>{4, 3}));
  EXPECT_EQ(run_of(last.targets, item.targets), (std::vector<TokenId>{3}));
  EXPECT_EQ(item.blocks.count, 3U);
  EXPECT_EQ(item.wants_sample, 1U);
  EXPECT_EQ(item.wants_logits, 1U);
  EXPECT_EQ(item.unknown_tokens, 0U);
  expect_sampling(item.sampling, 10);
  const std::vector<std::pair<TokenId, float>> banned{{11, 1.5F}, {12, -2.0F}, {115, kNever}, {116, kNever}};
  EXPECT_EQ(pairs(run_of(last.bias, item.bias)), banned);
  EXPECT_EQ(run_of(last.stops, item.stops), request.stop_tokens);
  EXPECT_EQ(pairs(run_of(last.counts, item.counts)), counts_of(prompt, {}));

  // A decode step, and the one that is sent ahead with it.
  rig.step(0);
  const std::vector<TokenId> output = rig.collector.outcome(7).tokens;
  ASSERT_EQ(output.size(), 1U);
  ASSERT_EQ(rig.decode_lane().plans().size(), 2U);
  for (std::uint32_t ahead = 0; ahead < 2; ++ahead) {
    SCOPED_TRACE(ahead);
    const Plan plan = rig.decode_lane().plans()[ahead];
    const PlanItem& step = plan.items.at(0);
    EXPECT_EQ(step.sequence, request.id);
    EXPECT_EQ(step.position, 10 + ahead);
    EXPECT_EQ(run_of(plan.tokens, step.tokens), ahead == 0 ? output : std::vector<TokenId>{});
    EXPECT_EQ(step.unknown_tokens, ahead);
    EXPECT_EQ(step.previous_index, 0U);
    EXPECT_EQ(step.targets.count, 0U);
    EXPECT_EQ(step.wants_sample, 1U);
    EXPECT_EQ(step.wants_logits, 0U);
    expect_sampling(step.sampling, 11 + ahead);
    EXPECT_EQ(pairs(run_of(plan.bias, step.bias)), banned);
    EXPECT_EQ(run_of(plan.stops, step.stops), request.stop_tokens);
    EXPECT_EQ(pairs(run_of(plan.counts, step.counts)), counts_of(prompt, output));
  }
}

// min_tokens 3: the stop tokens are banned for the tokens 1, 2 and 3, and for no other, with and without look-ahead.
TEST(PlanOfARequest, bans_stop_tokens_for_exactly_the_first_min_tokens) {
  for (const std::uint32_t look_ahead : {0U, 1U, kMaxLookAhead}) {
    SCOPED_TRACE(look_ahead);
    TurnRig rig({.look_ahead_steps = look_ahead});
    SequenceRequest request = make_request(1, 5, 6);
    request.min_tokens = 3;
    request.stop_tokens = {115};
    request.bias = {{11, 1.0F}};
    rig.submit_now(request);
    ASSERT_TRUE(rig.finish_all());
    std::vector<std::size_t> num_banned;
    for (const std::uint32_t lane : {0U, 1U}) {
      for (const Plan& plan : rig.lane(lane).sent()) {
        const auto bias = run_of(plan.bias, plan.items.at(0).bias);
        num_banned.push_back(bias.size() - 1);
        EXPECT_EQ(bias[0].token, 11);
      }
    }
    EXPECT_EQ(num_banned, (std::vector<std::size_t>{1, 1, 1, 0, 0, 0}));
  }
}

TEST(PlanOfARequest, counts_tokens_for_each_penalty_alone_and_for_none_without) {
  for (int penalty = 0; penalty < 4; ++penalty) {
    SCOPED_TRACE(penalty);
    TurnRig rig({});
    SequenceRequest request = make_request(1, 6, 4);
    if (penalty == 1) request.sampling.repetition_penalty = 0.9F;
    if (penalty == 2) request.sampling.presence_penalty = 0.1F;
    if (penalty == 3) request.sampling.frequency_penalty = -0.1F;
    rig.submit_now(request);
    ASSERT_TRUE(rig.finish_all());
    std::vector<TokenId> output = test::expected_output(request);
    output.pop_back();
    const Plan& newest = rig.decode_lane().sent().back();
    EXPECT_EQ(pairs(newest.counts), penalty == 0 ? counts_of({}, {}) : counts_of(request.prompt->tokens, output));
  }
}

// Preempted in the middle, a prompt is computed again and scored from where the scores ended.
TEST(PlanOfARequest, scores_no_prompt_token_twice_after_a_preemption) {
  TurnRig rig({.num_blocks = 9, .look_ahead_steps = 0});
  SequenceRequest urgent = make_request(1, 6, 20);
  urgent.priority = 1;
  rig.submit_now(urgent);
  rig.step(0);
  SequenceRequest scored = make_request(2, 20, 2);
  scored.score_prompt = true;
  rig.submit_now(scored);
  rig.step(0);
  ASSERT_FALSE(rig.collector.outcome(2).scores.empty());
  // The first one decodes on until it needs the blocks of the second, whose lane is between two steps.
  rig.prefill_lane().answer();
  while (!rig.decode_lane().idle()) rig.step(1);
  ASSERT_TRUE(rig.finish_all());
  EXPECT_NE(rig.metrics.scrape().find("num_preemptions_total 1"), std::string::npos);
  const auto outcome = rig.collector.outcome(2);
  ASSERT_EQ(outcome.scores.size(), 19U);
  for (std::size_t i = 0; i < outcome.scores.size(); ++i) EXPECT_EQ(outcome.scores[i], -static_cast<float>(i));
  EXPECT_EQ(outcome.tokens, test::expected_output(scored));
}

// item_bytes() is asked before an item is appended, so it must not say less than what the item then takes.
TEST(PlanBuilder, knows_the_bytes_of_an_item_before_it_makes_it) {
  const PlanBuilder builder({4, 8, 16, 1 << 20, 1 << 20, 100});
  test::HeapInstance instance(100, 4, 1);
  Sequence sequence;
  sequence.request = with_every_field_set();
  sequence.lease = *instance.pool->reserve(SequenceId{7}, 10, Phase::kDecode);
  sequence.output = {1, 100};
  sequence.output_counts = {{1, 1}, {100, 1}};
  for (const std::uint32_t num_tokens : {1U, 5U, 12U}) {
    SCOPED_TRACE(num_tokens);
    Plan plan;
    const std::size_t before = message_bytes(plan);
    builder.append(plan, sequence, num_tokens);
    const std::size_t bytes = message_bytes(plan) - before;
    EXPECT_LE(bytes, builder.item_bytes(sequence, num_tokens));
    EXPECT_GE(bytes + 16 * sizeof(TokenId) + 64, builder.item_bytes(sequence, num_tokens)) << "far more than needed";
  }
  sequence.computed = 11;
  sequence.steps_in_flight = 1;
  Plan plan;
  const std::size_t before = message_bytes(plan);
  builder.append_ahead(plan, sequence);
  EXPECT_LE(message_bytes(plan) - before, builder.item_bytes(sequence, 1));
}

TEST(PlanBuilder, counts_blocks_up_and_leaves_room_for_the_frame_of_a_message) {
  const PlanBuilder builder({4, 8, 16, 1000, 1000, 100});
  EXPECT_EQ(builder.blocks_for(0), 0U);
  EXPECT_EQ(builder.blocks_for(1), 1U);
  EXPECT_EQ(builder.blocks_for(4), 1U);
  EXPECT_EQ(builder.blocks_for(5), 2U);
  EXPECT_TRUE(builder.fits(1000 - 256));
  EXPECT_FALSE(builder.fits(1000 - 255));
}

}  // namespace
}  // namespace tandem
