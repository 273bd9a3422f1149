// A scheduler without a thread, over heap memory and manual lanes: the test runs its turns and its lanes' steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sched/collector.h"
#include "sched/scheduler.h"
#include "sched/test_requests.h"
#include "support/heap_instance.h"
#include "support/manual_lane.h"

namespace tandem::test {

struct TurnRigOptions {
  std::uint32_t num_blocks = 100;  // one of them is the decode reserve
  Placement placement = Placement::kSemi;
  std::uint32_t max_running = 16;
  std::string prefix_identity = {};
  std::uint32_t look_ahead_steps = 0;
  std::uint32_t chunk_tokens = 8;
  std::uint16_t num_units = 8;
  std::size_t ring_bytes = std::size_t{1} << 20U;
};

class TurnRig : public HeapInstance {
 public:
  explicit TurnRig(TurnRigOptions options)
      : HeapInstance(options.num_blocks, kBlockTokens, options.placement == Placement::kSemi ? 2 : 1),
        manual_(lanes.size()),
        epochs_(lanes.size()) {
    SchedulerOptions scheduling;
    scheduling.placement = options.placement;
    scheduling.num_units = options.num_units;
    scheduling.max_running_sequences = options.max_running;
    scheduling.max_queued_sequences = 100'000;
    scheduling.plan = {kBlockTokens,       options.chunk_tokens,  options.max_running,
                       options.ring_bytes, std::size_t{1} << 20U, kFakeVocab};
    scheduling.look_ahead_steps = options.look_ahead_steps;
    scheduling.prefix_identity = options.prefix_identity;
    scheduler =
        std::make_unique<Scheduler>(scheduling, *pool, *control, collector, metrics, [](LaneId, std::uint64_t) {});
    for (std::uint32_t id = 0; id < lanes.size(); ++id) raise(id);
    scheduler->turn();
  }
  ~TurnRig() { scheduler.reset(); }  // before the lanes that its ports lead to

  // Of the lane that serves now.
  ManualLane& lane(std::uint32_t id) { return *manual_[id].back(); }
  ManualLane& prefill_lane() { return lane(0); }
  ManualLane& decode_lane() { return lane(static_cast<std::uint32_t>(lanes.size()) - 1); }
  std::uint32_t num_lanes() const { return static_cast<std::uint32_t>(lanes.size()); }
  bool up(std::uint32_t id) const { return up_[id]; }

  absl::Status submit(std::vector<SequenceRequest> requests, std::optional<std::string_view> salt = "") {
    return submit_prepared(*scheduler, std::move(requests), salt);
  }
  // Submits and runs the turn that hears of it.
  void submit_now(const SequenceRequest& request) {
    ASSERT_TRUE(submit({request}).ok());
    scheduler->turn();
  }
  // The lane's oldest step is over, and the scheduler has its turn.
  void step(std::uint32_t id) {
    ASSERT_FALSE(lane(id).idle()) << "lane " << id << " has no plan";
    lane(id).answer();
    scheduler->turn();
  }
  // Steps of all lanes, in turns, until nothing is in flight. False: still at it after `most` steps.
  bool finish_all(std::size_t most = 100'000) {
    for (std::size_t steps = 0; steps < most;) {
      bool busy = false;
      for (std::uint32_t id = 0; id < num_lanes(); ++id) {
        if (!up_[id] || lane(id).idle()) continue;
        busy = true;
        step(id);
        ++steps;
      }
      if (!busy) return true;
    }
    return false;
  }

  // The lane's worker ends and takes its plans with it; raise() starts the next one.
  void lose(std::uint32_t id) {
    up_[id] = false;
    scheduler->lane_down(LaneId{id}, epochs_[id]);
  }
  void raise(std::uint32_t id) {
    manual_[id].push_back(std::make_unique<ManualLane>(kv));
    up_[id] = true;
    scheduler->lane_up(LaneId{id}, manual_[id].back()->port(), ++epochs_[id]);
  }

  Collector collector;
  std::unique_ptr<Scheduler> scheduler;

 private:
  std::vector<std::vector<std::unique_ptr<ManualLane>>> manual_;  // by lane; the last one serves
  std::vector<std::uint64_t> epochs_;
  std::vector<bool> up_ = std::vector<bool>(kMaxLanes);
};

}  // namespace tandem::test
