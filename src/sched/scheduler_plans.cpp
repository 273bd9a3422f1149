// The planning part of a scheduler's turn: who is admitted, which sequences take part in a lane's next step, and what
// happens when the pool has no blocks for them.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"
#include "ipc/plan_codec.h"
#include "sched/prefix_reuse.h"
#include "sched/result_check.h"
#include "sched/scheduler.h"
#include "sched/server_counters.h"

namespace tandem {
namespace {

bool at_place(const std::vector<LaneStep::Item>& items, const Sequence& sequence) {
  return sequence.step_index < items.size() && items[sequence.step_index].sequence == &sequence;
}

// The lane's next worker takes over. Between two steps: the lane's counters have one writer at a time, and no result is
// lost.
void take_over(LaneState& lane) {
  lane.port = std::move(lane.next->port);
  lane.epoch = lane.next->epoch;
  if (lane.next->taken) lane.next->taken();
  lane.next.reset();
}

}  // namespace

PlacementView Scheduler::placement_view() const {
  PlacementView view;
  view.placement = options_.placement;
  view.num_units = options_.num_units;
  view.decode_units = decode_units();
  view.prefill_lane_up = lanes_[0].port != nullptr;
  view.decode_lane_up = lanes_.size() > 1 && lanes_[1].port != nullptr;
  view.prefilling = static_cast<std::uint32_t>(running_.of(Phase::kPrefill).size());
  view.decoding = static_cast<std::uint32_t>(running_.of(Phase::kDecode).size());
  return view;
}

// One decision for all lanes of a turn: first admission, then the view, then each lane's plan under its duty.
bool Scheduler::send_plans() {
  for (LaneState& lane : lanes_) {
    if (lane.in_flight.empty() && lane.next) take_over(lane);
  }
  pool_.reclaim();
  admit_waiting();
  const PlacementView view = placement_view();
  bool progress = false;
  // The decode lane plans first: its sequences hold their blocks already and their clients are being served.
  for (std::uint32_t back = 0; back < lanes_.size(); ++back) {
    const LaneId id{static_cast<std::uint32_t>(lanes_.size()) - 1 - back};
    LaneState& lane = lanes_[id.value];
    while (lane.port && make_plan(id, lane, view)) {
      send_plan(id, lane);
      progress = true;
    }
  }
  return progress;
}

// Makes the plan of the lane's next step, if there is one. While the lane is at work that is the decode step after
// those it has, and only as long as it does nothing else: prompts and the lane's next worker wait for no more than the
// steps in flight.
bool Scheduler::make_plan(LaneId id, LaneState& lane, const PlacementView& view) {
  lane.plan.clear();
  lane.planned.items.clear();
  lane.planned.answer_bytes = 0;
  lane.planned.decodes = lane.planned.continues_decode = false;
  lane.planned.prefill_tokens = lane.planned.num_tokens = 0;
  const LaneDuty duty = lane_duty(view, id);
  lane.plan.share = duty.share;
  if (lane.in_flight.empty()) {
    // Suspects and others take turns. When those whose turn it is have nothing that can run, it is the others' turn.
    const std::uint32_t suspects = suspects_.next_group(duty);
    group_ = lane.suspects_last ? 0 : suspects;
    compose(id, lane, duty);
    if (lane.planned.items.empty() && suspects != 0) {
      group_ = group_ == 0 ? suspects : 0;
      compose(id, lane, duty);
    }
    lane.suspects_last = group_ != 0;
  } else if (suspects_.empty() && lane.in_flight.size() <= options_.look_ahead_steps && duty.decode && !lane.next &&
             lane.in_flight.back().prefill_tokens == 0 && !(duty.prefill && view.prefilling > 0)) {
    add_decodes_ahead(id, lane);
  }
  return !lane.planned.items.empty();
}

// Fills the plan from the sequences of group_.
void Scheduler::compose(LaneId id, LaneState& lane, const LaneDuty& duty) {
  const bool prompts_first = duty.prefill && lane.prompts_first;
  if (prompts_first) add_prefills(id, lane);
  if (duty.decode) add_decodes(id, lane);
  if (duty.prefill && !prompts_first) add_prefills(id, lane);
}

void Scheduler::send_plan(LaneId id, LaneState& lane) {
  lane.plan.step = lane.planned.number = pool_.steps().issue(id);
  control_.lanes[id.value].issued_step.store(lane.plan.step, std::memory_order_release);
  metrics_.steps[lane.planned.decodes ? 1 : 0].add();
  lane.planned.sent_us = steady_now_us();
  lane.planned.bytes = message_bytes(lane.plan);
  if (lane.in_flight.empty()) {
    lane.heartbeat_read_us = lane.planned.sent_us;
    lane.heartbeat_silent_us = 0;
  }
  if (lane.spare.empty()) lane.spare.emplace_back();
  std::swap(lane.spare.front(), lane.planned);
  lane.in_flight.splice(lane.in_flight.end(), lane.spare, lane.spare.begin());
  if (const absl::Status sent = lane.port->send(lane.plan); !sent.ok()) lose_lane(id, message(sent));
}

// The place of a sequence in all orders. One that others follow is as urgent as the most urgent of them.
Urgency Scheduler::urgency(const Sequence& sequence) const {
  const Urgency own = urgency_of(sequence.queue_view(), prefill_speed_.ns_per_token());
  return sequence.follower && more_urgent(*sequence.follower, own) ? *sequence.follower : own;
}

// The admitted sequences of a phase that no lane has, in candidates_, in no order. `group`: of these suspects alone.
void Scheduler::collect_idle(Phase phase, std::optional<std::uint32_t> group) {
  candidates_.clear();
  for (Sequence* sequence : running_.of(phase)) {
    if (!sequence->lane && (!group || sequence->suspect_group == *group)) candidates_.push_back(sequence);
  }
}

void Scheduler::sort_by_urgency() {
  std::ranges::sort(candidates_,
                    [this](const Sequence* a, const Sequence* b) { return more_urgent(urgency(*a), urgency(*b)); });
}

void Scheduler::add_decodes(LaneId id, LaneState& lane) {
  collect_idle(Phase::kDecode, group_);
  // The most urgent first: what is in the plan keeps its blocks, so the last ones are those that can lose them. Who was
  // left out of a full plan comes first in the next among those of its priority, or equals would starve.
  std::ranges::sort(candidates_, [this](const Sequence* a, const Sequence* b) {
    if (a->left_out != b->left_out && a->request.priority == b->request.priority) return a->left_out;
    return more_urgent(urgency(*a), urgency(*b));
  });
  for (Sequence* sequence : candidates_) {
    sequence->left_out =
        lane.planned.items.size() >= options_.plan.max_decode_items || !has_room(lane.plan, *sequence, 1);
    if (sequence->left_out || sequence->lease.blocks().empty()) continue;  // empty: it gave them to one before it
    if (!reserve_for(*sequence, 1)) continue;
    add_item(id, lane, *sequence, 1);
    lane.planned.decodes = true;
  }
}

// An idle lane's ring is empty, and a sequence's item is never larger than the ring.
bool Scheduler::has_room(const Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const {
  return plan.items.empty() || builder_.fits(message_bytes(plan) + builder_.item_bytes(sequence, num_tokens));
}

// Sequences in the lane's newest step go on from there, idle ones join. All or nothing: when blocks or room are short
// nothing is sent ahead, and once the lane is idle add_decodes() chooses.
void Scheduler::add_decodes_ahead(LaneId id, LaneState& lane) {
  const std::vector<LaneStep::Item>& newest = lane.in_flight.back().items;
  std::size_t bytes = message_bytes(lane.plan);
  for (const LaneStep& step : lane.in_flight) bytes += step.bytes;
  candidates_.clear();
  for (Sequence* sequence : running_.of(Phase::kDecode)) {
    if (sequence->lane && !(sequence->lane == id && at_place(newest, *sequence))) continue;
    if (sequence->generated() + sequence->steps_in_flight >= sequence->request.max_tokens) continue;
    bytes += builder_.item_bytes(*sequence, 1);
    if (candidates_.size() >= options_.plan.max_decode_items || !builder_.fits(bytes)) return;
    if (!cover(*sequence, sequence->steps_in_flight + 1).ok()) return;
    candidates_.push_back(sequence);
  }
  for (Sequence* sequence : candidates_) add_item(id, lane, *sequence, 1);
  lane.planned.decodes = !candidates_.empty();
}

// The next chunks of admitted sequences, whatever waits.
void Scheduler::add_prefills(LaneId id, LaneState& lane) {
  std::uint32_t budget = options_.plan.prefill_chunk_tokens;
  lane.prompts_first = false;
  collect_idle(Phase::kPrefill, group_);
  sort_by_urgency();
  for (Sequence* sequence : candidates_) {
    if (budget == 0) break;
    // Scores and logits that no longer fit this step's result come with the next.
    const std::uint32_t answerable = builder_.answerable(*sequence, budget, lane.planned.answer_bytes);
    std::uint32_t chunk = std::min(answerable, sequence->remaining());
    // A recomputed prompt takes up its scores where they ended.
    if (sequence->computed < sequence->scored) chunk = std::min(chunk, sequence->scored - sequence->computed);
    if (chunk == 0 || !has_room(lane.plan, *sequence, chunk)) {
      // If decodes have filled the plan, prompts and decodes take turns, or prompts could wait for ever.
      lane.prompts_first = lane.planned.prefill_tokens == 0;
      if (chunk == 0) continue;
      break;
    }
    add_item(id, lane, *sequence, chunk);
    lane.planned.prefill_tokens += chunk;
    budget -= chunk;
  }
}

// True when a lane that takes prompts has no prompt in flight. Before that nobody is admitted: someone more urgent may
// come until the step is over.
bool Scheduler::a_lane_can_begin_prompts() const {
  const PlacementView view = placement_view();
  for (std::uint32_t id = 0; id < lanes_.size(); ++id) {
    if (!lanes_[id].port || !lane_duty(view, LaneId{id}).prefill) continue;
    if (std::ranges::all_of(lanes_[id].in_flight, [](const LaneStep& step) { return step.prefill_tokens == 0; })) {
      return true;
    }
  }
  return false;
}

// Decides who may enter, by the pool's answer: the most urgent of those that wait, as far as the next prefill step has
// tokens for them once everyone more urgent has been served. Takes no time while nobody can enter.
void Scheduler::admit_waiting() {
  if (waiting_.first() == nullptr || running_.size() >= options_.max_running_sequences) return;
  if (!a_lane_can_begin_prompts()) return;
  std::uint32_t budget = options_.plan.prefill_chunk_tokens;
  collect_idle(Phase::kPrefill, std::nullopt);
  sort_by_urgency();
  auto ahead = candidates_.begin();
  while (Sequence* next = waiting_.first()) {
    for (; ahead != candidates_.end() && more_urgent(urgency(**ahead), next->queued_as); ++ahead) {
      budget -= std::min(budget, (*ahead)->remaining());
    }
    if (budget == 0 || running_.size() >= options_.max_running_sequences) return;
    const Leader leader = find_leader(*next, running_.of(Phase::kPrefill), options_.plan.block_tokens);
    if (leader.sequence != nullptr) {
      waiting_.follow(*next, *leader.sequence, leader.num_blocks);
      continue;
    }
    // The first that does not fit holds back the less urgent ones, or a stream of small prompts would starve a large
    // one. It holds back nobody who is admitted: they have the blocks that it waits for.
    if (!admit(*next)) return;
    budget -= std::min(budget, next->remaining());
  }
}

// Takes blocks for everything known of a waiting sequence, so that a prompt once begun can be finished. False, and
// nothing has changed: the pool has no room.
bool Scheduler::admit(Sequence& sequence) {
  const KvPoolUsage usage = pool_.usage();
  if (usage.free + usage.evictable < sequence.lacking_blocks) return false;  // no need to look its names up again
  const std::span<const PrefixKey> keys = usable_keys(sequence, options_.plan.block_tokens);
  const std::uint32_t needed = builder_.blocks_for(sequence.num_tokens());
  auto lease = pool_.reserve(sequence.request.id, needed, Phase::kPrefill, keys);
  if (!lease.ok()) {
    sequence.lacking_blocks = needed - pool_.num_cached(keys);
    return false;
  }
  sequence.lease = *std::move(lease);
  sequence.computed = sequence.lease.num_cached() * options_.plan.block_tokens;
  sequence.lacking_blocks = 0;
  sequence.left_out = false;
  waiting_.erase(sequence);
  running_.add(sequence);
  queued_.fetch_sub(1, std::memory_order_relaxed);
  if (sequence.request.prompt->prefix_root) {
    metrics_.prefix_queries.add(sequence.num_tokens());
    metrics_.prefix_hits.add(sequence.computed);
    count_prefix(control_.server, sequence);
  }
  if (!std::exchange(sequence.started, true)) listener_.on_start(sequence.request.id, sequence.computed);
  return true;
}

void Scheduler::add_item(LaneId id, LaneState& lane, Sequence& sequence, std::uint32_t num_tokens) {
  if (sequence.steps_in_flight == 0) {
    builder_.append(lane.plan, sequence, num_tokens);
  } else {
    builder_.append_ahead(lane.plan, sequence);
  }
  lane.planned.continues_decode |= sequence.steps_in_flight > 0 || (sequence.decoding() && sequence.generated() > 1);
  sequence.lane = id;
  ++sequence.steps_in_flight;
  sequence.step_index = static_cast<std::uint32_t>(lane.planned.items.size());
  lane.planned.answer_bytes += builder_.answer_bytes(lane.plan.items.back());
  lane.planned.items.push_back(asked_of(lane.plan.items.back(), sequence, num_tokens));
  lane.planned.num_tokens += num_tokens;
}

// Makes the lease cover the next `num_tokens` tokens after the computed ones, or changes nothing.
absl::Status Scheduler::cover(Sequence& sequence, std::uint32_t num_tokens) {
  const std::uint32_t needed = builder_.blocks_for(std::uint64_t{sequence.computed} + num_tokens);
  const auto held = static_cast<std::uint32_t>(sequence.lease.blocks().size());
  if (needed <= held) return absl::OkStatus();
  TANDEM_TRY(pool_.grow(sequence.lease, needed - held, Phase::kDecode));
  running_.update(sequence);
  return absl::OkStatus();
}

// Does the same with all means, for a decoding sequence: less urgent ones may lose their blocks.
bool Scheduler::reserve_for(Sequence& sequence, std::uint32_t num_tokens) {
  while (!cover(sequence, num_tokens).ok()) {
    const std::uint32_t needed = builder_.blocks_for(std::uint64_t{sequence.computed} + num_tokens);
    // Enough is there once the steps that run now are over.
    const KvPoolUsage usage = pool_.usage();
    if (usage.free + usage.evictable + usage.retiring >= needed - sequence.lease.blocks().size()) return false;
    if (!preempt_for(sequence)) return false;
    if (sequence.lease.blocks().empty()) return false;  // it was the least urgent itself
  }
  return true;
}

// The least urgent sequence gives up its blocks and is computed again later; its output does not change. False when
// those less urgent than `sequence` are all at work: their steps end soon.
bool Scheduler::preempt_for(const Sequence& sequence) {
  Sequence* victim = nullptr;
  bool waits = false;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (Sequence* candidate : running_.of(phase)) {
      if (candidate->lane) {
        waits |= more_urgent(urgency(sequence), urgency(*candidate));
      } else if (victim == nullptr || more_urgent(urgency(*victim), urgency(*candidate))) {
        victim = candidate;
      }
    }
  }
  if (victim == nullptr || (victim == &sequence && waits)) return false;
  TANDEM_LOG(kDebug, "sequence {} gives its blocks to sequence {}", victim->request.id.value,
             sequence.request.id.value);
  running_.remove(*victim);
  pool_.give_back_idle(std::move(victim->lease));
  victim->computed = 0;
  waiting_.release_all(*victim);
  waiting_.insert(*victim, prefill_speed_.ns_per_token());
  queued_.fetch_add(1, std::memory_order_relaxed);
  metrics_.preemptions.add();
  pool_.reclaim();
  return true;
}

}  // namespace tandem
