// The limits and shares that the configuration sets, with several clients at once, as the plans show them.
#include <algorithm>
#include <set>

#include "gtest/gtest.h"
#include "sched/turn_rig.h"

namespace tandem {
namespace {

using test::make_request;
using test::TurnRig;

class Limits : public ::testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Scheduler, Limits, ::testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

TEST_P(Limits, no_more_sequences_run_than_allowed) {
  TurnRig rig({.placement = GetParam(), .max_running = 3});
  for (std::uint64_t id = 1; id <= 8; ++id) {
    rig.submit_now(make_request(id, 2, 5));
    EXPECT_LE(rig.scheduler->load().running, 3U);
  }
  EXPECT_EQ(rig.scheduler->load().running + rig.scheduler->load().waiting, 8U);
  std::uint32_t most = 0;
  for (bool busy = true; busy;) {
    busy = false;
    for (std::uint32_t lane = 0; lane < rig.num_lanes(); ++lane) {
      if (rig.lane(lane).idle()) continue;
      rig.step(lane);
      busy = true;
      most = std::max(most, rig.scheduler->load().running);
    }
  }
  EXPECT_EQ(most, 3U);
  EXPECT_TRUE(rig.collector.wait_finished(8));
}

TEST_P(Limits, a_step_takes_no_more_prompt_tokens_than_a_chunk_has_over_all_prompts) {
  TurnRig rig({.placement = GetParam(), .chunk_tokens = 8});
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    requests.push_back(make_request(id, 3, 1));
    requests.back().arrival_us = static_cast<std::int64_t>(id);
  }
  ASSERT_TRUE(rig.submit(requests).ok());
  rig.scheduler->turn();
  ASSERT_TRUE(rig.finish_all());
  std::vector<std::size_t> tokens;
  std::vector<std::size_t> items;
  for (const Plan& plan : rig.prefill_lane().sent()) {
    tokens.push_back(plan.tokens.size());
    items.push_back(plan.items.size());
  }
  EXPECT_EQ(tokens, (std::vector<std::size_t>{8, 4}));
  EXPECT_EQ(items, (std::vector<std::size_t>{3, 2})) << "two whole prompts and the beginning of the third";
}

// Nobody is admitted before a step has tokens for him: until then somebody more urgent may come.
TEST_P(Limits, a_prompt_takes_no_blocks_before_a_step_can_begin_it) {
  TurnRig rig({.placement = GetParam(), .chunk_tokens = 8});
  rig.submit_now(make_request(1, 20, 1));
  rig.submit_now(make_request(2, 20, 1));
  EXPECT_EQ(rig.scheduler->load().running, 1U);
  rig.step(0);
  EXPECT_EQ(rig.scheduler->load().running, 1U) << "12 tokens are left of the first, 8 go into a step";
  rig.step(0);
  EXPECT_EQ(rig.scheduler->load().running, 2U);
  SequenceRequest urgent = make_request(3, 20, 1);
  urgent.priority = 1;
  rig.submit_now(urgent);
  rig.step(0);
  EXPECT_EQ(rig.prefill_lane().plans().front().items.front().sequence, SequenceId{3});
  EXPECT_TRUE(rig.finish_all());
}

TEST_P(Limits, a_plan_has_no_more_decodes_than_allowed) {
  TurnRig rig({.placement = GetParam(), .max_running = 4});
  for (std::uint64_t id = 1; id <= 4; ++id) rig.submit_now(make_request(id, 2, 20));
  ASSERT_TRUE(rig.finish_all());
  for (const Plan& plan : rig.decode_lane().sent()) EXPECT_LE(plan.items.size(), 4U);
}

// ---- shares -----------------------------------------------------------------------------------------------------

TEST(Shares, follow_the_work_from_step_to_step) {
  TurnRig rig({.num_units = 8});
  rig.submit_now(make_request(1, 6, 50));
  EXPECT_EQ(rig.prefill_lane().plans().back().share, (Share{0, 8})) << "nobody decodes";
  rig.step(0);
  EXPECT_EQ(rig.decode_lane().plans().back().share, (Share{0, 8})) << "nobody prefills";
  rig.submit_now(make_request(2, 20, 50));
  EXPECT_EQ(rig.prefill_lane().plans().back().share, (Share{0, 4}));
  rig.step(1);
  EXPECT_EQ(rig.decode_lane().plans().back().share, (Share{4, 4}));
  rig.scheduler->set_decode_units(6);
  EXPECT_EQ(rig.scheduler->decode_units(), 6);
  rig.step(1);
  EXPECT_EQ(rig.decode_lane().plans().back().share, (Share{2, 6}));
  rig.step(0);
  EXPECT_EQ(rig.prefill_lane().plans().back().share, (Share{0, 2}));
}

// A sequence that waits for a place or for blocks gives the prefill lane nothing to do: decode keeps every unit.
TEST(Shares, prompts_that_cannot_be_admitted_take_no_unit_from_decode) {
  for (const bool pool_is_full : {false, true}) {
    SCOPED_TRACE(pool_is_full ? "no blocks" : "no place");
    TurnRig rig({.num_blocks = pool_is_full ? 12U : 100U, .max_running = pool_is_full ? 16U : 1U, .num_units = 8});
    rig.submit_now(make_request(1, 8, 20));
    rig.step(0);
    rig.submit_now(make_request(2, 40, 2));
    for (int i = 0; i < 10; ++i) {
      rig.step(1);
      EXPECT_TRUE(rig.prefill_lane().idle());
      EXPECT_EQ(rig.decode_lane().plans().back().share, (Share{0, 8}));
    }
    EXPECT_EQ(rig.scheduler->load().waiting, 1U);
    EXPECT_TRUE(rig.finish_all());
    EXPECT_EQ(rig.collector.outcome(2).tokens.size(), 2U);
  }
}

// Nor do they end look-ahead where one lane does both.
TEST(Shares, prompts_that_cannot_be_admitted_do_not_stop_look_ahead) {
  TurnRig rig({.placement = Placement::kFused, .max_running = 1, .look_ahead_steps = 1});
  rig.submit_now(make_request(1, 8, 20));
  rig.step(0);
  rig.submit_now(make_request(2, 8, 2));
  for (int i = 0; i < 10; ++i) {
    rig.step(0);
    EXPECT_EQ(rig.lane(0).plans().size(), 2U);
  }
  EXPECT_TRUE(rig.finish_all());
}

// In one lane a prompt that can begin waits for the steps in flight and no longer.
TEST(Shares, a_prompt_that_can_begin_ends_look_ahead) {
  TurnRig rig({.placement = Placement::kFused, .look_ahead_steps = 3});
  rig.submit_now(make_request(1, 8, 20));
  rig.step(0);
  ASSERT_EQ(rig.lane(0).plans().size(), 4U);
  rig.submit_now(make_request(2, 8, 2));
  for (int i = 0; i < 4; ++i) rig.step(0);
  EXPECT_EQ(rig.lane(0).plans().back().items.back().sequence, SequenceId{2});
  EXPECT_TRUE(rig.finish_all());
}

// ---- preemption ---------------------------------------------------------------------------------------------------

// A sequence that needs a block when the pool is full takes it from a less urgent one, in the same turn.
TEST_P(Limits, a_preemption_costs_no_turn) {
  TurnRig rig({.num_blocks = 5, .placement = GetParam()});
  std::vector<SequenceRequest> requests{make_request(1, 7, 10), make_request(2, 7, 10)};
  requests[0].priority = 1;
  ASSERT_TRUE(rig.submit(requests).ok());
  rig.scheduler->turn();
  const std::uint32_t decode = rig.num_lanes() - 1;
  while (rig.metrics.scrape().find("num_preemptions_total 0") != std::string::npos) {
    const std::uint32_t lane = rig.lane(decode).idle() ? 0 : decode;
    ASSERT_FALSE(rig.lane(lane).idle());
    rig.step(lane);
  }
  ASSERT_FALSE(rig.lane(decode).idle());
  EXPECT_EQ(rig.lane(decode).plans().front().items.front().sequence, SequenceId{1});
  EXPECT_TRUE(rig.finish_all());
  for (const SequenceRequest& request : requests) {
    EXPECT_EQ(rig.collector.outcome(request.id.value).tokens, test::expected_output(request));
  }
}

}  // namespace
}  // namespace tandem
