#include "sched/server_counters.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::Rig;

TEST(ServerCounters, tell_prefill_from_decode_and_count_shared_blocks_for_each) {
  test::HeapInstance instance(16, test::kBlockTokens, 1);
  std::vector<Sequence> sequences(3);
  RunningSequences running;
  for (std::uint32_t i = 0; i < sequences.size(); ++i) {
    test::set_prompt(sequences[i].request, {1, 2, 3, 4, 5});
    sequences[i].lease = *instance.pool->reserve(SequenceId{i + 1}, 2, Phase::kPrefill);
    running.add(sequences[i]);
  }
  sequences[0].output.push_back(6);
  sequences[0].computed = 5;
  running.update(sequences[0]);
  ServerCounters counters;
  publish_counters(counters, running, 7, instance.pool->usage());
  EXPECT_EQ(counters.decode_sequences, 1U);
  EXPECT_EQ(counters.decode_blocks, 2U);
  EXPECT_EQ(counters.prefill_sequences, 2U);
  EXPECT_EQ(counters.prefill_blocks, 4U);
  EXPECT_EQ(counters.waiting_sequences, 7U);
  EXPECT_EQ(counters.evictable_blocks, 0U);
}

TEST(ServerCounters, follow_a_scheduler_from_request_to_request) {
  Rig rig(64, Placement::kSemi, 16, "a model");
  const ServerCounters& counters = rig.control->server;
  for (std::uint64_t round = 1; round <= 2; ++round) {
    SequenceRequest request = Rig::request(1, 41, 3);
    request.id = SequenceId{round};
    ASSERT_TRUE(rig.submit({request}).ok());
    ASSERT_TRUE(rig.collector.wait_finished(round));
    ASSERT_TRUE(test::drained(rig));
    EXPECT_EQ(counters.prefix_tokens_asked, round * 41);
    EXPECT_EQ(counters.prefix_tokens_hit, (round - 1) * 40);
  }
  rig.scheduler->stop(absl::UnavailableError("test over"));
  EXPECT_EQ(counters.decode_sequences, 0U);
  EXPECT_EQ(counters.prefill_blocks, 0U);
  EXPECT_EQ(counters.evictable_blocks, rig.pool->usage().published);
  EXPECT_GE(counters.evictable_blocks, 10U);
}

}  // namespace
}  // namespace tandem
