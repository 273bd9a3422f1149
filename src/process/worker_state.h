// A lane's processes as the supervisor sees them. The supervisor's thread adds and ends lives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/handles.h"
#include "base/process_state.h"
#include "process/child_process.h"
#include "tandem/transport.h"

namespace tandem {

// One process of a lane.
struct WorkerLife {
  std::uint64_t epoch = 0;
  ChildProcess process;
  std::shared_ptr<Mapping> channel;  // the other owner is the scheduler's port
  std::unique_ptr<LanePort> port;  // until it has said that it is ready
  std::int64_t started_us = 0;
  bool ready = false;
  std::optional<std::int64_t> superseded_us;  // since when it is to end
  StopDetector stop;
};

// A lane, whoever serves it.
struct WorkerState {
  std::vector<WorkerLife> lives;  // oldest first; two while one replaces the other
  std::uint64_t serving_epoch = 0;  // the life that the scheduler uses, or used last
  std::int64_t retry_at_us = 0;  // without a life: not before this
  std::uint32_t failures = 0;  // starts in a row that never got ready
  std::uint32_t restarts = 0;
  bool awaits_owner = false;  // the log says that no new one can start yet
  bool start_rejected = false;  // the last start ended by itself: what it was told is wrong, or this machine
};

}  // namespace tandem
