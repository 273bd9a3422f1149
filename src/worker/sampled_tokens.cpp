#include "worker/sampled_tokens.h"

#include <algorithm>

#include "fmt/core.h"

namespace tandem {
namespace {

void push(SampledTail& tail, TokenId token) {
  if (tail.count == tail.tokens.size()) {
    std::ranges::rotate(tail.tokens, tail.tokens.begin() + 1);
    --tail.count;
  }
  tail.tokens[tail.count++] = token;
}

}  // namespace

absl::Status SampledTokens::check(const Plan& plan, const PlanItem& item) const {
  if (item.unknown_tokens == 0) return absl::OkStatus();
  const bool in_order = plan.step == step_ + 1 && item.previous_index < tails_.size();
  const SampledTail* tail = in_order ? &tails_[item.previous_index] : nullptr;
  const bool continues =
      tail != nullptr && tail->sequence == item.sequence &&
      (tail->ended || (tail->end == std::uint64_t{item.position} + 1 && tail->count >= item.unknown_tokens));
  if (continues && item.tokens.count == 0 && item.targets.count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{} unknown tokens up to {} follow nothing that this lane sampled",
                                                item.unknown_tokens, item.position));
}

const SampledTail* SampledTokens::tail_of(const PlanItem& item) const {
  const bool known = item.unknown_tokens == 0 || item.previous_index >= tails_.size();
  return known ? nullptr : &tails_[item.previous_index];
}

void SampledTokens::record(const Plan& plan, const Result& result) {
  const bool failed = !result.error.empty();
  next_.clear();
  for (std::size_t index = 0; index < plan.items.size(); ++index) {
    const PlanItem& item = plan.items[index];
    const SampledTail* before = failed ? nullptr : tail_of(item);
    SampledTail& tail = next_.emplace_back();
    if (before != nullptr) tail = *before;
    tail.sequence = item.sequence;
    tail.ended = true;
    if (failed || result.items[index].has_token == 0) continue;
    const TokenId token = result.items[index].sampled.token;
    push(tail, token);
    tail.end = std::uint64_t{item.position} + std::max(item.tokens.count, 1U) + 1;
    const auto stops = std::span(plan.stops).subspan(item.stops.begin, item.stops.count);
    tail.ended = std::ranges::find(stops, token) != stops.end();
  }
  tails_.reserve(next_.capacity());  // both at once, or a later step would allocate
  std::swap(tails_, next_);
  step_ = plan.step;
}

}  // namespace tandem
