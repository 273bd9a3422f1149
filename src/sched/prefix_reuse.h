// How sequences share blocks: naming them, finding the cached ones, publishing the computed ones, and letting a prompt
// wait for another that computes the same blocks already. Functions over sequences; the scheduler's thread calls them.
#pragma once

#include <cstdint>
#include <span>

#include "sched/sequence.h"
#include "tandem/kv_pool.h"

namespace tandem {

// Names the sequence's first `num_blocks` blocks, which must be whole. Does nothing without a prefix_root.
void name_blocks(Sequence& sequence, std::uint32_t num_blocks, std::uint32_t block_tokens);

// Gives a sequence without blocks the longest cached prefix of its tokens, all but the last token at most: that one is
// computed for what follows it.
void take_cached(Sequence& sequence, KvPool& pool, std::uint32_t block_tokens);

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
