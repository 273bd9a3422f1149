// Finds the sequence that kills workers. A step that was lost makes all its sequences suspects: they are split into two
// groups that run apart, each group is split again when its step is lost, and a sequence that is lost alone several
// times in a row is guilty. A sequence whose step ends well is a suspect no more. So one bad request among n costs
// about log2(n) workers and ends alone, and the others lose time only. Scheduler thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/sequence.h"
#include "tandem/policy.h"

namespace tandem {

class Suspects final {
 public:
  static constexpr std::uint32_t kMaxLoneLosses = 3;  // in a row: one may have been an accident

  // A step of these sequences was lost with its worker. Returns the one to be ended, if it was alone too often.
  Sequence* lost(std::span<Sequence* const> step);
  // A step of these sequences failed as a whole, and its worker lives. Returns the one to be ended, if it was alone.
  Sequence* failed(std::span<Sequence* const> step);
  // A step of the sequence ended well, or the sequence is over.
  void clear(Sequence& sequence);

  bool empty() const { return suspects_.empty(); }
  // The group of suspects that a lane of this duty may run next: that of the longest suspect that is admitted, in a
  // phase of the duty, and in no lane. 0: there is none.
  std::uint32_t next_group(const LaneDuty& duty) const;

 private:
  void split(std::span<Sequence* const> step);
  void suspect(Sequence& sequence, std::uint32_t group);

  std::vector<Sequence*> suspects_;  // longest first
  std::uint32_t last_group_ = 0;
};

}  // namespace tandem
