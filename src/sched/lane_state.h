// A lane as the scheduler sees it: its port while its worker lives, and the step it works on. Scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sched/scheduler_message.h"
#include "sched/sequence.h"
#include "tandem/transport.h"

namespace tandem {

struct LaneState {
  std::unique_ptr<LanePort> port;  // null: down
  std::uint64_t epoch = 0;         // whose port it is, or was
  std::optional<LaneUpMessage> next;  // takes over between two steps
  std::uint64_t step = 0;
  std::vector<Sequence*> in_flight;  // empty: idle
  std::vector<Sequence*> ended;      // those of a step that is over, while they are dealt with; kept for its memory
  Plan plan;
  Result result;
  std::int64_t sent_us = 0;
  std::uint64_t heartbeat = 0;  // last seen
  std::int64_t beat_us = 0;     // when it last changed, or the step was sent
};

}  // namespace tandem
