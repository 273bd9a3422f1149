// The planning half of the scheduler: which sequences take part in a lane's next step, and what happens when the pool
// has no blocks for them.
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

bool sequence_more_urgent(const Sequence* a, const Sequence* b) {
  return more_urgent(a->queue_view(), b->queue_view());
}

// Who is left out of a plan that is full comes first in the next, or equals would starve.
bool decodes_before(const Sequence* a, const Sequence* b) {
  if (a->left_out != b->left_out && a->request.priority == b->request.priority) return a->left_out;
  return sequence_more_urgent(a, b);
}

bool at_place(const std::vector<LaneStep::Item>& items, const Sequence& sequence) {
  return sequence.step_index < items.size() && items[sequence.step_index].sequence == &sequence;
}

// The lane's next life begins. Between two steps: the lane's counters have one writer at a time, and no result is lost.
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
  view.prefill_work =
      !waiting_.empty() || std::ranges::any_of(running_, [](const Sequence* s) { return !s->decoding(); });
  view.decode_work = std::ranges::any_of(running_, [](const Sequence* s) { return s->decoding(); });
  return view;
}

bool Scheduler::send_plans() {
  bool progress = false;
  // The decode lane plans first: its sequences hold their blocks already and their clients are being served.
  for (std::uint32_t back = 0; back < lanes_.size(); ++back) {
    const LaneId id{static_cast<std::uint32_t>(lanes_.size()) - 1 - back};
    LaneState& lane = lanes_[id.value];
    if (lane.in_flight.empty() && lane.next) take_over(lane);
    while (lane.port && make_plan(id, lane)) {
      send_plan(id, lane);
      progress = true;
    }
  }
  return progress;
}

// Makes the plan of the lane's next step, if there is one. While the lane is at work that is the decode step after
// those it has, and only as long as it does nothing else: prompts and the lane's next life wait for no more than one
// step.
bool Scheduler::make_plan(LaneId id, LaneState& lane) {
  lane.plan.clear();
  lane.planned.items.clear();
  lane.planned.answer_bytes = 0;
  lane.planned.decodes = lane.planned.prefills = lane.planned.continues_decode = false;
  const PlacementView view = placement_view();
  const LaneDuty duty = lane_duty(view, id);
  if (lane.in_flight.empty()) {
    group_ = suspects_.next_group(lane.suspects_last);
    compose(id, lane, duty);
    lane.suspects_last = !lane.planned.items.empty() && group_ != 0;
    if (lane.planned.items.empty() && std::exchange(group_, group_ == 0 ? suspects_.next_group(false) : 0) != group_) {
      compose(id, lane, duty);  // the one kind had nothing that could run: the other
      lane.suspects_last = group_ != 0;
    }
  } else if (suspects_.empty() && lane.in_flight.size() <= options_.look_ahead_steps && duty.decode && !lane.next &&
             !lane.in_flight.back().prefills && !(duty.prefill && view.prefill_work)) {
    add_decodes_ahead(id, lane);
    lane.planned.decodes = true;
  }
  return !lane.planned.items.empty();
}

void Scheduler::compose(LaneId id, LaneState& lane, const LaneDuty& duty) {
  if (duty.decode) add_decodes(id, lane);
  lane.planned.decodes = !lane.planned.items.empty();
  const std::size_t num_decodes = lane.planned.items.size();
  if (duty.prefill) add_prefills(id, lane);
  lane.planned.prefills = lane.planned.items.size() > num_decodes;
}

void Scheduler::send_plan(LaneId id, LaneState& lane) {
  // Admission may have brought the work that makes this a split step.
  lane.plan.share = lane_duty(placement_view(), id).share;
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

void Scheduler::add_decodes(LaneId id, LaneState& lane) {
  candidates_.clear();
  for (Sequence* sequence : running_) {
    if (!sequence->lane && sequence->decoding() && sequence->suspect_group == group_) candidates_.push_back(sequence);
  }
  // The most urgent first: what is in the plan keeps its blocks, so the last ones are those that can lose them.
  std::ranges::sort(candidates_, decodes_before);
  for (Sequence* sequence : candidates_) {
    sequence->left_out =
        lane.planned.items.size() >= options_.plan.max_decode_items || !has_room(lane.plan, *sequence, 1);
    if (sequence->left_out || sequence->lease.blocks().empty()) continue;  // empty: it gave them to one before it
    if (reserve_for(*sequence, 1)) add_item(id, lane, *sequence, 1);
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
  for (Sequence* sequence : running_) {
    if (!sequence->decoding()) continue;
    if (sequence->lane && !(sequence->lane == id && at_place(newest, *sequence))) continue;
    if (sequence->generated() + sequence->steps_in_flight >= sequence->request.max_tokens) continue;
    bytes += builder_.item_bytes(*sequence, 1);
    if (candidates_.size() >= options_.plan.max_decode_items || !builder_.fits(bytes)) return;
    if (!cover(*sequence, sequence->steps_in_flight + 1).ok()) return;
    candidates_.push_back(sequence);
  }
  for (Sequence* sequence : candidates_) add_item(id, lane, *sequence, 1);
}

void Scheduler::add_prefills(LaneId id, LaneState& lane) {
  std::uint32_t budget = options_.plan.prefill_chunk_tokens;
  candidates_.clear();
  for (Sequence* sequence : running_) {
    if (!sequence->lane && !sequence->decoding() && sequence->suspect_group == group_) candidates_.push_back(sequence);
  }
  for (Sequence* sequence : waiting_) {
    if (sequence->suspect_group == group_) candidates_.push_back(sequence);
  }
  std::ranges::sort(candidates_, sequence_more_urgent);
  for (Sequence* sequence : candidates_) {
    if (budget == 0 || !has_room(lane.plan, *sequence, budget)) break;
    // Scores and logits that no longer fit this step's result come with the next.
    const std::uint32_t answerable = builder_.answerable(*sequence, budget, lane.planned.answer_bytes);
    if (answerable == 0) continue;
    const bool waits = sequence->lease.blocks().empty();
    if (waits) {
      if (running_.size() >= options_.max_running_sequences) continue;
      const std::span<const PrefixKey> keys = usable_keys(*sequence, options_.plan.block_tokens);
      if (awaits_prefix(*sequence, pool_.num_cached(keys), running_)) continue;
      // The first that does not fit holds back the less urgent ones, or a stream of small prompts would starve a
      // large one.
      if (!admit_to_pool(*sequence, keys)) break;
    }
    std::uint32_t chunk = std::min(answerable, sequence->remaining());
    // A recomputed prompt takes up its scores where they ended.
    if (sequence->computed < sequence->scored) chunk = std::min(chunk, sequence->scored - sequence->computed);
    add_item(id, lane, *sequence, chunk);
    budget -= chunk;
  }
}

// Takes blocks for everything known of a waiting sequence, so that a prompt once begun can be finished.
// Those that the cache has under the first of `keys` are not computed again.
bool Scheduler::admit_to_pool(Sequence& sequence, std::span<const PrefixKey> keys) {
  const std::uint32_t needed = builder_.blocks_for(sequence.tokens.size());
  auto lease = pool_.reserve(sequence.request.id, needed, Phase::kPrefill, keys);
  if (!lease.ok()) return false;
  sequence.lease = *std::move(lease);
  sequence.computed = sequence.lease.num_cached() * options_.plan.block_tokens;
  std::erase(waiting_, &sequence);
  running_.push_back(&sequence);
  queued_.fetch_sub(1, std::memory_order_relaxed);
  if (sequence.prefix_root) {
    metrics_.prefix_queries.add(sequence.tokens.size());
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
}

// Makes the lease cover the next `num_tokens` tokens after the computed ones, or changes nothing.
absl::Status Scheduler::cover(Sequence& sequence, std::uint32_t num_tokens) {
  const std::uint32_t needed = builder_.blocks_for(std::uint64_t{sequence.computed} + num_tokens);
  const auto held = static_cast<std::uint32_t>(sequence.lease.blocks().size());
  if (needed <= held) return absl::OkStatus();
  return pool_.grow(sequence.lease, needed - held, Phase::kDecode);
}

// The same by all means: a decoding sequence may take blocks from less urgent ones.
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
  for (Sequence* candidate : running_) {
    if (candidate->lane) {
      waits |= sequence_more_urgent(&sequence, candidate);
    } else if (victim == nullptr || sequence_more_urgent(victim, candidate)) {
      victim = candidate;
    }
  }
  if (victim == nullptr || (victim == &sequence && waits)) return false;
  TANDEM_LOG(kDebug, "sequence {} gives its blocks to sequence {}", victim->request.id.value,
             sequence.request.id.value);
  pool_.give_back_idle(std::move(victim->lease));
  victim->computed = 0;
  std::erase(running_, victim);
  waiting_.push_back(victim);
  queued_.fetch_add(1, std::memory_order_relaxed);
  metrics_.preemptions.add();
  pool_.reclaim();
  return true;
}

}  // namespace tandem
