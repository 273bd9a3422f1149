// How sequences share blocks: naming them, finding the cached ones, publishing the computed ones, and letting a prompt
// wait for another that is reading the same text already. Functions over a sequence; scheduler thread.
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

// True when one of `running` computes the block that this sequence would compute next, after `num_cached` cached ones.
// It then pays to wait.
bool awaits_prefix(const Sequence& sequence, std::uint32_t num_cached, std::span<Sequence* const> running);

// Publishes the whole blocks of what is computed. Steps that are under way write behind them.
void publish_blocks(Sequence& sequence, KvPool& pool, std::uint32_t block_tokens);

}  // namespace tandem
