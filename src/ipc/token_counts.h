// How often a sequence's tokens occur, as the sampling penalties need it: lists of TokenCount in order of token, each
// token once. Scheduler and lane both extend such lists with sampled tokens. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tandem/sampling.h"

namespace tandem {

// The counts of a prompt: every token that occurs in it, generated no time. Sorts: O(n log n).
std::vector<TokenCount> count_prompt(std::span<const TokenId> prompt);

// Adds `outputs` to the token's count among counts[first...]; makes an entry if the token has none.
void count_token(std::vector<TokenCount>& counts, std::size_t first, TokenId token, std::int32_t outputs);

// Appends the union of both lists to `into`. A token that is in both has the count of `outputs`. Copies the prompt's
// list in as many pieces as `outputs` has tokens.
void append_counts(std::vector<TokenCount>& into, std::span<const TokenCount> prompt,
                   std::span<const TokenCount> outputs);

}  // namespace tandem
