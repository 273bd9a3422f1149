// When the blocks of a sequence that is over may be reused: after the sequence's own last step, whatever other lanes do
// and whatever a worker writes into shared memory.
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::drained;
using test::Rig;

constexpr LaneId kPrefillLane{0};
constexpr LaneId kDecodeLane{1};

bool dies(test::FakeLane& lane) {
  for (int i = 0; i < 5000 && !lane.dead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return lane.dead();
}

// With a prefix cache, whole blocks of the ended sequence stay cached; they too are to be had after its last step.
class CacheOrNot : public ::testing::TestWithParam<std::string> {};

TEST_P(CacheOrNot, decode_gets_the_blocks_of_another_decode_though_a_prefill_step_never_ends) {
  Rig rig(20, Placement::kSemi, 16, GetParam());
  rig.lanes[1]->step_time = std::chrono::milliseconds(2);
  SequenceRequest survivor = Rig::request(1, 4, 60);  // 16 blocks in the end
  SequenceRequest cancelled = Rig::request(2, 4, 60);
  SequenceRequest prompt = Rig::request(3, 7, 1);  // 2 blocks
  survivor.priority = 2;
  cancelled.priority = 1;
  prompt.priority = 3;
  ASSERT_TRUE(rig.scheduler->submit({survivor, cancelled}).ok());
  ASSERT_TRUE(rig.collector.wait(
      [](auto& outcomes) { return outcomes[1].tokens.size() > 4 && outcomes[2].tokens.size() > 4; }));
  rig.lanes[0]->die_in_next_step();
  ASSERT_TRUE(rig.scheduler->submit({prompt}).ok());
  ASSERT_TRUE(dies(*rig.lanes[0]));  // its step is under way as long as nobody says that its process has ended
  rig.scheduler->cancel(SequenceId{2});
  // Without the blocks of the cancelled sequence it never ends.
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[1].finished; }));
  EXPECT_EQ(rig.collector.outcome(1).tokens, Rig::expected(survivor));
  EXPECT_FALSE(rig.collector.outcome(3).finished);

  rig.scheduler->lane_down(kPrefillLane);
  rig.start_lane(kPrefillLane);
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[3].finished; }));
  EXPECT_EQ(rig.collector.outcome(3).tokens, Rig::expected(prompt));
  EXPECT_TRUE(drained(rig));
}

INSTANTIATE_TEST_SUITE_P(LeaseEnd, CacheOrNot, ::testing::Values("", "model"),
                         [](const auto& cache) { return cache.param.empty() ? "plain" : "cached"; });

std::uint64_t preemptions(Rig& rig) {
  const std::string text = rig.metrics.scrape();
  const std::string name = "num_preemptions_total ";
  const auto at = text.rfind(name);  // behind its help text
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
}

// Two sequences need all blocks of the pool, one of which is still named by the prefill step of a cancelled prompt.
TEST(LeaseEnd, decode_preempts_nobody_for_a_block_that_is_on_its_way) {
  Rig rig(6);
  rig.lanes[1]->step_time = std::chrono::milliseconds(200);
  const SequenceRequest first = Rig::request(1, 4, 8);  // 3 blocks in the end, and 2 for its first 5 tokens
  const SequenceRequest second = Rig::request(2, 4, 8);
  ASSERT_TRUE(rig.scheduler->submit({first, second}).ok());
  ASSERT_TRUE(rig.collector.wait(
      [](auto& outcomes) { return outcomes[1].tokens.size() > 1 && outcomes[2].tokens.size() > 1; }));
  rig.lanes[0]->die_in_next_step();
  ASSERT_TRUE(rig.scheduler->submit({Rig::request(3, 4, 1)}).ok());  // 1 block
  ASSERT_TRUE(dies(*rig.lanes[0]));
  rig.scheduler->cancel(SequenceId{3});
  rig.lanes[1]->step_time = std::chrono::milliseconds(1);
  ASSERT_TRUE(rig.collector.wait_finished(3));
  for (const SequenceRequest* request : {&first, &second}) {
    EXPECT_EQ(rig.collector.outcome(request->id.value).tokens, Rig::expected(*request));
  }
  EXPECT_EQ(preemptions(rig), 0U);
}

TEST(LeaseEnd, a_worker_that_claims_its_steps_are_over_frees_nothing) {
  Rig rig(40);
  SequenceRequest request = Rig::request(1, 10, 400);
  rig.lanes[1]->step_time = std::chrono::milliseconds(1);
  ASSERT_TRUE(rig.scheduler->submit({request}).ok());
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[1].tokens.size() > 2; }));
  rig.lanes[1]->die_in_next_step();
  ASSERT_TRUE(dies(*rig.lanes[1]));
  for (LaneCounters& lane : rig.control->lanes) lane.completed_step = std::numeric_limits<std::uint64_t>::max();
  rig.scheduler->cancel(SequenceId{1});
  for (std::uint64_t id = 2; id < 5; ++id) {  // the scheduler turns, and reclaims what it may
    ASSERT_TRUE(rig.scheduler->submit({Rig::request(id, 5, 1)}).ok());
    ASSERT_TRUE(rig.collector.wait([id](auto& outcomes) { return outcomes[id].finished; }));
  }
  EXPECT_GE(rig.ledger_usage().retiring, 3U) << "the step may still read and write them";
  rig.scheduler->lane_down(kDecodeLane);
  EXPECT_TRUE(drained(rig));
  EXPECT_EQ(rig.ledger_usage().retiring, 0U);
}

TEST(LeaseEnd, steps_are_numbered_on_where_the_server_before_ended) {
  test::HeapInstance instance(40, test::kBlockTokens, 1);
  instance.control->lanes[0].issued_step = 41;
  instance.control->lanes[0].completed_step = 40;
  test::Collector collector;
  SchedulerOptions options;
  options.placement = Placement::kFused;
  options.plan = {test::kBlockTokens, 8, 16, test::FakeLane::kPlanRingBytes};
  options.plan.vocab_size = test::kFakeVocab;
  Scheduler scheduler(options, *instance.pool, *instance.control, collector, instance.metrics,
                      [](LaneId, std::uint64_t) {});
  instance.start_lane(LaneId{0}, scheduler);
  scheduler.start();
  ASSERT_TRUE(scheduler.submit({Rig::request(1, 5, 1)}).ok());
  ASSERT_TRUE(collector.wait_finished(1));
  scheduler.stop(absl::UnavailableError("test over"));
  EXPECT_EQ(instance.control->lanes[0].issued_step, 42U);
  EXPECT_EQ(instance.control->lanes[0].completed_step, 42U);
  EXPECT_EQ(instance.pool->usage().free, 40U);
}

}  // namespace
}  // namespace tandem
