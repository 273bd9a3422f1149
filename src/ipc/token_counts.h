// The counts of a sequence's tokens as plans carry them for the sampling penalties: in order of token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/sampling.h"

namespace tandem {

// Adds to the token's count among counts[first...], which are in order of token; makes an entry where there is none.
void count_token(std::vector<TokenCount>& counts, std::size_t first, TokenId token, std::int32_t outputs);

}  // namespace tandem
