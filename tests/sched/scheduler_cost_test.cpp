// A token of a running sequence costs the scheduler's thread no allocation, but for the few of lists that double as
// the sequence grows. The listener is called on that thread and reads its count.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "sched/scheduler.h"
#include "support/allocations.h"
#include "support/heap_instance.h"

namespace tandem {
namespace {

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kTokens = 512;

class Counter final : public SequenceListener {
 public:
  void on_start(SequenceId, std::uint32_t) override {}
  void on_scores(SequenceId, std::span<const Sampled>, std::span<const float>) override {}
  void on_token(SequenceId, const Sampled&) override { at_token.push_back(test::allocations_of_thread()); }
  void on_finish(SequenceId, FinishReason, const absl::Status&) override { ++finished; }

  std::vector<std::uint64_t> at_token;  // the scheduler's thread writes until all have finished
  std::atomic<std::uint32_t> finished{0};
};

class SchedulerCost : public ::testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Placements, SchedulerCost, ::testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

TEST_P(SchedulerCost, tokens_cost_no_allocation) {
  constexpr std::uint32_t kSequences = 4;
  Counter counter;
  counter.at_token.reserve(std::size_t{kSequences} * kTokens);
  test::HeapInstance instance(400, kBlockTokens, GetParam() == Placement::kSemi ? 2 : 1);
  SchedulerOptions options;
  options.placement = GetParam();
  options.num_units = 2;
  options.max_running_sequences = 16;
  options.max_queued_sequences = 200;
  options.plan = {kBlockTokens, 64, 16};
  options.plan.vocab_size = test::kFakeVocab;
  Scheduler scheduler(options, *instance.pool, *instance.control, counter, instance.metrics,
                      [](LaneId, std::uint64_t) {});
  for (std::uint32_t lane = 0; lane < instance.lanes.size(); ++lane) instance.start_lane(LaneId{lane}, scheduler);
  scheduler.start();
  // All in one message: a plan that grew to its size late would count as cost.
  std::vector<SequenceRequest> requests(kSequences);
  for (std::uint32_t i = 0; i < kSequences; ++i) {
    requests[i].id = SequenceId{i + 1};
    requests[i].prompt = {1, 2, 3};
    requests[i].max_tokens = kTokens;
    requests[i].arrival_us = steady_now_us();
  }
  ASSERT_TRUE(scheduler.submit(std::move(requests)).ok());
  const std::int64_t deadline_us = steady_now_us() + 20'000'000;
  while (counter.finished < kSequences && steady_now_us() < deadline_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  scheduler.stop(absl::UnavailableError("test over"));
  instance.lanes.clear();
  ASSERT_EQ(counter.finished, kSequences);

  // From one token to the next, for all but the first and the last of them.
  const std::vector<std::uint64_t>& counts = counter.at_token;
  std::uint64_t costly = 0;
  for (std::size_t i = counts.size() / 8; i < counts.size() * 7 / 8; ++i) costly += counts[i] != counts[i - 1] ? 1 : 0;
  EXPECT_GT(counts[1] + counts.back(), 0U) << "the count works: sequences that start allocate";
  EXPECT_LE(costly, 6 * kSequences) << "of " << counts.size() << " tokens";
}

}  // namespace
}  // namespace tandem
