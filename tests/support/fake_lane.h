// A lane without a model, for scheduler tests. Its "keys and values" are the tokens themselves, kept per block as a
// real lane keeps KV; the next token is a hash of all it finds through the plan's block table. So a block that was
// given away too early, a chunk that was skipped or a hand-off that lost something changes the output.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "ipc/channel.h"
#include "ipc/control_page.h"
#include "support/fake_kv.h"
#include "tandem/transport.h"

namespace tandem::test {

// Runs on its own thread over a channel in heap memory until it is dropped or `die` is set: then it stops between
// writing its KV and answering, as a killed worker may.
class FakeLane {
 public:
  FakeLane(FakeKv& kv, ControlPage& control, LaneId lane)
      : kv_(kv), control_(control), lane_(lane), memory_((channel_bytes(sizes()) + 63) / 64) {
    init_channel(bytes(), sizes()).IgnoreError();
    thread_ = std::thread([this] { run(); });
  }
  ~FakeLane() {
    stop_ = true;
    thread_.join();
  }

  std::unique_ptr<LanePort> port() { return *make_lane_port(bytes()); }
  void die_in_next_step() { die_ = true; }
  bool dead() const { return dead_; }
  std::uint64_t steps() const { return steps_; }
  std::uint32_t largest_step() const { return largest_step_; }

  std::atomic<std::chrono::microseconds> step_time{std::chrono::microseconds(0)};

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static ChannelSizes sizes() { return {std::size_t{1} << 20, std::size_t{1} << 20}; }
  std::span<std::byte> bytes() { return {memory_.data()->bytes, memory_.size() * 64}; }

  void run() {
    auto port = *make_worker_port(bytes(), control_.scheduler);
    Plan plan;
    Result result;
    while (!stop_) {
      const auto received = port->receive(plan, std::chrono::milliseconds(20));
      if (!received.ok()) break;
      if (!*received) continue;
      result.clear();
      result.step = plan.step;
      for_blocks(plan, [this](SequenceId s, BlockId block, FakeKv::Use use) { kv_.begin_use(s, block, use); });
      for (const PlanItem& item : plan.items) run_item(plan, item, result);
      if (const auto time = step_time.load(); time.count() > 0) std::this_thread::sleep_for(time);
      for_blocks(plan, [this](SequenceId, BlockId block, FakeKv::Use use) { kv_.end_use(block, use); });
      ++steps_;
      largest_step_ = std::max<std::uint32_t>(largest_step_, static_cast<std::uint32_t>(plan.tokens.size()));
      if (die_) break;
      control_.lanes[lane_.value].completed_step.store(plan.step, std::memory_order_release);
      if (!port->send(result).ok()) break;
    }
    dead_ = true;
  }

  // Every block of a plan, and whether the step writes to it.
  template <class Visit>
  void for_blocks(const Plan& plan, const Visit& visit) {
    for (const PlanItem& item : plan.items) {
      for (std::uint32_t i = 0; i < item.blocks.count; ++i) {
        const bool writes = i >= item.position / kv_.block_tokens;
        visit(item.sequence, plan.blocks[item.blocks.begin + i], writes ? FakeKv::Use::kWrite : FakeKv::Use::kRead);
      }
    }
  }

  void run_item(const Plan& plan, const PlanItem& item, Result& result) {
    const auto block = [&](std::uint32_t at) { return plan.blocks[item.blocks.begin + at / kv_.block_tokens]; };
    for (std::uint32_t i = 0, at = item.position; i < item.tokens.count; ++i, ++at) {
      kv_.write(item.sequence, block(at), at, plan.tokens[item.tokens.begin + i]);
    }
    ResultItem& answer = result.items.emplace_back();
    answer.sequence = item.sequence;
    answer.scores = {static_cast<std::uint32_t>(result.scores.size()), item.targets.count};
    for (std::uint32_t i = 0; i < item.targets.count; ++i) {
      Sampled& score = result.scores.emplace_back();
      score.token = plan.targets[item.targets.begin + i];
      score.logprob = -static_cast<float>(item.position + i);
    }
    if (item.wants_sample == 0) return;
    std::vector<TokenId> seen;
    for (std::uint32_t at = 0; at < item.position + item.tokens.count; ++at) {
      seen.push_back(kv_.read(item.sequence, block(at), at));
    }
    answer.has_token = 1;
    answer.sampled.token = fake_next(seen);
    if (item.wants_logits != 0) {
      answer.logits = {static_cast<std::uint32_t>(result.logits.size()), 1};
      result.logits.push_back(static_cast<float>(answer.sampled.token));
    }
  }

  FakeKv& kv_;
  ControlPage& control_;
  LaneId lane_;
  std::vector<Line> memory_;
  std::atomic<bool> stop_{false}, die_{false}, dead_{false};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint32_t> largest_step_{0};
  std::thread thread_;
};

}  // namespace tandem::test
