#include "sched/plan_builder.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "ipc/token_counts.h"

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

std::size_t PlanBuilder::item_bytes(const Sequence& sequence, std::uint32_t num_tokens) const {
  const SequenceRequest& request = sequence.request;
  const std::uint64_t end = std::uint64_t{sequence.computed} + sequence.steps_in_flight + num_tokens;
  const std::size_t bytes =
      sizeof(PlanItem) + blocks_for(end) * sizeof(BlockId) + 2 * std::size_t{num_tokens} * sizeof(TokenId);
  if (end < sequence.num_tokens()) return bytes;  // it samples nothing yet
  return bytes + (request.bias.size() + request.stop_tokens.size()) * sizeof(TokenLogprob) +
         (request.prompt->counts.size() + sequence.output_counts.size()) * sizeof(TokenCount) +
         request.stop_tokens.size() * sizeof(TokenId);
}

std::size_t PlanBuilder::answer_bytes(const PlanItem& item) const {
  const std::size_t logits = item.wants_logits != 0 ? static_cast<std::size_t>(limits_.vocab_size) : 0;
  return sizeof(ResultItem) + item.targets.count * sizeof(Sampled) + logits * sizeof(float);
}

std::uint32_t PlanBuilder::answerable(const Sequence& sequence, std::uint32_t num_tokens,
                                      std::size_t used_bytes) const {
  const SequenceRequest& request = sequence.request;
  std::size_t fixed = used_bytes + sizeof(ResultItem);
  if (request.wants_logits) fixed += static_cast<std::size_t>(limits_.vocab_size) * sizeof(float);
  if (fixed > limits_.result_bytes) return 0;
  if (!request.score_prompt) return num_tokens;
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(num_tokens, (limits_.result_bytes - fixed) / sizeof(Sampled)));
}

// The position, and the blocks up to the end of the step.
PlanItem& PlanBuilder::add_item(Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const {
  PlanItem& item = plan.items.emplace_back();
  item.sequence = sequence.request.id;
  item.position = sequence.computed + sequence.steps_in_flight;
  const std::uint32_t num_blocks = blocks_for(std::uint64_t{item.position} + num_tokens);
  const auto blocks = sequence.lease.blocks();
  TANDEM_CHECK(num_blocks <= blocks.size(), "a step's tokens have blocks");
  item.blocks = append_run(plan.blocks, blocks.begin(), blocks.begin() + num_blocks);
  item.tokens.begin = static_cast<std::uint32_t>(plan.tokens.size());
  item.sampling = sequence.request.sampling;
  return item;
}

void PlanBuilder::add_sampling(Plan& plan, PlanItem& item, const Sequence& sequence) const {
  const SequenceRequest& request = sequence.request;
  item.wants_sample = 1;
  item.sampling.position = std::uint64_t{sequence.num_tokens()} + item.unknown_tokens;
  item.bias = append_run(plan.bias, request.bias.begin(), request.bias.end());
  if (sequence.generated() + item.unknown_tokens < request.min_tokens) {
    for (const TokenId token : request.stop_tokens) {
      plan.bias.push_back({token, -std::numeric_limits<float>::infinity()});
    }
    item.bias.count += static_cast<std::uint32_t>(request.stop_tokens.size());
  }
  item.counts.begin = static_cast<std::uint32_t>(plan.counts.size());
  append_counts(plan.counts, request.prompt->counts, sequence.output_counts);
  item.counts.count = static_cast<std::uint32_t>(plan.counts.size()) - item.counts.begin;
  item.stops = append_run(plan.stops, request.stop_tokens.begin(), request.stop_tokens.end());
}

void PlanBuilder::append(Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const {
  const SequenceRequest& request = sequence.request;
  const std::uint32_t end = sequence.computed + num_tokens;
  TANDEM_CHECK(sequence.steps_in_flight == 0 && end <= sequence.num_tokens(), "a step's tokens are known");
  PlanItem& item = add_item(plan, sequence, num_tokens);
  item.tokens = {static_cast<std::uint32_t>(plan.tokens.size()), num_tokens};
  sequence.append_tokens(sequence.computed, end, plan.tokens);

  // Scores of prompt tokens not delivered yet: targets[i] follows tokens[i]. A recomputed prompt starts below
  // `scored`; its chunk is then scored only from where the first run ended.
  if (request.score_prompt && sequence.scored == sequence.computed) {
    const std::uint32_t last = std::min(end + 1, sequence.prompt_tokens());
    if (last > sequence.computed + 1) {
      const auto prompt = request.prompt->tokens.begin();
      item.targets = append_run(plan.targets, prompt + sequence.computed + 1, prompt + last);
    }
  }
  if (end != sequence.num_tokens()) return;
  item.wants_logits = request.wants_logits && end == sequence.prompt_tokens() ? 1 : 0;
  add_sampling(plan, item, sequence);
}

void PlanBuilder::append_ahead(Plan& plan, const Sequence& sequence) const {
  TANDEM_CHECK(sequence.steps_in_flight > 0 && sequence.decoding(), "only decode steps are sent ahead");
  PlanItem& item = add_item(plan, sequence, 1);
  item.unknown_tokens = sequence.steps_in_flight;
  item.previous_index = sequence.step_index;
  add_sampling(plan, item, sequence);
}

}  // namespace tandem
