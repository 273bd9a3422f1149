#include "memory/step_clock.h"

#include <algorithm>

#include "base/status.h"

namespace tandem {

void StepClock::resume(LaneId lane, std::uint64_t last) {
  TANDEM_CHECK(issued(lane) == completed(lane), "a lane's steps are numbered anew only while none is running");
  issued_[lane.value] = completed_[lane.value] = last;
}

std::uint64_t StepClock::issue(LaneId lane) { return ++issued_[lane.value]; }

void StepClock::complete(LaneId lane, std::uint64_t step) {
  TANDEM_CHECK(step <= issued(lane), "only a step that was sent can be over");
  completed_[lane.value] = std::max(completed(lane), step);
}

void StepClock::complete_all(LaneId lane) { completed_[lane.value] = issued_[lane.value]; }

StepMark StepClock::mark(LastUse last_use) const {
  TANDEM_CHECK(last_use.step <= issued(last_use.lane), "blocks are named by steps that were sent");
  StepMark mark{};
  mark[last_use.lane.value] = last_use.step;
  return mark;
}

bool StepClock::passed(const StepMark& mark) const {
  return std::ranges::equal(mark, completed_, std::ranges::less_equal{});
}

void StepLine::push(std::uint64_t count, const StepMark& mark) {
  if (count == 0) return;
  if (batches_.empty() || batches_.back().mark != mark) batches_.push_back({.mark = mark});
  batches_.back().count += count;
}

std::uint64_t StepLine::pop(const StepClock& clock) {
  std::uint64_t count = 0;
  for (; !batches_.empty() && clock.passed(batches_.front().mark); batches_.pop_front())
    count += batches_.front().count;
  return count;
}

}  // namespace tandem
