// After warm-up a step allocates nothing, from the scheduler's send() to its poll(): every operator new of this binary,
// on any thread, is counted.
#include <numeric>

#include "gtest/gtest.h"
#include "ipc/channel.h"
#include "support/allocations.h"
#include "worker/tiny_lane.h"

namespace tandem {
namespace {

using testing::TinyLane;

class StepCost : public ::testing::Test, protected TinyLane {
 protected:
  static constexpr ChannelSizes kSizes{std::size_t{1} << 16, std::size_t{1} << 16};
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  StepCost() : channel_((channel_bytes(kSizes) + 63) / 64) {
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(channel_));
    EXPECT_TRUE(init_channel(bytes, kSizes).ok());
    scheduler_port_ = *make_lane_port(bytes);
    worker_port_ = *make_worker_port(bytes, bell_);
  }

  // What scheduler and lane do for one step, on one thread.
  void run(const Plan& plan) {
    const bool sent = scheduler_port_->send(plan).ok();
    const bool received = worker_port_->receive(received_, std::chrono::milliseconds(100)).value_or(false);
    lane->step(received_, result_);
    const bool answered = worker_port_->send(result_).ok();
    ok_ = sent && received && answered && scheduler_port_->poll(polled_).value_or(false) && polled_.error.empty() &&
          polled_.items.size() == plan.items.size();
  }

  std::uint64_t allocations_of(const Plan& plan) {
    const std::uint64_t before = test::allocations_of_process();
    run(plan);
    const std::uint64_t count = test::allocations_of_process() - before;
    EXPECT_TRUE(ok_) << polled_.error;
    return count;
  }

  // Rows [position, position + rows) of each sequence; sequence i has blocks 4i to 4i + 3.
  static Plan plan_of(std::uint32_t sequences, std::uint32_t position, std::size_t rows) {
    Plan plan;
    plan.step = 1;
    std::vector<TokenId> tokens(rows);
    std::iota(tokens.begin(), tokens.end(), TokenId{3});
    for (std::uint32_t i = 0; i < sequences; ++i) testing::add_item(plan, tokens, position, 4 * i, 4);
    return plan;
  }

  std::vector<Line> channel_;
  Doorbell bell_;
  std::unique_ptr<LanePort> scheduler_port_;
  std::unique_ptr<WorkerPort> worker_port_;
  Plan received_;
  Result result_, polled_;
  bool ok_ = false;
};

TEST_F(StepCost, decode_steps_allocate_nothing_while_the_context_grows) {
  EXPECT_GT(allocations_of(plan_of(4, 0, 15)), 0U) << "the count works: warm-up does allocate";
  allocations_of(plan_of(4, 62, 1));
  for (std::uint32_t position = 15; position < 62; ++position) {
    ASSERT_EQ(allocations_of(plan_of(4, position, 1)), 0U) << "at position " << position;
    ASSERT_EQ(allocations_of(plan_of(1, position, 1)), 0U) << "of one sequence at position " << position;
  }
}

TEST_F(StepCost, prefill_steps_no_larger_than_one_before_allocate_nothing) {
  allocations_of(plan_of(1, 0, 60));
  allocations_of(plan_of(4, 32, 15));
  for (const std::size_t rows : {1U, 7U, 16U, 33U, 60U}) {
    EXPECT_EQ(allocations_of(plan_of(1, 0, rows)), 0U) << rows << " rows";
    EXPECT_EQ(allocations_of(plan_of(1, 4, rows)), 0U) << rows << " rows after others";
  }
  EXPECT_EQ(allocations_of(plan_of(4, 16, 15)), 0U);
}

TEST_F(StepCost, sampling_with_every_setting_and_scores_allocates_nothing) {
  Plan plan = plan_of(1, 0, 9);
  plan.targets.assign(plan.tokens.begin() + 1, plan.tokens.end());
  plan.bias = {{5, 1.0F}, {6, -1.0F}};
  plan.counts = {{5, 2}};
  PlanItem& item = plan.items[0];
  item.targets = {0, 8};
  item.bias = {0, 2};
  item.counts = {0, 1};
  item.wants_logits = 1;
  item.sampling.temperature = 0.8F;
  item.sampling.top_p = 0.9F;
  item.sampling.top_k = 20;
  item.sampling.wants_logprob = true;
  item.sampling.num_top_logprobs = 5;
  allocations_of(plan);
  EXPECT_EQ(allocations_of(plan), 0U);
}

}  // namespace
}  // namespace tandem
