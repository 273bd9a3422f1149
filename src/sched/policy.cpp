#include "tandem/policy.h"

#include <algorithm>

namespace tandem {
namespace {

// A prompt without a TTFT target may be passed by shorter ones for this many times its own prefill time. Larger: short
// prompts answer sooner beside a long one, and the long one later.
constexpr std::int64_t kAllowance = 4;

}  // namespace

LaneDuty lane_duty(const PlacementView& view, LaneId lane) {
  const Share all{0, view.num_units};
  if (view.placement == Placement::kFused) return {true, true, all};
  const bool is_prefill = lane == kPrefillLane;
  const bool other_up = is_prefill ? view.decode_lane_up : view.prefill_lane_up;
  if (!other_up) return {true, true, all};
  LaneDuty duty{is_prefill, !is_prefill, all};
  if (view.prefilling > 0 && view.decoding > 0 && view.num_units > 1) {
    const std::uint16_t wanted = view.decode_units.value_or(default_decode_units(view.num_units));
    const auto decode_units = static_cast<std::uint16_t>(std::clamp<int>(wanted, 1, view.num_units - 1));
    const auto prefill_units = static_cast<std::uint16_t>(view.num_units - decode_units);
    duty.share = is_prefill ? Share{0, prefill_units} : Share{prefill_units, decode_units};
  }
  return duty;
}

std::uint16_t default_decode_units(std::uint16_t num_units) {
  return static_cast<std::uint16_t>(std::max(1, num_units / 2));
}

Urgency urgency_of(const QueueView& entry, std::int64_t prefill_ns_per_token) {
  const std::int64_t allowance_us = entry.ttft_ms ? std::int64_t{*entry.ttft_ms} * 1000
                                                  : kAllowance * prefill_ns_per_token * entry.remaining_tokens / 1000;
  return {entry.priority, entry.arrival_us + allowance_us, entry.id};
}

bool more_urgent(const Urgency& a, const Urgency& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.deadline_us != b.deadline_us) return a.deadline_us < b.deadline_us;
  return a.id < b.id;
}

}  // namespace tandem
