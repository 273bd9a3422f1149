#include "sched/scheduler.h"

#include <map>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::Collector;
using test::drained;
using test::FakeLane;
using test::kBlockTokens;
using test::Rig;

class BothPlacements : public ::testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Scheduler, BothPlacements, ::testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

TEST_P(BothPlacements, many_sequences_get_the_tokens_each_would_get_alone) {
  Rig rig(400, GetParam());
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 40; ++id) requests.push_back(Rig::request(id, 1 + (id * 5) % 37, 1 + (id % 13)));
  for (const SequenceRequest& request : requests) ASSERT_TRUE(rig.submit({request}).ok());
  ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
  for (const SequenceRequest& request : requests) {
    const auto outcome = rig.collector.outcome(request.id.value);
    EXPECT_EQ(outcome.tokens, Rig::expected(request));
    EXPECT_EQ(outcome.reason, FinishReason::kLength);
    EXPECT_TRUE(outcome.status.ok());
  }
  EXPECT_TRUE(drained(rig));
}

TEST_P(BothPlacements, a_pool_far_too_small_for_all_delays_but_never_changes_the_output) {
  Rig rig(24, GetParam());  // 96 tokens for 20 sequences of up to 60
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 20; ++id) requests.push_back(Rig::request(id, 10 + id, 20 + id));
  for (const SequenceRequest& request : requests) ASSERT_TRUE(rig.submit({request}).ok());
  ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
  for (const SequenceRequest& request : requests) {
    EXPECT_EQ(rig.collector.outcome(request.id.value).tokens, Rig::expected(request));
  }
  EXPECT_NE(rig.metrics.scrape().find("tandem_num_preemptions_total"), std::string::npos);
  EXPECT_TRUE(drained(rig));
}

TEST_P(BothPlacements, a_stop_token_ends_a_sequence_unless_the_minimum_forbids_it) {
  Rig rig(100, GetParam());
  SequenceRequest request = Rig::request(1, 5, 30);
  const std::vector<TokenId> expected = Rig::expected(request);
  request.stop_tokens = {expected[3]};
  ASSERT_TRUE(rig.submit({request}).ok());
  ASSERT_TRUE(rig.collector.wait_finished(1));
  const auto outcome = rig.collector.outcome(1);
  EXPECT_EQ(outcome.reason, FinishReason::kStop);
  EXPECT_EQ(outcome.tokens, std::vector<TokenId>(expected.begin(), expected.begin() + 4));
}

TEST_P(BothPlacements, prompt_scores_arrive_in_order_once_even_after_preemption) {
  Rig rig(24, GetParam());
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) {
    requests.push_back(Rig::request(id, 25, 30));
    requests.back().score_prompt = true;
  }
  for (const SequenceRequest& request : requests) ASSERT_TRUE(rig.submit({request}).ok());
  ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
  for (const SequenceRequest& request : requests) {
    const auto outcome = rig.collector.outcome(request.id.value);
    ASSERT_EQ(outcome.scores.size(), 24U);
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(outcome.scores[i], -static_cast<float>(i));
    EXPECT_EQ(outcome.tokens, Rig::expected(request));
  }
}

TEST_P(BothPlacements, cancelling_in_every_phase_frees_the_blocks) {
  Rig rig(400, GetParam());
  // No sequence can end by itself before its cancel, however late this thread gets its turn.
  for (const auto& lane : rig.lanes) lane->step_time = std::chrono::milliseconds(2);
  for (std::uint64_t id = 1; id <= 60; ++id) {
    ASSERT_TRUE(rig.submit({Rig::request(id, 1 + id % 50, 1000)}).ok());
    if (id % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * (id % 7)));
    rig.scheduler->cancel(SequenceId{id});
  }
  ASSERT_TRUE(rig.collector.wait_finished(60));
  for (std::uint64_t id = 1; id <= 60; ++id) EXPECT_EQ(rig.collector.outcome(id).reason, FinishReason::kCancelled);
  EXPECT_TRUE(drained(rig));
}

TEST_P(BothPlacements, a_lane_that_dies_in_a_step_costs_no_token) {
  Rig rig(400, GetParam());
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 12; ++id) requests.push_back(Rig::request(id, 20 + id, 60));
  for (const SequenceRequest& request : requests) ASSERT_TRUE(rig.submit({request}).ok());
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t lane = 0; lane < rig.lanes.size(); ++lane) {
      rig.lanes[lane]->die_in_next_step();
      for (int i = 0; i < 300 && !rig.lanes[lane]->dead(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::unique_ptr<FakeLane> old = std::move(rig.lanes[lane]);
      rig.scheduler->lane_down(LaneId{lane});
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      rig.start_lane(LaneId{lane});
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
  for (const SequenceRequest& request : requests) {
    const auto outcome = rig.collector.outcome(request.id.value);
    // Three losses in a row may end a sequence; it then says so and its tokens so far are right.
    std::vector<TokenId> expected = Rig::expected(request);
    if (!outcome.status.ok()) expected.resize(outcome.tokens.size());
    EXPECT_EQ(outcome.tokens, expected);
  }
  EXPECT_TRUE(drained(rig));
}

TEST(Scheduler, the_other_lane_takes_over_while_one_is_down) {
  Rig rig(100);
  rig.lanes[1]->die_in_next_step();
  const SequenceRequest request = Rig::request(1, 10, 20);
  ASSERT_TRUE(rig.submit({request}).ok());
  for (int i = 0; i < 2000 && !rig.lanes[1]->dead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(rig.lanes[1]->dead());
  rig.scheduler->lane_down(kDecodeLane);
  ASSERT_TRUE(rig.collector.wait_finished(1));
  EXPECT_EQ(rig.collector.outcome(1).tokens, Rig::expected(request));
}

// Replaces lane 0 by one that dies in its first step.
void start_doomed_lane(Rig& rig) {
  rig.lanes[0] = std::make_unique<FakeLane>(rig.kv, *rig.control, LaneId{0});
  rig.lanes[0]->die_in_next_step();
  rig.scheduler->lane_up(LaneId{0}, rig.lanes[0]->port());
}

// Replaces lane 0 by one whose steps take time from the first one on.
void start_slow_lane(Rig& rig, std::chrono::microseconds step_time) {
  rig.lanes[0] = std::make_unique<FakeLane>(rig.kv, *rig.control, LaneId{0});
  rig.lanes[0]->step_time = step_time;
  rig.scheduler->lane_up(LaneId{0}, rig.lanes[0]->port());
}

// The dead stay: the scheduler reads their memory until it has heard of it.
using Graves = std::vector<std::unique_ptr<FakeLane>>;

void bury_lane(Rig& rig, Graves& graves) {
  for (int i = 0; i < 2000 && !rig.lanes[0]->dead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(rig.lanes[0]->dead());
  graves.push_back(std::move(rig.lanes[0]));
  rig.scheduler->lane_down(LaneId{0});
}

TEST(Scheduler, a_sequence_that_kills_every_lane_is_ended_and_others_go_on) {
  Graves graves;
  Rig rig(1000, Placement::kFused);
  rig.lanes[0]->die_in_next_step();
  ASSERT_TRUE(rig.submit({Rig::request(1, 10, 3000)}).ok());
  for (int loss = 0; loss < 2; ++loss) {
    bury_lane(rig, graves);
    start_doomed_lane(rig);
  }
  bury_lane(rig, graves);
  ASSERT_TRUE(rig.collector.wait_finished(1));
  EXPECT_EQ(rig.collector.outcome(1).status.code(), absl::StatusCode::kInternal);
  rig.start_lane(LaneId{0});
  const SequenceRequest next = Rig::request(2, 10, 5);
  ASSERT_TRUE(rig.submit({next}).ok());
  ASSERT_TRUE(rig.collector.wait_finished(2));
  EXPECT_EQ(rig.collector.outcome(2).tokens, Rig::expected(next));
}

TEST(Scheduler, a_long_sequence_outlives_any_number_of_lanes_while_it_gets_on) {
  Graves graves;
  Rig rig(1000, Placement::kFused);
  const SequenceRequest request = Rig::request(1, 10, 400);
  rig.lanes[0]->step_time = std::chrono::milliseconds(2);
  ASSERT_TRUE(rig.submit({request}).ok());
  for (int loss = 0; loss < 8; ++loss) {
    const std::uint64_t steps = rig.lanes[0]->steps();
    for (int i = 0; i < 2000 && rig.lanes[0]->steps() < steps + 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rig.lanes[0]->die_in_next_step();
    bury_lane(rig, graves);
    start_slow_lane(rig, std::chrono::milliseconds(2));
  }
  ASSERT_TRUE(rig.collector.wait_finished(1));
  EXPECT_EQ(rig.collector.outcome(1).tokens, Rig::expected(request));
  EXPECT_TRUE(rig.collector.outcome(1).status.ok());
}

TEST(Scheduler, a_full_queue_refuses_and_stop_ends_everything_with_its_status) {
  Rig rig(40, Placement::kSemi, 1);
  for (const auto& lane : rig.lanes) lane->step_time = std::chrono::milliseconds(5);
  absl::Status status;
  std::uint64_t accepted = 0;
  for (std::uint64_t id = 1; id <= 400 && status.ok(); ++id) {
    status = rig.submit({Rig::request(id, 5, 100)});
    if (status.ok()) ++accepted;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(accepted, 200U);
  rig.scheduler->stop(absl::UnavailableError("bye"));
  ASSERT_TRUE(rig.collector.wait_finished(accepted));
  EXPECT_EQ(rig.collector.outcome(accepted).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rig.submit({Rig::request(999, 5, 1)}).code(), absl::StatusCode::kUnavailable);
}

// Some are submitted just while others end: the count of those that wait must survive it.
TEST_P(BothPlacements, a_queue_with_room_refuses_nobody) {
  constexpr std::uint64_t kThreads = 8;
  constexpr std::uint64_t kTurns = 60;
  constexpr std::uint64_t kBurst = 4;
  Rig rig(400, GetParam(), 64);
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&rig, thread] {
      for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
        const std::uint64_t first = (thread * kTurns + turn) * kBurst + 1;
        for (std::uint64_t id = first; id < first + kBurst; ++id) {
          EXPECT_TRUE(rig.submit({Rig::request(id, 1, 1 + id % 3)}).ok());
        }
        for (std::uint64_t id = first; id < first + kBurst; ++id) {
          EXPECT_TRUE(rig.collector.wait([id](auto& outcomes) { return outcomes[id].finished; }));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(drained(rig));
}

TEST(Scheduler, a_short_prompt_passes_a_long_one) {
  Rig rig(400);
  rig.lanes[0]->step_time = std::chrono::milliseconds(5);
  ASSERT_TRUE(rig.submit({Rig::request(1, 800, 1)}).ok());
  ASSERT_TRUE(rig.submit({Rig::request(2, 8, 1)}).ok());
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[2].finished; }));
  EXPECT_FALSE(rig.collector.outcome(1).finished);
  ASSERT_TRUE(rig.collector.wait_finished(2));
  EXPECT_LE(rig.lanes[0]->largest_step(), 8U);
}

}  // namespace
}  // namespace tandem
