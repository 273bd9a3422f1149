#include "sched/server_counters.h"

#include <cstdint>

namespace tandem {
namespace {

// One writer: no need of an atomic addition.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

void publish_counters(ServerCounters& counters, const RunningSequences& running, std::size_t num_waiting,
                      const KvPoolUsage& usage) {
  const auto size = [&](Phase phase) { return static_cast<std::uint32_t>(running.of(phase).size()); };
  counters.prefill_sequences.store(size(Phase::kPrefill), std::memory_order_relaxed);
  counters.prefill_blocks.store(running.num_blocks(Phase::kPrefill), std::memory_order_relaxed);
  counters.decode_sequences.store(size(Phase::kDecode), std::memory_order_relaxed);
  counters.decode_blocks.store(running.num_blocks(Phase::kDecode), std::memory_order_relaxed);
  counters.waiting_sequences.store(static_cast<std::uint32_t>(num_waiting), std::memory_order_relaxed);
  counters.evictable_blocks.store(usage.evictable, std::memory_order_relaxed);
}

void count_prefix(ServerCounters& counters, const Sequence& sequence) {
  add(counters.prefix_tokens_asked, sequence.num_tokens());
  add(counters.prefix_tokens_hit, sequence.computed);
}

}  // namespace tandem
