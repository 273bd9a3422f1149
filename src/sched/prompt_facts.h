// A prompt with what the scheduler has to know of it: how often its tokens occur and what its blocks are named.
// Computed once for each request, on the thread that submits the request, since it takes time in proportion to the
// prompt. Read-only afterwards, and shared by the sequences of the request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/prefix_key.h"
#include "tandem/sampling.h"
#include "tandem/types.h"

namespace tandem {

struct PromptFacts {
  std::vector<TokenId> tokens;
  std::vector<TokenCount> counts;        // for the penalties, in order of token; empty when the request sets none
  std::optional<PrefixKey> prefix_root;  // what block names start from; absent: no block is shared
  std::vector<PrefixKey> keys;           // names of the whole blocks; empty without a prefix_root
};

// True when a penalty needs to know which tokens the sequence has.
bool wants_counts(const SampleRow& sampling);

PromptFacts make_prompt_facts(std::vector<TokenId> tokens, const SampleRow& sampling,
                              const std::optional<PrefixKey>& prefix_root, std::uint32_t block_tokens);

}  // namespace tandem
