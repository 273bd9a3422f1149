#include "sched/prefix_reuse.h"

#include <algorithm>

#include "memory/prefix_key.h"

namespace tandem {

void name_blocks(Sequence& sequence, std::uint32_t num_blocks, std::uint32_t block_tokens) {
  if (!sequence.prefix_root) return;
  while (sequence.keys.size() < num_blocks) {
    const PrefixKey& parent = sequence.keys.empty() ? *sequence.prefix_root : sequence.keys.back();
    const auto tokens = std::span(sequence.tokens).subspan(sequence.keys.size() * block_tokens, block_tokens);
    sequence.keys.push_back(prefix_key(parent, tokens));
  }
}

std::span<const PrefixKey> usable_keys(const Sequence& sequence, std::uint32_t block_tokens) {
  const std::size_t most = (sequence.tokens.size() - 1) / block_tokens;
  return std::span(sequence.keys).first(std::min(most, sequence.keys.size()));
}

bool awaits_prefix(const Sequence& sequence, std::uint32_t num_cached, std::span<Sequence* const> running) {
  if (num_cached >= sequence.keys.size()) return false;
  const PrefixKey& key = sequence.keys[num_cached];
  return std::ranges::any_of(running, [&key](const Sequence* other) {
    return !other->decoding() && other->next_key() != nullptr && *other->next_key() == key;
  });
}

void publish_blocks(Sequence& sequence, KvPool& pool, std::uint32_t block_tokens) {
  const std::uint32_t whole = sequence.computed / block_tokens;
  if (!sequence.prefix_root || whole <= sequence.lease.num_cached()) return;
  name_blocks(sequence, whole, block_tokens);
  pool.publish(sequence.lease, std::span(sequence.keys).first(whole));
}

}  // namespace tandem
