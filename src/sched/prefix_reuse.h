// How sequences share blocks: naming them, finding the cached ones, publishing the computed ones, and letting a prompt
// wait for another that computes the same blocks already. Functions over sequences; the scheduler's thread calls them.
#pragma once

#include <cstdint>
#include <span>

#include "memory/kv_pool.h"
#include "sched/sequence.h"

namespace tandem {

// Names the sequence's first `num_blocks` blocks, which must be whole. Does nothing without a prefix_root.
void name_blocks(Sequence& sequence, std::uint32_t num_blocks, std::uint32_t block_tokens);

// The names under which a sequence without blocks may use cached ones: all but those of the last token's block, since
// that token is computed for what follows it.
std::span<const PrefixKey> usable_keys(const Sequence& sequence, std::uint32_t block_tokens);

// Another sequence that computes blocks which a waiting one can reuse: waiting until `num_blocks` of them are published
// saves computing them twice.
struct Leader {
  Sequence* sequence = nullptr;  // null: nobody computes such blocks
  std::uint32_t num_blocks = 0;
};

// The one of `prefilling` that will publish the longest prefix. Looks at O(log blocks) names for each of them, and not
// at the pool.
Leader find_leader(const Sequence& waiting, std::span<Sequence* const> prefilling, std::uint32_t block_tokens);

// Publishes the whole blocks of what is computed. Steps that are under way write behind them.
void publish_blocks(Sequence& sequence, KvPool& pool, std::uint32_t block_tokens);

}  // namespace tandem
