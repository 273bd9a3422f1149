#include "sched/prompt_facts.h"

#include <span>
#include <utility>

#include "ipc/token_counts.h"
#include "memory/prefix_key.h"

namespace tandem {

bool wants_counts(const SampleRow& sampling) {
  return sampling.repetition_penalty != 1.0F || sampling.presence_penalty != 0.0F || sampling.frequency_penalty != 0.0F;
}

PromptFacts make_prompt_facts(std::vector<TokenId> tokens, const SampleRow& sampling,
                              const std::optional<PrefixKey>& prefix_root, std::uint32_t block_tokens) {
  PromptFacts facts;
  if (wants_counts(sampling)) facts.counts = count_prompt(tokens);
  if (prefix_root) {
    facts.prefix_root = prefix_root;
    facts.keys.reserve(tokens.size() / block_tokens);
    PrefixKey parent = *prefix_root;
    for (std::size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
      parent = prefix_key(parent, std::span(tokens).subspan(at, block_tokens));
      facts.keys.push_back(parent);
    }
  }
  facts.tokens = std::move(tokens);
  return facts;
}

}  // namespace tandem
