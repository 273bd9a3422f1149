// What other threads tell the scheduler's, in order.
#pragma once

#include <memory>
#include <variant>

#include "sched/sequence.h"
#include "tandem/transport.h"
#include "tandem/types.h"

namespace tandem {

struct CancelMessage {
  SequenceId id;
};
struct FlushCacheMessage {};
struct LaneUpMessage {
  LaneId lane;
  std::unique_ptr<LanePort> port;
};
struct LaneDownMessage {
  LaneId lane;
};

using SchedulerMessage =
    std::variant<SequenceRequest, CancelMessage, FlushCacheMessage, LaneUpMessage, LaneDownMessage>;

}  // namespace tandem
