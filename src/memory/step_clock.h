// Which steps were sent to each lane and which of them are over, as the front end itself knows it. This is the one
// answer to "may this block be reused?": a block waits for a mark, and it is reused when the mark has passed. Part of
// the pool, kept up by the scheduler, used by its thread alone. It never lies in shared memory: a worker that could
// write to it could have a block reused while another lane still reads it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "tandem/types.h"

namespace tandem {

// The newest step that names the blocks of a lease.
struct LastUse {
  LaneId lane;
  std::uint64_t step = 0;
};

// A step of each lane; 0: none of that lane. The mark has passed when these steps, and all before them, are over.
using StepMark = std::array<std::uint64_t, kMaxLanes>;

class StepClock final {
 public:
  // The lane's next step follows `last`. All steps up to `last` are over: an earlier front end sent them.
  void resume(LaneId lane, std::uint64_t last);
  // Numbers the lane's next step. It counts as running from now on, so the plan is sent after this.
  std::uint64_t issue(LaneId lane);
  // The lane's steps up to `step` access no block any more: the scheduler has read and checked the last one's result.
  void complete(LaneId lane, std::uint64_t step);
  // The same for all of its steps: the lane's process has ended and was reaped.
  void complete_all(LaneId lane);

  std::uint64_t issued(LaneId lane) const { return issued_[lane.value]; }
  std::uint64_t completed(LaneId lane) const { return completed_[lane.value]; }

  // All steps that were sent to any lane by now.
  const StepMark& now() const { return issued_; }
  // One lane's step alone.
  StepMark mark(LastUse last_use) const;
  bool passed(const StepMark& mark) const;

 private:
  StepMark issued_{};
  StepMark completed_{};
};

// Things in a line, each of which waits for a mark. The first leaves first: nothing leaves before what stands in front
// of it, so something may leave later than it could, and never earlier.
class StepLine final {
 public:
  void push(std::uint64_t count, const StepMark& mark);
  // How many leave now.
  std::uint64_t pop(const StepClock& clock);

 private:
  struct Batch {
    StepMark mark;
    std::uint64_t count = 0;
  };
  std::deque<Batch> batches_;
};

}  // namespace tandem
