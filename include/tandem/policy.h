// The scheduler's decisions as pure functions over read-only views: which phases a lane runs with which share of the
// compute, and which sequence is served first. The scheduler's thread calls them; they keep no state and read no clock.
// New behaviour is a new function here, never a subclass of the scheduler.
#pragma once

#include <cstdint>
#include <optional>

#include "tandem/placement.h"
#include "tandem/types.h"

namespace tandem {

// In semi placement lane 0 is the prefill lane and lane 1 the decode lane; fused placement has lane 0 alone.
inline constexpr LaneId kPrefillLane{0};
inline constexpr LaneId kDecodeLane{1};

// What a turn of the scheduler knows when it decides. Admission comes first, so a sequence that still waits cannot be
// prefilled now: it is no work, and nothing here counts it.
struct PlacementView {
  Placement placement = Placement::kSemi;
  std::uint16_t num_units = 1;  // of compute, to share out
  bool prefill_lane_up = false;
  bool decode_lane_up = false;
  std::uint32_t prefilling = 0;  // admitted sequences with text that is not computed yet
  std::uint32_t decoding = 0;  // admitted sequences that generate
  std::optional<std::uint16_t> decode_units;  // in a split step; default: half of them
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

// How many of the units decode gets in split steps by default.
std::uint16_t default_decode_units(std::uint16_t num_units);

// What decides how urgent a sequence is.
struct QueueView {
  SequenceId id;
  std::int32_t priority = 0;
  std::int64_t arrival_us = 0;
  std::uint32_t remaining_tokens = 0;  // of its text, not computed yet
  std::optional<std::uint32_t> ttft_ms;
};

// The place of a sequence in every order: decode, prefill, admission and, from the other end, preemption.
struct Urgency {
  std::int32_t priority = 0;
  std::int64_t deadline_us = 0;
  SequenceId id;  // equal otherwise: the older sequence first
};

// The time by which a prompt ought to be prefilled: arrival plus its TTFT target or, without a target, plus a multiple
// of the time that its remaining tokens take. So a short prompt passes a long one, and a long one is passed only for a
// while. `prefill_ns_per_token` is the measured speed; use one value for all sequences that are compared.
Urgency urgency_of(const QueueView& entry, std::int64_t prefill_ns_per_token);

// True when `a` is served before `b`: larger priority first, then the earlier deadline.
bool more_urgent(const Urgency& a, const Urgency& b);

}  // namespace tandem
