// The scheduler's series in the registry. Handles only; written by the scheduler thread.
#pragma once

#include "base/metrics.h"

namespace tandem {

struct SchedulerMetrics {
  explicit SchedulerMetrics(MetricRegistry& registry);

  Gauge running, waiting, kv_usage, cached_blocks;
  Counter prompt_tokens, generated_tokens, preemptions, lane_losses, prefix_queries, prefix_hits, decode_wait_seconds;
  Counter steps[2];            // by Phase
  Histogram step_seconds[2];  // by Phase
};

}  // namespace tandem
