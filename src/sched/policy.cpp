#include "tandem/policy.h"

#include <algorithm>

namespace tandem {
namespace {

// Allowance per token still to be read, for requests without a TTFT target.
constexpr std::int64_t kAllowanceUsPerToken = 4000;

}  // namespace

LaneDuty lane_duty(const PlacementView& view, LaneId lane) {
  const Share all{0, view.num_units};
  if (view.placement == Placement::kFused) return {true, true, all};
  const bool is_prefill = lane == kPrefillLane;
  const bool other_up = is_prefill ? view.decode_lane_up : view.prefill_lane_up;
  if (!other_up) return {true, true, all};
  LaneDuty duty{is_prefill, !is_prefill, all};
  if (view.prefill_work && view.decode_work && view.num_units > 1) {
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

std::int64_t virtual_deadline_us(const QueueView& entry) {
  if (entry.ttft_ms) return entry.arrival_us + std::int64_t{*entry.ttft_ms} * 1000;
  return entry.arrival_us + kAllowanceUsPerToken * entry.remaining_tokens;
}

bool more_urgent(const QueueView& a, const QueueView& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return virtual_deadline_us(a) < virtual_deadline_us(b);
}

}  // namespace tandem
