// The admitted sequences, by the phase of their next step, and how many blocks each phase holds. Every operation takes
// constant time. Owned by the scheduler, its thread alone. It decides nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/sequence.h"

namespace tandem {

class RunningSequences final {
 public:
  std::size_t size() const { return of(Phase::kPrefill).size() + of(Phase::kDecode).size(); }
  // In no order. Valid until the next add(), remove(), or update() of a sequence whose phase has changed.
  std::span<Sequence* const> of(Phase phase) const { return lists_[index(phase)]; }
  std::uint32_t num_blocks(Phase phase) const { return num_blocks_[index(phase)]; }
  std::vector<Sequence*> all() const;

  void add(Sequence& sequence);
  void remove(Sequence& sequence);
  // To be called when the sequence's tokens, computed or lease have changed.
  void update(Sequence& sequence);

 private:
  static std::size_t index(Phase phase) { return phase == Phase::kDecode ? 1 : 0; }

  std::array<std::vector<Sequence*>, 2> lists_;
  std::array<std::uint32_t, 2> num_blocks_{};
};

}  // namespace tandem
