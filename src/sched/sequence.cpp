#include "sched/sequence.h"

#include <algorithm>

namespace tandem {

void Sequence::append_tokens(std::uint32_t begin, std::uint32_t end, std::vector<TokenId>& into) const {
  const std::vector<TokenId>& prompt = request.prompt->tokens;
  const std::uint32_t border = prompt_tokens();
  if (begin < border) into.insert(into.end(), prompt.begin() + begin, prompt.begin() + std::min(end, border));
  if (end > border) {
    into.insert(into.end(), output.begin() + (std::max(begin, border) - border), output.begin() + (end - border));
  }
}

}  // namespace tandem
