// A lane without a model, for scheduler tests: fake steps on a thread of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "ipc/channel.h"
#include "ipc/control_page.h"
#include "support/fake_kv.h"
#include "support/fake_steps.h"
#include "tandem/transport.h"

namespace tandem::test {

// Runs over a channel in heap memory until it is dropped or is to die: then it stops between writing its KV and
// answering, as a killed worker may.
class FakeLane {
 public:
  static constexpr std::size_t kPlanRingBytes = std::size_t{1} << 20;

  FakeLane(FakeKv& kv, ControlPage& control, LaneId lane)
      : control_(control), lane_(lane), memory_((channel_bytes(sizes()) + 63) / 64), fake_steps_(kv) {
    init_channel(bytes(), sizes()).IgnoreError();
    thread_ = std::thread([this] { run(); });
  }
  ~FakeLane() {
    stop_ = true;
    thread_.join();
  }

  std::unique_ptr<LanePort> port() { return *make_lane_port(bytes()); }
  void die_in_step(std::uint64_t step) { dies_in_step_ = step; }  // counted from 1; one that is over: the next
  void die_in_next_step() { die_in_step(0); }
  bool dead() const { return dead_; }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t steps_ahead() const { return steps_ahead_; }
  std::uint32_t largest_step() const { return largest_step_; }

  std::atomic<std::chrono::microseconds> step_time{std::chrono::microseconds(0)};

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static ChannelSizes sizes() { return {kPlanRingBytes, std::size_t{1} << 20}; }
  std::span<std::byte> bytes() { return {memory_.data()->bytes, memory_.size() * 64}; }

  void run() {
    auto port = *make_worker_port(bytes(), control_.scheduler);
    Plan plan;
    Result result;
    while (!stop_) {
      const auto received = port->receive(plan, std::chrono::milliseconds(20));
      if (!received.ok()) break;
      if (!*received) continue;
      fake_steps_.begin_use(plan);
      fake_steps_.run(plan, result);
      if (const auto time = step_time.load(); time.count() > 0) std::this_thread::sleep_for(time);
      fake_steps_.end_use(plan);
      ++steps_;
      if (std::ranges::any_of(plan.items, [](const PlanItem& item) { return item.unknown_tokens > 0; })) ++steps_ahead_;
      largest_step_ = std::max<std::uint32_t>(largest_step_, static_cast<std::uint32_t>(plan.tokens.size()));
      if (steps_ >= dies_in_step_) break;
      control_.lanes[lane_.value].heartbeat.fetch_add(1, std::memory_order_relaxed);
      if (!port->send(result).ok()) break;
    }
    dead_ = true;
  }

  ControlPage& control_;
  LaneId lane_;
  std::vector<Line> memory_;
  FakeSteps fake_steps_;
  std::atomic<bool> stop_{false}, dead_{false};
  std::atomic<std::uint64_t> dies_in_step_{std::numeric_limits<std::uint64_t>::max()};
  std::atomic<std::uint64_t> steps_{0}, steps_ahead_{0};
  std::atomic<std::uint32_t> largest_step_{0};
  std::thread thread_;
};

}  // namespace tandem::test
