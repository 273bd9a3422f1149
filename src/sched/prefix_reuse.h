// How sequences share blocks: naming them, finding the cached ones, publishing the computed ones, and letting a prompt
// wait for another that is reading the same text already. Functions over a sequence; scheduler thread.
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

// True when one of `running` computes the very block that this sequence would compute next. It then pays to wait.
bool awaits_prefix(const Sequence& sequence, std::span<Sequence* const> running);

// Publishes the whole blocks of what is computed. Steps that are under way write behind them.
void publish_blocks(Sequence& sequence, KvPool& pool, std::uint32_t block_tokens);

}  // namespace tandem
