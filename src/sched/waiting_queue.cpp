#include "sched/waiting_queue.h"

#include <algorithm>
#include <optional>

#include "base/status.h"

namespace tandem {
namespace {

template <class Ordered>
std::optional<Urgency> first_urgency(const Ordered& ordered) {
  if (ordered.empty()) return std::nullopt;
  return (*ordered.begin())->queued_as;
}

template <class Ordered>
void order_anew(Ordered& ordered, std::int64_t prefill_ns_per_token) {
  const Ordered old = std::exchange(ordered, {});
  for (Sequence* sequence : old) sequence->queued_as = urgency_of(sequence->queue_view(), prefill_ns_per_token);
  for (Sequence* sequence : old) ordered.insert(sequence);
}

}  // namespace

void WaitingQueue::insert(Sequence& sequence, std::int64_t prefill_ns_per_token) {
  sequence.queued_as = urgency_of(sequence.queue_view(), prefill_ns_per_token);
  TANDEM_CHECK(ordered_.insert(&sequence).second, "a sequence waits once");
}

void WaitingQueue::erase(Sequence& sequence) {
  Sequence* const leader = sequence.leader;
  if (leader == nullptr) {
    TANDEM_CHECK(ordered_.erase(&sequence) == 1, "only a sequence that waits is erased");
    return;
  }
  const auto at = followers_.find(leader);
  at->second.ordered.erase(&sequence);
  leader->follower = first_urgency(at->second.ordered);
  if (at->second.ordered.empty()) followers_.erase(at);
  sequence.leader = nullptr;
  --num_following_;
}

void WaitingQueue::follow(Sequence& sequence, Sequence& leader, std::uint32_t num_blocks) {
  ordered_.erase(&sequence);
  Followers& followers = followers_[&leader];
  followers.ordered.insert(&sequence);
  followers.fewest_blocks = std::min(followers.fewest_blocks, num_blocks);
  leader.follower = first_urgency(followers.ordered);
  sequence.leader = &leader;
  sequence.awaited_blocks = num_blocks;
  ++num_following_;
}

void WaitingQueue::release(Sequence& leader, std::uint32_t num_blocks) {
  const auto at = followers_.find(&leader);
  if (at == followers_.end() || num_blocks < at->second.fewest_blocks) return;
  Followers& followers = at->second;
  followers.fewest_blocks = UINT32_MAX;
  std::erase_if(followers.ordered, [&](Sequence* sequence) {
    if (sequence->awaited_blocks > num_blocks) {
      followers.fewest_blocks = std::min(followers.fewest_blocks, sequence->awaited_blocks);
      return false;
    }
    sequence->leader = nullptr;
    ordered_.insert(sequence);
    --num_following_;
    return true;
  });
  leader.follower = first_urgency(followers.ordered);
  if (followers.ordered.empty()) followers_.erase(at);
}

void WaitingQueue::reorder(std::int64_t prefill_ns_per_token) {
  order_anew(ordered_, prefill_ns_per_token);
  for (auto& [leader, followers] : followers_) {
    order_anew(followers.ordered, prefill_ns_per_token);
    leader->follower = first_urgency(followers.ordered);
  }
}

}  // namespace tandem
