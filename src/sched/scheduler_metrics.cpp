#include "sched/scheduler_metrics.h"

#include <cstddef>

namespace tandem {

SchedulerMetrics::SchedulerMetrics(MetricRegistry& registry)
    : running(registry.gauge("tandem_num_requests_running",
                             "Sequences that hold KV blocks; a request with n choices has n sequences")),
      waiting(registry.gauge("tandem_num_requests_waiting",
                             "Sequences that wait for KV blocks or for their turn; a request with n choices has n")),
      kv_usage(registry.gauge("tandem_kv_cache_usage_ratio", "Share of the KV blocks that sequences hold, 0 to 1")),
      cached_blocks(registry.gauge("tandem_prefix_cache_blocks", "KV blocks in the prefix cache")),
      prefill_tokens(registry.counter("tandem_prefill_tokens_total",
                                      "Prompt tokens that steps computed: not the cached ones, but those of a "
                                      "preempted sequence again")),
      sampled_tokens(registry.counter("tandem_sampled_tokens_total",
                                      "Tokens sampled for sequences, also those that a stop string cuts off")),
      preemptions(registry.counter("tandem_num_preemptions_total",
                                   "Times that a running sequence had to give its KV blocks to others")),
      lane_losses(registry.counter("tandem_lane_losses_total", "Worker processes that ended while serving")),
      prefix_queries(registry.counter("tandem_prefix_cache_queries_total",
                                      "Tokens looked up in the prefix cache, each time a sequence gets its blocks")),
      prefix_hits(registry.counter("tandem_prefix_cache_hits_total", "Of the tokens looked up, those found")),
      decode_wait_seconds(registry.counter("tandem_decode_wait_seconds_total",
                                           "Seconds that workers waited for the next step of generating sequences")) {
  const char* const phases[2] = {"prefill", "decode"};
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const MetricLabels labels{{"phase", phases[phase]}};
    steps[phase] = registry.counter("tandem_engine_steps_total", "Steps, by the phase they ran", labels);
    step_seconds[phase] =
        registry.histogram("tandem_engine_step_seconds", "Seconds from when its lane could begin a step to its result",
                           round_bounds(0.001, 10), labels);
  }
}

}  // namespace tandem
