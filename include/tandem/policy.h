// The scheduler's decisions as pure functions over read-only views. New behaviour is a new function here, never a
// subclass of the scheduler.
#pragma once

#include <cstdint>
#include <optional>

#include "tandem/placement.h"
#include "tandem/types.h"

namespace tandem {

// In semi placement lane 0 is the prefill lane and lane 1 the decode lane; fused placement has lane 0 alone.
inline constexpr LaneId kPrefillLane{0};
inline constexpr LaneId kDecodeLane{1};

struct PlacementView {
  Placement placement = Placement::kSemi;
  std::uint16_t num_units = 1;  // of compute, to share out
  bool prefill_lane_up = false;
  bool decode_lane_up = false;
  bool prefill_work = false;  // prompts are being read or could be
  bool decode_work = false;   // sequences are generating
  std::optional<std::uint16_t> decode_units;  // of a split step; half of them when absent
};

// What a lane does in its next step: the phases whose work it takes, and with which share of the compute.
struct LaneDuty {
  bool prefill = false;
  bool decode = false;
  Share share;
};

// Solo when one phase has no work (its lane gets every unit), split when both have; a lane that is down leaves
// its work to the other. In fused placement one lane does both with everything. A split leaves each lane a unit.
LaneDuty lane_duty(const PlacementView& view, LaneId lane);

// How many of the units decode gets in split steps, unless told otherwise.
std::uint16_t default_decode_units(std::uint16_t num_units);

struct QueueView {
  std::int32_t priority = 0;
  std::int64_t arrival_us = 0;
  std::uint32_t remaining_tokens = 0;  // of the prompt, still to be read
  std::optional<std::uint32_t> ttft_ms;
};

// The time by which a prompt ought to be read: arrival plus its TTFT target or, without one, plus an allowance that
// grows with what is left to read. So a short prompt passes a long one, and a long one is passed only for a while.
std::int64_t virtual_deadline_us(const QueueView& entry);

// True when `a` is to be served before `b`: larger priority first, then the earlier virtual deadline.
bool more_urgent(const QueueView& a, const QueueView& b);

}  // namespace tandem
