// Decode steps are sent before the results of those before them are read: the lane never waits for one, and nobody
// can tell from the output.
#include <algorithm>
#include <tuple>

#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::drained;
using test::Rig;

using Mode = std::tuple<Placement, std::uint32_t>;  // and look_ahead_steps

class LookAhead : public ::testing::TestWithParam<Mode> {
 protected:
  static constexpr std::uint32_t kBlocks = 400;

  LookAhead() : rig(kBlocks, std::get<0>(GetParam()), 16, "", std::get<1>(GetParam())) {}

  void submit(const SequenceRequest& request) {
    requests.push_back(request);
    ASSERT_TRUE(rig.submit({request}).ok());
  }
  void expect_all_as_alone() {
    ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
    for (const SequenceRequest& request : requests) {
      const auto outcome = rig.collector.outcome(request.id.value);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_EQ(outcome.tokens, Rig::expected(request)) << "sequence " << request.id.value;
    }
    EXPECT_TRUE(drained(rig));
  }
  test::FakeLane& decode_lane() { return *rig.lanes.back(); }
  static std::uint32_t depth() { return std::get<1>(GetParam()); }

  Rig rig;
  std::vector<SequenceRequest> requests;
};
INSTANTIATE_TEST_SUITE_P(Scheduler, LookAhead,
                         ::testing::Combine(::testing::Values(Placement::kSemi, Placement::kFused),
                                            ::testing::Values(0U, 1U, 3U, kMaxLookAhead)),
                         [](const auto& each) {
                           const char* placement = std::get<0>(each.param) == Placement::kSemi ? "semi" : "fused";
                           return fmt::format("{}_{}", placement, std::get<1>(each.param));
                         });

TEST_P(LookAhead, every_decode_step_but_the_first_is_there_before_the_lane_asks) {
  submit(Rig::request(1, 6, 60));
  expect_all_as_alone();
  // The prompt's step draws the first token, the first decode step is sent with it, the other 58 ahead.
  EXPECT_EQ(decode_lane().steps_ahead(), depth() == 0 ? 0U : 58U);
  EXPECT_LE(decode_lane().steps(), 60U) << "no step is sent for a token beyond max_tokens";
}

TEST_P(LookAhead, sequences_join_and_leave_at_any_step) {
  for (std::uint64_t id = 1; id <= 12; ++id) {
    submit(Rig::request(id, 1 + id * 5 % 17, 3 + static_cast<std::uint32_t>(id * 11 % 40)));
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  expect_all_as_alone();
}

TEST_P(LookAhead, a_stop_token_is_the_last_one) {
  for (std::uint64_t id = 1; id <= 6; ++id) {
    SequenceRequest request = Rig::request(id, 5 + id, 50);
    const std::vector<TokenId> all = Rig::expected(request);
    // In one of them it appears where the scheduler has sent further steps already, in others it never does.
    const std::size_t stop_at = 3 * id;
    request.stop_tokens = {all[stop_at]};
    const auto first = std::ranges::find(all, all[stop_at]);
    request.max_tokens = 50;
    ASSERT_TRUE(rig.submit({request}).ok());
    ASSERT_TRUE(rig.collector.wait([&](auto& outcomes) { return outcomes[id].finished; }));
    const auto outcome = rig.collector.outcome(id);
    EXPECT_EQ(outcome.reason, FinishReason::kStop);
    EXPECT_EQ(outcome.tokens, std::vector<TokenId>(all.begin(), first + 1));
  }
  EXPECT_TRUE(drained(rig));
}

TEST_P(LookAhead, a_cancelled_sequence_ends_at_once_and_its_blocks_after_its_steps) {
  decode_lane().step_time = std::chrono::milliseconds(30);
  submit(Rig::request(1, 6, 500));
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[1].tokens.size() >= 2; }));
  rig.scheduler->cancel(SequenceId{1});
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[1].finished; }));
  EXPECT_TRUE(drained(rig));
  const std::uint64_t completed = rig.control->lanes[rig.lanes.size() - 1].completed_step;
  EXPECT_EQ(completed, rig.control->lanes[rig.lanes.size() - 1].issued_step) << "nobody reads a block that is free";
}

TEST_P(LookAhead, a_death_with_steps_under_way_loses_no_token) {
  constexpr std::uint64_t kSteps = 15;  // of a life
  constexpr std::uint64_t kDeaths = 3;
  decode_lane().die_in_step(kSteps);
  for (std::uint64_t id = 1; id <= 6; ++id) submit(Rig::request(id, 4 + id, 80));
  for (std::uint64_t death = 1; death <= kDeaths; ++death) {
    for (int i = 0; i < 5000 && !decode_lane().dead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(decode_lane().dead());
    const LaneId lane{static_cast<std::uint32_t>(rig.lanes.size()) - 1};
    test::FakeLane& next = rig.make_lane(lane);
    if (death < kDeaths) next.die_in_step(kSteps);
    // In this order, so that the other lane has no time to do it all.
    rig.scheduler->lane_up(lane, next.port(), death);
    rig.scheduler->lane_down(lane, death - 1);
  }
  expect_all_as_alone();
}

TEST_P(LookAhead, a_pool_too_small_for_all_sends_nothing_ahead_that_it_has_no_blocks_for) {
  Rig small(24, std::get<0>(GetParam()), 16, "", depth());
  std::vector<SequenceRequest> all;
  for (std::uint64_t id = 1; id <= 8; ++id) {
    all.push_back(Rig::request(id, 9 + id, 40));
    ASSERT_TRUE(small.submit({all.back()}).ok());
  }
  ASSERT_TRUE(small.collector.wait_finished(all.size()));
  for (const SequenceRequest& request : all) {
    EXPECT_EQ(small.collector.outcome(request.id.value).tokens, Rig::expected(request));
  }
  EXPECT_TRUE(drained(small));
  const std::string metrics = small.metrics.scrape();
  EXPECT_NE(metrics.find("\ntandem_num_preemptions_total "), std::string::npos);
  EXPECT_EQ(metrics.find("\ntandem_num_preemptions_total 0\n"), std::string::npos) << "it was not too small";
}

class FullRing : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(LookAhead, FullRing, ::testing::Values(0U, 1U, kMaxLookAhead));

TEST_P(FullRing, sequences_that_do_not_all_fit_one_plan_take_turns) {
  static_assert(16 * 9000 * sizeof(TokenLogprob) > test::FakeLane::kPlanRingBytes);
  constexpr std::uint32_t kTokens = 60;
  Rig rig(4000, Placement::kSemi, 32, "", GetParam());
  rig.lanes[1]->step_time = std::chrono::milliseconds(4);
  std::vector<SequenceRequest> all;
  for (std::uint64_t id = 1; id <= 16; ++id) {
    all.push_back(Rig::request(id, 1, kTokens));
    all.back().bias.assign(9000, TokenLogprob{1, 0.0F});
  }
  ASSERT_TRUE(rig.submit(all).ok());
  std::size_t fewest = 0;
  ASSERT_TRUE(rig.collector.wait([&](auto& outcomes) {
    if (std::ranges::none_of(outcomes, [](const auto& each) { return each.second.finished; })) return false;
    fewest = kTokens;
    for (const auto& [id, outcome] : outcomes) fewest = std::min(fewest, outcome.tokens.size());
    return true;
  }));
  EXPECT_GE(fewest, kTokens / 3) << "when the first ended: one that is left out is in the next plan";
  // One that comes later and is urgent takes no turns.
  SequenceRequest urgent = all.front();
  urgent.id = SequenceId{17};
  urgent.priority = 1;
  urgent.arrival_us = steady_now_us();
  ASSERT_TRUE(rig.submit({urgent}).ok());
  all.push_back(urgent);
  ASSERT_TRUE(rig.collector.wait_finished(all.size()));
  for (const SequenceRequest& request : all) {
    EXPECT_EQ(rig.collector.outcome(request.id.value).tokens, Rig::expected(request));
  }
}

}  // namespace
}  // namespace tandem
