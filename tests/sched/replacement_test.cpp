// A lane's worker gives way to another one while it serves: fake lanes, the scheduler's side of a replacement.
#include <atomic>

#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::drained;
using test::FakeLane;
using test::Rig;

constexpr auto kStep = std::chrono::milliseconds(1);

template <class Condition>
bool eventually(const Condition& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(kStep);
  return condition();
}

class Replacement : public ::testing::TestWithParam<Placement> {
 protected:
  Replacement() : rig(400, GetParam()) {
    for (const auto& lane : rig.lanes) lane->step_time = kStep;
  }

  void submit(std::uint64_t count, std::uint32_t max_tokens) {
    for (std::uint64_t id = 1; id <= count; ++id) {
      requests.push_back(Rig::request(id, 10 + 3 * id, max_tokens));
      ASSERT_TRUE(rig.submit({requests.back()}).ok());
    }
  }
  // Nothing was lost and nothing happened twice.
  void expect_all_as_undisturbed() {
    ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
    for (const SequenceRequest& request : requests) {
      const auto outcome = rig.collector.outcome(request.id.value);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_EQ(outcome.tokens, Rig::expected(request));
    }
    EXPECT_TRUE(drained(rig));
  }
  std::unique_ptr<FakeLane> next_life(std::uint32_t lane) {
    auto next = std::make_unique<FakeLane>(rig.kv, *rig.control, LaneId{lane});
    next->step_time = kStep;
    return next;
  }
  std::uint32_t last_lane() const { return static_cast<std::uint32_t>(rig.lanes.size()) - 1; }
  std::size_t tokens_of(std::uint64_t id) { return rig.collector.outcome(id).tokens.size(); }

  Rig rig;
  std::vector<SequenceRequest> requests;
};
INSTANTIATE_TEST_SUITE_P(Scheduler, Replacement, ::testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

TEST_P(Replacement, under_load_costs_no_token_and_the_new_port_is_used_from_then_on) {
  submit(8, 120);
  std::uint64_t epoch = 0;
  int used = 0;
  const auto all_done = [&] { return rig.scheduler->load().running + rig.scheduler->load().waiting == 0; };
  for (int round = 0; round < 5; ++round) {
    for (std::uint32_t lane = 0; lane < rig.lanes.size(); ++lane) {
      std::unique_ptr<FakeLane> next = next_life(lane);
      std::atomic<bool> taken{false};
      rig.scheduler->lane_up(LaneId{lane}, next->port(), ++epoch, [&taken] { taken = true; });
      ASSERT_TRUE(eventually([&] { return taken.load(); }));
      const std::uint64_t steps = rig.lanes[lane]->steps();
      std::this_thread::sleep_for(3 * kStep);
      EXPECT_EQ(rig.lanes[lane]->steps(), steps) << "the old one has nothing to do any more";
      ASSERT_TRUE(lane != last_lane() || eventually([&] { return next->steps() > 0 || all_done(); }));
      used += next->steps() > 0 ? 1 : 0;
      rig.lanes[lane] = std::move(next);
    }
  }
  expect_all_as_undisturbed();
  EXPECT_GE(used, 1) << "on a slow machine the load may end before the last replacement";
}

TEST_P(Replacement, the_new_ones_death_before_it_took_over_changes_nothing) {
  rig.lanes[last_lane()]->step_time = 100 * kStep;  // so that it cannot take over before it dies
  submit(2, 20);
  ASSERT_TRUE(eventually([&] { return tokens_of(1) >= 2; }));
  std::atomic<bool> taken{false};
  std::this_thread::sleep_for(20 * kStep);
  {
    const auto next = next_life(last_lane());
    rig.scheduler->lane_up(LaneId{last_lane()}, next->port(), 7, [&taken] { taken = true; });
    rig.scheduler->lane_down(LaneId{last_lane()}, 7);
    rig.lanes[last_lane()]->step_time = kStep;
    ASSERT_TRUE(eventually([&] { return tokens_of(1) >= 5; }));
    EXPECT_EQ(next->steps(), 0U);
  }
  EXPECT_FALSE(taken);
  expect_all_as_undisturbed();
}

TEST_P(Replacement, the_old_ones_death_in_a_step_gives_its_sequences_to_the_new_one) {
  rig.scheduler->lane_down(LaneId{last_lane()});
  rig.lanes[last_lane()] = next_life(last_lane());
  rig.scheduler->lane_up(LaneId{last_lane()}, rig.lanes[last_lane()]->port(), 1);
  submit(4, 60);
  ASSERT_TRUE(eventually([&] { return tokens_of(1) >= 3; }));
  rig.lanes[last_lane()]->die_in_next_step();
  ASSERT_TRUE(eventually([&] { return rig.lanes[last_lane()]->dead(); }));
  std::unique_ptr<FakeLane> next = next_life(last_lane());
  std::atomic<bool> taken{false};
  rig.scheduler->lane_up(LaneId{last_lane()}, next->port(), 2, [&taken] { taken = true; });
  std::this_thread::sleep_for(5 * kStep);
  EXPECT_FALSE(taken) << "the step under way is not over before it is known that its process has ended";
  rig.scheduler->lane_down(LaneId{last_lane()}, 1);
  ASSERT_TRUE(eventually([&] { return taken.load(); }));
  rig.lanes[last_lane()] = std::move(next);
  expect_all_as_undisturbed();
}

TEST_P(Replacement, the_old_ones_end_after_the_new_one_took_over_is_no_loss) {
  submit(4, 60);
  std::unique_ptr<FakeLane> next = next_life(last_lane());
  std::atomic<bool> taken{false};
  rig.scheduler->lane_up(LaneId{last_lane()}, next->port(), 1, [&taken] { taken = true; });
  ASSERT_TRUE(eventually([&] { return taken.load(); }));
  rig.scheduler->lane_down(LaneId{last_lane()}, 0);
  rig.lanes[last_lane()] = std::move(next);
  expect_all_as_undisturbed();
  EXPECT_NE(rig.metrics.scrape().find("tandem_lane_losses_total 0"), std::string::npos);
}

}  // namespace
}  // namespace tandem
