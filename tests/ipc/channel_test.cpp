#include "ipc/channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/status.h"
#include "ipc/shared_memory.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr ChannelSizes kSmall{.plan_ring_bytes = 4096, .result_ring_bytes = 4096};

Plan plan_of(std::uint64_t step, std::size_t num_tokens) {
  Plan plan;
  plan.step = step;
  plan.tokens.assign(num_tokens, static_cast<TokenId>(step % 1000));
  plan.items.emplace_back();
  plan.items[0].tokens.count = static_cast<std::uint32_t>(num_tokens);
  return plan;
}

Result result_of(const Plan& plan) {
  Result result;
  result.step = plan.step;
  result.logits.assign(plan.tokens.size(), static_cast<float>(plan.step % 1000));
  return result;
}

// A lane that answers `count` plans; returns how many it answered rightly.
int answer(WorkerPort& port, int count) {
  Plan plan;
  int answered = 0;
  while (answered < count) {
    const auto got = port.receive(plan, 5s);
    if (!got.ok() || !*got || plan.step != static_cast<std::uint64_t>(answered)) break;
    if (!port.send(result_of(plan)).ok()) break;
    ++answered;
  }
  return answered;
}

// The scheduler's side: keeps up to four plans ahead, waits on its doorbell.
void drive(LanePort& port, Doorbell& scheduler, int count) {
  Result result;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  while (received < static_cast<std::uint64_t>(count)) {
    const auto seen = scheduler.seen();
    while (sent < static_cast<std::uint64_t>(count) && sent < received + 4) {
      const absl::Status status = port.send(plan_of(sent, sent % 150));
      ASSERT_TRUE(status.ok()) << message(status);
      ++sent;
    }
    bool any = false;
    while (true) {
      const auto got = port.poll(result);
      ASSERT_TRUE(got.ok()) << message(got.status());
      if (!*got) break;
      ASSERT_EQ(result.step, received);
      ASSERT_EQ(result.logits, std::vector<float>(received % 150, static_cast<float>(received % 1000)));
      ++received;
      any = true;
    }
    if (!any) {
      ASSERT_TRUE(scheduler.wait(seen, 5s)) << "no result of step " << received;
    }
  }
}

class ChannelTest : public testing::TestWithParam<MemoryKind> {
 protected:
  ChannelTest() { EXPECT_TRUE(init_channel(memory_.bytes(), kSmall).ok()); }
  std::unique_ptr<LanePort> lane_port() { return make_lane_port(memory_.bytes()).value(); }
  std::unique_ptr<WorkerPort> worker_port(WorkerPortOptions options = {}) {
    return make_worker_port(memory_.bytes(), scheduler_, std::move(options)).value();
  }

  TestMemory memory_{GetParam(), channel_bytes(kSmall)};
  TestMemory bell_memory_{GetParam(), sizeof(Doorbell)};
  Doorbell& scheduler_ = *new (bell_memory_.bytes().data()) Doorbell;
};

TEST_P(ChannelTest, carries_plans_one_way_and_results_the_other) {
  const auto lane = lane_port();
  const auto worker = worker_port();
  Plan plan;
  Result result;
  EXPECT_FALSE(worker->receive(plan, 0ms).value());
  EXPECT_FALSE(worker->receive(plan, 5ms).value());
  EXPECT_FALSE(lane->poll(result).value());
  ASSERT_TRUE(lane->send(plan_of(1, 10)).ok());
  ASSERT_TRUE(lane->send(plan_of(2, 20)).ok());
  ASSERT_TRUE(worker->receive(plan, 0ms).value());
  EXPECT_EQ(plan.step, 1U);
  EXPECT_EQ(plan.tokens.size(), 10U);
  ASSERT_TRUE(worker->receive(plan, 0ms).value());
  EXPECT_EQ(plan.step, 2U);
  const auto seen = scheduler_.seen();
  ASSERT_TRUE(worker->send(result_of(plan)).ok());
  EXPECT_NE(scheduler_.seen(), seen) << "a result rings the scheduler";
  ASSERT_TRUE(lane->poll(result).value());
  EXPECT_EQ(result.step, 2U);
  EXPECT_EQ(result.logits.size(), 20U);
}

TEST_P(ChannelTest, says_when_it_is_full_and_when_a_message_never_fits) {
  const auto lane = lane_port();
  EXPECT_EQ(lane->send(plan_of(0, 2000)).code(), absl::StatusCode::kInvalidArgument);
  int sent = 0;
  absl::Status status;
  while ((status = lane->send(plan_of(0, 100))).ok()) ++sent;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(sent, 4);
  const auto worker = worker_port();
  Plan plan;
  ASSERT_TRUE(worker->receive(plan, 0ms).value());
  EXPECT_TRUE(lane->send(plan_of(0, 100)).ok());
  Result result;
  result.logits.resize(2000);
  EXPECT_EQ(worker->send(result).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ChannelTest, makes_a_lane_wait_for_room_and_give_up_in_the_end) {
  const auto lane = lane_port();
  const auto patient = worker_port();
  Result result;
  result.logits.resize(500);  // two of them are more than the ring
  ASSERT_TRUE(patient->send(result).ok());
  std::thread drain([&] {
    std::this_thread::sleep_for(20ms);
    Result got;
    while (lane->poll(got).value()) {
    }
  });
  EXPECT_TRUE(patient->send(result).ok());
  drain.join();
  const auto hasty = worker_port({.peer_alive = {}, .spin = 0us, .send_timeout = 5ms});
  absl::Status status;
  while ((status = hasty->send(result)).ok()) {
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(ChannelTest, is_unavailable_once_closed_but_loses_no_result) {
  const auto lane = lane_port();
  const auto worker = worker_port();
  ASSERT_TRUE(worker->send(result_of(plan_of(3, 4))).ok());
  ASSERT_TRUE(mark_closed(memory_.bytes()).ok());
  Plan plan;
  Result result;
  EXPECT_EQ(worker->receive(plan, 1s).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(worker->send(result).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lane->send(plan_of(4, 4)).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(lane->poll(result).value());
  EXPECT_EQ(result.step, 3U);
  EXPECT_EQ(lane->poll(result).status().code(), absl::StatusCode::kUnavailable);
  // Initialised anew for the next worker.
  ASSERT_TRUE(init_channel(memory_.bytes(), kSmall).ok());
  ASSERT_TRUE(lane_port()->send(plan_of(5, 4)).ok());
  ASSERT_TRUE(worker_port()->receive(plan, 0ms).value());
  EXPECT_EQ(plan.step, 5U);
}

TEST_P(ChannelTest, wakes_a_waiting_lane_for_a_plan_and_for_the_closing) {
  const auto lane = lane_port();
  const auto worker = worker_port();
  absl::StatusOr<bool> first = false;
  absl::StatusOr<bool> second = true;
  std::thread thread([&] {
    Plan plan;
    first = worker->receive(plan, 10s);
    second = worker->receive(plan, 10s);
  });
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(lane->send(plan_of(1, 1)).ok());
  std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(mark_closed(memory_.bytes()).ok());
  thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  EXPECT_TRUE(first.ok() && *first);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(ChannelTest, notices_a_scheduler_that_died_without_a_word) {
  int asked = 0;
  const auto worker = worker_port({.peer_alive = [&] { return ++asked < 2; }, .spin = 0us});
  Plan plan;
  EXPECT_EQ(worker->receive(plan, 10s).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(asked, 2);
}

TEST_P(ChannelTest, passes_many_steps_between_threads) {
  const auto lane = lane_port();
  const auto worker = worker_port();
  int answered = 0;
  std::thread thread([&] { answered = answer(*worker, 3'000); });
  drive(*lane, scheduler_, 3'000);
  thread.join();
  EXPECT_EQ(answered, 3'000);
}

INSTANTIATE_TEST_SUITE_P(Memory, ChannelTest, testing::Values(MemoryKind::kHeap, MemoryKind::kShared),
                         [](const auto& kind) { return kind.param == MemoryKind::kHeap ? "heap" : "shared"; });

TEST(Channel, passes_many_steps_between_processes) {
  const TestMemory memory(MemoryKind::kShared, channel_bytes(kSmall));
  const TestMemory bell(MemoryKind::kShared, sizeof(Doorbell));
  auto& scheduler = *new (bell.bytes().data()) Doorbell;
  ASSERT_TRUE(init_channel(memory.bytes(), kSmall).ok());
  ChildProcess child([&] {
    const auto worker = make_worker_port(memory.bytes(), scheduler).value();
    return answer(*worker, 3'000) == 3'000 ? 0 : 1;
  });
  const auto lane = make_lane_port(memory.bytes()).value();
  drive(*lane, scheduler, 3'000);
  EXPECT_EQ(child.join(), 0);
}

TEST(Channel, refuses_memory_that_holds_none) {
  const TestMemory memory(MemoryKind::kHeap, channel_bytes(kSmall));
  EXPECT_EQ(make_lane_port(memory.bytes()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(mark_closed(memory.bytes()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(init_channel(memory.bytes().first(4096), kSmall).ok());
  EXPECT_FALSE(init_channel(memory.bytes(), {.plan_ring_bytes = 5000, .result_ring_bytes = 4096}).ok());
  ASSERT_TRUE(init_channel(memory.bytes(), kSmall).ok());
  EXPECT_TRUE(make_lane_port(memory.bytes()).ok());
  EXPECT_FALSE(make_lane_port(memory.bytes().first(memory.bytes().size() - 1)).ok());
  // A damaged header names other sizes.
  const std::uint64_t huge = std::uint64_t{1} << 29;
  std::memcpy(memory.bytes().data() + 8, &huge, sizeof(huge));
  EXPECT_FALSE(make_lane_port(memory.bytes()).ok());
}

TEST(Channel, default_sizes_are_what_the_region_needs) {
  EXPECT_EQ(channel_bytes(), channel_bytes(ChannelSizes{}));
  EXPECT_GT(channel_bytes(), std::size_t{12} << 20);
}

}  // namespace
}  // namespace tandem
