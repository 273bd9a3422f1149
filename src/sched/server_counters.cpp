#include "sched/server_counters.h"

#include <cstdint>

namespace tandem {
namespace {

// One writer: no need of an atomic addition.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

void publish_counters(ServerCounters& counters, std::span<Sequence* const> running, std::size_t num_waiting,
                      const KvPoolUsage& usage) {
  std::uint32_t sequences[2] = {};  // by whether they generate
  std::uint32_t blocks[2] = {};
  for (const Sequence* sequence : running) {
    const std::size_t phase = sequence->decoding() ? 1 : 0;
    ++sequences[phase];
    blocks[phase] += static_cast<std::uint32_t>(sequence->lease.blocks().size());
  }
  counters.prefill_sequences.store(sequences[0], std::memory_order_relaxed);
  counters.prefill_blocks.store(blocks[0], std::memory_order_relaxed);
  counters.decode_sequences.store(sequences[1], std::memory_order_relaxed);
  counters.decode_blocks.store(blocks[1], std::memory_order_relaxed);
  counters.waiting_sequences.store(static_cast<std::uint32_t>(num_waiting), std::memory_order_relaxed);
  counters.evictable_blocks.store(usage.evictable, std::memory_order_relaxed);
}

void count_prefix(ServerCounters& counters, const Sequence& sequence) {
  add(counters.prefix_tokens_asked, sequence.tokens.size());
  add(counters.prefix_tokens_hit, sequence.computed);
}

}  // namespace tandem
