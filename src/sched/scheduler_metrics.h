// The scheduler's series: what runs and waits, and the work that steps did. Handles only; the scheduler's thread writes
// them. Requests and the tokens that clients see are counted by the output pipeline (api/output.h).
#pragma once

#include "base/metrics.h"

namespace tandem {

struct SchedulerMetrics {
  explicit SchedulerMetrics(MetricRegistry& registry);

  Gauge running, waiting, kv_usage, cached_blocks;
  Counter prefill_tokens, sampled_tokens, preemptions, lane_losses, prefix_queries, prefix_hits, decode_wait_seconds;
  Counter steps[2];  // by Phase
  Histogram step_seconds[2];  // by Phase
};

}  // namespace tandem
