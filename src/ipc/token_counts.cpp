#include "ipc/token_counts.h"

#include <algorithm>

namespace tandem {

std::vector<TokenCount> count_prompt(std::span<const TokenId> prompt) {
  std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  std::ranges::sort(tokens);
  tokens.erase(std::ranges::unique(tokens).begin(), tokens.end());
  std::vector<TokenCount> counts(tokens.size());
  std::ranges::transform(tokens, counts.begin(), [](TokenId token) { return TokenCount{token, 0}; });
  return counts;
}

void count_token(std::vector<TokenCount>& counts, std::size_t first, TokenId token, std::int32_t outputs) {
  const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(first);
  const auto at = std::ranges::lower_bound(begin, counts.end(), token, {}, &TokenCount::token);
  if (at != counts.end() && at->token == token) {
    at->output_count += outputs;
  } else {
    counts.insert(at, {token, outputs});
  }
}

void append_counts(std::vector<TokenCount>& into, std::span<const TokenCount> prompt,
                   std::span<const TokenCount> outputs) {
  auto from = prompt.begin();
  for (const TokenCount& output : outputs) {
    const auto at = std::ranges::lower_bound(from, prompt.end(), output.token, {}, &TokenCount::token);
    into.insert(into.end(), from, at);
    into.push_back(output);
    from = at != prompt.end() && at->token == output.token ? at + 1 : at;
  }
  into.insert(into.end(), from, prompt.end());
}

}  // namespace tandem
