#include "sched/plan_builder.h"

#include <algorithm>
#include <limits>

#include "base/status.h"

namespace tandem {
namespace {

// Appends [first, last) to a flat list and says where.
template <class T, class Iterator>
Run append_run(std::vector<T>& list, Iterator first, Iterator last) {
  const Run run{static_cast<std::uint32_t>(list.size()), static_cast<std::uint32_t>(last - first)};
  list.insert(list.end(), first, last);
  return run;
}

}  // namespace

void PlanBuilder::append(Plan& plan, Sequence& sequence, std::uint32_t num_tokens) const {
  const SequenceRequest& request = sequence.request;
  const std::uint32_t end = sequence.computed + num_tokens;
  const std::uint32_t num_blocks = blocks_for(end);
  TANDEM_CHECK(end <= sequence.tokens.size() && num_blocks <= sequence.lease.blocks().size(),
               "a step's tokens exist and have blocks");

  PlanItem& item = plan.items.emplace_back();
  item.sequence = request.id;
  item.position = sequence.computed;
  const auto first = sequence.tokens.begin() + sequence.computed;
  item.tokens = append_run(plan.tokens, first, first + num_tokens);
  const auto blocks = sequence.lease.blocks();
  item.blocks = append_run(plan.blocks, blocks.begin(), blocks.begin() + num_blocks);

  // Scores of prompt tokens not delivered yet: targets[i] follows tokens[i]. A recomputed prompt starts below
  // `scored`; its chunk is then scored only from where the first run ended.
  const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  if (request.score_prompt && sequence.scored == sequence.computed) {
    const std::uint32_t last = std::min(end + 1, prompt_tokens);
    if (last > sequence.computed + 1) {
      item.targets = append_run(plan.targets, first + 1, sequence.tokens.begin() + last);
    }
  }
  sequence.step_tokens = num_tokens;
  sequence.step_samples = end == sequence.tokens.size();
  item.sampling = request.sampling;
  if (!sequence.step_samples) return;

  item.wants_sample = 1;
  item.wants_logits = request.wants_logits && end == prompt_tokens ? 1 : 0;
  item.sampling.position = sequence.tokens.size();
  item.bias = append_run(plan.bias, request.bias.begin(), request.bias.end());
  if (sequence.generated() < request.min_tokens) {
    for (const TokenId token : request.stop_tokens) {
      plan.bias.push_back({token, -std::numeric_limits<float>::infinity()});
    }
    item.bias.count += static_cast<std::uint32_t>(request.stop_tokens.size());
  }
  item.counts = append_run(plan.counts, sequence.counts.begin(), sequence.counts.end());
}

}  // namespace tandem
