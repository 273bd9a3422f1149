// The sequences that wait to be admitted and hold no blocks. Most of them stand in order of urgency. The others follow:
// they wait, out of that order, until a running sequence (their leader) has computed blocks that both share. Insert and
// erase take O(log n); nothing takes time while the queue does not change. Owned by the scheduler, its thread alone. It
// decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>

#include "sched/sequence.h"

namespace tandem {

class WaitingQueue final {
 public:
  std::size_t size() const { return ordered_.size() + num_following_; }
  // The most urgent sequence that follows nobody; null when there is none.
  Sequence* first() const { return ordered_.empty() ? nullptr : *ordered_.begin(); }

  void insert(Sequence& sequence, std::int64_t prefill_ns_per_token);
  void erase(Sequence& sequence);
  // `sequence`, which is in the order, follows `leader` until that one has published `num_blocks` blocks.
  void follow(Sequence& sequence, Sequence& leader, std::uint32_t num_blocks);
  // The leader has published its first `num_blocks` blocks: who waited for no more is in the order again.
  void release(Sequence& leader, std::uint32_t num_blocks);
  void release_all(Sequence& leader) { release(leader, UINT32_MAX); }
  // Makes the order anew, for another prefill speed.
  void reorder(std::int64_t prefill_ns_per_token);

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const { return more_urgent(a->queued_as, b->queued_as); }
  };
  using Ordered = std::set<Sequence*, Before>;
  struct Followers {
    Ordered ordered;
    std::uint32_t fewest_blocks = UINT32_MAX;  // that one of them waits for, at least
  };

  Ordered ordered_;
  std::unordered_map<Sequence*, Followers> followers_;  // by leader
  std::size_t num_following_ = 0;
};

}  // namespace tandem
