// What a scheduler needs, over heap memory and with fake lanes in threads: control page, ledger, pool.
#pragma once

#include <memory>
#include <vector>

#include "base/metrics.h"
#include "gtest/gtest.h"
#include "memory/kv_pool.h"
#include "sched/scheduler.h"
#include "support/fake_lane.h"

namespace tandem::test {

class HeapInstance {
 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static std::span<std::byte> span(std::vector<Line>& memory) { return {memory.data()->bytes, memory.size() * 64}; }
  std::vector<Line> control_memory_, ledger_memory_;  // outlive what lies over them
  std::vector<PrefixKey> names_;

 public:
  HeapInstance(std::uint32_t num_blocks, std::uint32_t block_tokens, std::uint32_t num_lanes)
      : control_memory_((sizeof(ControlPage) + 63) / 64),
        ledger_memory_((Ledger::bytes(num_blocks) + 63) / 64),
        names_(num_blocks),
        kv(num_blocks, block_tokens),
        lanes(num_lanes) {
    control = *init_control_page(span(control_memory_));
    EXPECT_TRUE(Ledger::init(span(ledger_memory_), num_blocks).ok());
    pool = *KvPool::create(span(ledger_memory_), {kSchedulerHolder, 1, names_});
  }

  // The lane's next life, which serves once the scheduler has its port. The memory of the one before stays, since the
  // scheduler may still look there.
  FakeLane& make_lane(LaneId lane) {
    if (lanes[lane.value]) ended_.push_back(std::move(lanes[lane.value]));
    lanes[lane.value] = std::make_unique<FakeLane>(kv, *control, lane);
    return *lanes[lane.value];
  }
  void start_lane(LaneId lane, Scheduler& scheduler) { scheduler.lane_up(lane, make_lane(lane).port()); }

  // What the ledger's words say.
  KvPoolUsage ledger_usage() { return read_kv_usage(std::as_bytes(std::span(ledger_memory_))).value(); }

  FakeKv kv;
  MetricRegistry metrics;
  ControlPage* control = nullptr;
  std::unique_ptr<KvPool> pool;
  std::vector<std::unique_ptr<FakeLane>> lanes;

 private:
  std::vector<std::unique_ptr<FakeLane>> ended_;
};

}  // namespace tandem::test
