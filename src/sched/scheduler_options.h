// What a scheduler is made with, and what it reports of its load. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sched/plan_builder.h"
#include "tandem/placement.h"

namespace tandem {

struct SchedulerOptions {
  Placement placement = Placement::kSemi;
  std::uint16_t num_units = 1;
  std::optional<std::uint16_t> decode_units;  // as set_decode_units(); absent: half
  std::uint32_t max_running_sequences = 64;
  std::uint32_t max_queued_sequences = 512;
  PlanLimits plan;
  std::int64_t heartbeat_timeout_us = 8'000'000;  // a lane that has not beaten for so long within a step hangs
  std::uint32_t look_ahead_steps = 1;  // decode steps queued on a lane beyond the one it runs
  std::string prefix_identity;  // all that keys and values depend on besides tokens and salt; empty: no prefix cache
};

struct SchedulerLoad {
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::uint32_t kv_blocks_total = 0;
  std::uint32_t kv_blocks_used = 0;
  std::uint32_t lanes_up = 0;
};

}  // namespace tandem
