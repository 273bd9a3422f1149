// A scheduler over heap memory with fake lanes in threads. A block of its pool has 4 tokens, and a step takes 8 prompt
// tokens at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sched/collector.h"
#include "sched/scheduler.h"
#include "sched/test_requests.h"
#include "support/fake_kv.h"
#include "support/heap_instance.h"

namespace tandem::test {

class Rig : public HeapInstance {
 public:
  explicit Rig(std::uint32_t num_blocks, Placement placement = Placement::kSemi, std::uint32_t max_running = 16,
               std::string prefix_identity = "", std::uint32_t look_ahead_steps = 1)
      : HeapInstance(num_blocks, kBlockTokens, placement == Placement::kSemi ? 2 : 1) {
    SchedulerOptions options;
    options.placement = placement;
    options.num_units = 2;
    options.max_running_sequences = max_running;
    options.max_queued_sequences = 200;
    options.plan = {kBlockTokens, 8, max_running, FakeLane::kPlanRingBytes, std::size_t{1} << 19, kFakeVocab};
    options.look_ahead_steps = look_ahead_steps;
    options.prefix_identity = std::move(prefix_identity);
    scheduler = std::make_unique<Scheduler>(options, *pool, *control, collector, metrics, [](LaneId, std::uint64_t) {});
    for (std::uint32_t lane = 0; lane < lanes.size(); ++lane) start_lane(LaneId{lane});
    scheduler->start();
  }
  ~Rig() {
    scheduler->stop(absl::UnavailableError("test over"));
    lanes.clear();
    scheduler.reset();
  }

  void start_lane(LaneId lane) { HeapInstance::start_lane(lane, *scheduler); }

  static SequenceRequest request(std::uint64_t id, std::size_t prompt_tokens, std::uint32_t max_tokens) {
    return make_request(id, prompt_tokens, max_tokens);
  }
  static std::vector<TokenId> expected(const SequenceRequest& request) { return expected_output(request); }
  // With a salt the sequences share blocks with others of the same salt, if the rig has a prefix identity.
  absl::Status submit(std::vector<SequenceRequest> requests, std::optional<std::string_view> salt = "") {
    return submit_prepared(*scheduler, std::move(requests), salt);
  }

  Collector collector;
  std::unique_ptr<Scheduler> scheduler;
};

// Waits until the pool is empty again.
inline bool drained(Rig& rig) {
  for (int i = 0; i < 2000; ++i) {
    const SchedulerLoad load = rig.scheduler->load();
    if (load.kv_blocks_used == 0 && load.running == 0 && load.waiting == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace tandem::test
