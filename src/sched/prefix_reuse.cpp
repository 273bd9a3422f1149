#include "sched/prefix_reuse.h"

#include <algorithm>
#include <vector>

#include "memory/prefix_key.h"

namespace tandem {
namespace {

// Equal names stand for equal texts from the first token on, so that the lists agree up to some place and differ from
// there on.
std::uint32_t common_blocks(std::span<const PrefixKey> a, std::span<const PrefixKey> b) {
  std::size_t agree = 0;
  std::size_t unknown = std::min(a.size(), b.size());
  while (agree < unknown) {
    const std::size_t middle = agree + (unknown - agree) / 2;
    if (a[middle] == b[middle]) {
      agree = middle + 1;
    } else {
      unknown = middle;
    }
  }
  return static_cast<std::uint32_t>(agree);
}

}  // namespace

void name_blocks(Sequence& sequence, std::uint32_t num_blocks, std::uint32_t block_tokens) {
  const PromptFacts& prompt = *sequence.request.prompt;
  if (!prompt.prefix_root || num_blocks <= sequence.keys().size()) return;
  std::vector<PrefixKey>& keys = sequence.own_keys;
  if (keys.empty()) keys = prompt.keys;
  while (keys.size() < num_blocks) {
    const PrefixKey& parent = keys.empty() ? *prompt.prefix_root : keys.back();
    const auto begin = static_cast<std::uint32_t>(keys.size()) * block_tokens;
    if (begin >= sequence.prompt_tokens()) {
      const auto tokens = std::span(sequence.output).subspan(begin - sequence.prompt_tokens(), block_tokens);
      keys.push_back(prefix_key(parent, tokens));
    } else {  // it begins in the prompt and ends in the output: once for each sequence
      std::vector<TokenId> tokens;
      sequence.append_tokens(begin, begin + block_tokens, tokens);
      keys.push_back(prefix_key(parent, tokens));
    }
  }
}

std::span<const PrefixKey> usable_keys(const Sequence& sequence, std::uint32_t block_tokens) {
  const std::size_t most = (sequence.num_tokens() - 1) / block_tokens;
  return sequence.keys().first(std::min(most, sequence.keys().size()));
}

Leader find_leader(const Sequence& waiting, std::span<Sequence* const> prefilling, std::uint32_t block_tokens) {
  Leader leader;
  const std::span<const PrefixKey> wanted = usable_keys(waiting, block_tokens);
  for (Sequence* other : prefilling) {
    const std::uint32_t common = common_blocks(wanted, other->keys());
    // What it has published is in the cache.
    if (common > other->lease.num_cached() && common > leader.num_blocks) leader = {other, common};
  }
  return leader;
}

void publish_blocks(Sequence& sequence, KvPool& pool, std::uint32_t block_tokens) {
  const std::uint32_t whole = sequence.computed / block_tokens;
  if (!sequence.request.prompt->prefix_root || whole <= sequence.lease.num_cached()) return;
  name_blocks(sequence, whole, block_tokens);
  pool.publish(sequence.lease, sequence.keys().first(whole));
}

}  // namespace tandem
