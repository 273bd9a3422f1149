// Who is told of a lane's workers: the scheduler, in a running instance. Called on the supervisor's thread; must not
// block.
#pragma once

#include <cstdint>
#include <memory>

#include "tandem/transport.h"
#include "tandem/types.h"

namespace tandem {

class LaneListener {
 public:
  virtual ~LaneListener() = default;
  // The worker of `epoch` is ready. Supervisor::lane_taken() is to be called once it is used and no earlier one is.
  virtual void lane_up(LaneId lane, std::uint64_t epoch, std::unique_ptr<LanePort> port) = 0;
  // The worker of `epoch`, which was ready, has ended and is reaped: it reads and writes nothing any more.
  virtual void lane_down(LaneId lane, std::uint64_t epoch) = 0;
  // The worker of `epoch` was killed and does not end. It may still read and write the blocks of its steps.
  virtual void lane_stuck(LaneId lane, std::uint64_t epoch) = 0;
};

}  // namespace tandem
