#include "ipc/token_counts.h"

#include <algorithm>

namespace tandem {

void count_token(std::vector<TokenCount>& counts, std::size_t first, TokenId token, std::int32_t outputs) {
  const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(first);
  const auto at = std::ranges::lower_bound(begin, counts.end(), token, {}, &TokenCount::token);
  if (at != counts.end() && at->token == token) {
    at->output_count += outputs;
  } else {
    counts.insert(at, {token, outputs});
  }
}

}  // namespace tandem
