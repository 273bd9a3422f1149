#include "model/end_tokens.h"

#include <algorithm>
#include <string_view>

namespace tandem {
namespace {

constexpr std::string_view kEndTexts[] = {
    "</s>",
    "<EOT>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<|return|>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

void make_control(TokenizerSpec& spec, TokenId id) {
  if (id < 0 || static_cast<std::size_t>(id) >= spec.kinds.size()) return;
  TokenKind& kind = spec.kinds[static_cast<std::size_t>(id)];
  if (kind == TokenKind::kUserDefined) kind = TokenKind::kControl;
}

}  // namespace

void set_end_of_generation(TokenizerSpec& spec, std::span<const TokenId> named) {
  std::vector<TokenId>& ends = spec.end_of_generation;
  ends.assign(named.begin(), named.end());
  if (spec.eos) ends.push_back(*spec.eos);
  for (const TokenId id : ends) make_control(spec, id);
  if (spec.bos) make_control(spec, *spec.bos);
  for (std::size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.kinds[id] != TokenKind::kControl) continue;
    if (std::ranges::find(kEndTexts, spec.tokens[id]) != std::end(kEndTexts)) ends.push_back(static_cast<TokenId>(id));
  }
  std::ranges::sort(ends);
  const auto rest = std::ranges::unique(ends);
  ends.erase(rest.begin(), rest.end());
}

}  // namespace tandem
