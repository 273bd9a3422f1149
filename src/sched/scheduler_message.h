// The messages in the scheduler's inbox. Any thread posts them; the scheduler's thread takes them in order.
#pragma once

#include <cstdint>
#include <functional>
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
  std::uint64_t epoch;  // of the worker that the port leads to
  std::unique_ptr<LanePort> port;
  std::function<void()> taken;  // may be empty
};
struct LaneDownMessage {
  LaneId lane;
  std::uint64_t epoch;
};
struct LaneStuckMessage {
  LaneId lane;
  std::uint64_t epoch;
};

using SchedulerMessage = std::variant<std::unique_ptr<Sequence>, CancelMessage, FlushCacheMessage, LaneUpMessage,
                                      LaneDownMessage, LaneStuckMessage>;

}  // namespace tandem
