#include "sched/scheduler_metrics.h"

#include <cstddef>

namespace tandem {

SchedulerMetrics::SchedulerMetrics(MetricRegistry& registry)
    : running(registry.gauge("tandem:num_requests_running", "Sequences that hold KV blocks")),
      waiting(registry.gauge("tandem:num_requests_waiting", "Sequences that wait for KV blocks or for their turn")),
      kv_usage(registry.gauge("tandem:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1")),
      cached_blocks(registry.gauge("tandem:prefix_cache_blocks", "KV blocks in the prefix cache")),
      prompt_tokens(registry.counter("tandem:prompt_tokens_total", "Prompt tokens read")),
      generated_tokens(registry.counter("tandem:generation_tokens_total", "Tokens generated")),
      preemptions(registry.counter("tandem:num_preemptions_total", "Sequences that gave up their blocks to others")),
      lane_losses(registry.counter("tandem:lane_losses_total", "Worker processes that ended while serving")),
      prefix_queries(registry.counter("tandem:prefix_cache_queries_total", "Tokens looked up in the prefix cache")),
      prefix_hits(registry.counter("tandem:prefix_cache_hits_total", "Tokens found in the prefix cache")),
      decode_wait_seconds(registry.counter("tandem:decode_wait_seconds_total",
                                           "Time workers waited for the next step of sequences that were generating")) {
  const char* const phases[2] = {"prefill", "decode"};
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const MetricLabels labels{{"phase", phases[phase]}};
    steps[phase] = registry.counter("tandem:engine_steps_total", "Steps by what they ran", labels);
    step_seconds[phase] =
        registry.histogram("tandem:engine_step_seconds", "Time a step took, from when its lane could begin it",
                           exponential_bounds(0.001, 2.0, 14), labels);
  }
}

}  // namespace tandem
