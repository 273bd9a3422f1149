#include "sched/result_check.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

struct Checker {
  const Result& result;
  TokenId vocab_size;

  bool outside(TokenId token) const { return token < 0 || token >= vocab_size; }

  // What is wrong with a sampled or scored token; null: nothing.
  const char* fault(const Sampled& sampled, std::int32_t most_alternatives) const {
    if (outside(sampled.token)) return "a token outside the vocabulary";
    if (std::isnan(sampled.logprob)) return "a log-probability that is no number";
    if (sampled.num_top < 0 || sampled.num_top > most_alternatives) return "alternatives that nobody asked for";
    const auto top = std::span(sampled.top).first(static_cast<std::size_t>(sampled.num_top));
    const auto bad = [this](const TokenLogprob& each) { return outside(each.token) || std::isnan(each.logprob); };
    return std::ranges::any_of(top, bad) ? "an alternative that is none" : nullptr;
  }

  const char* fault(const LaneStep::Item& asked, const ResultItem& answer) const {
    if (answer.sequence != asked.id) return "another sequence";
    if (asked.sequence == nullptr || asked.void_answer || answer.status != ItemStatus::kOk) return nullptr;  // not used
    if ((answer.has_token != 0) != asked.wants_token) return asked.wants_token ? "no token" : "a token not asked for";
    if (answer.scores.count != asked.num_scores) return "another number of scores";
    if (answer.logits.count != (asked.wants_logits ? static_cast<std::uint32_t>(vocab_size) : 0)) {
      return "another number of logits";
    }
    if (answer.has_token != 0) {
      if (const char* what = fault(answer.sampled, asked.most_alternatives)) return what;
    }
    for (const Sampled& score : std::span(result.scores).subspan(answer.scores.begin, answer.scores.count)) {
      if (const char* what = fault(score, asked.most_alternatives)) return what;
    }
    return nullptr;
  }
};

}  // namespace

LaneStep::Item asked_of(const PlanItem& item, Sequence& sequence, std::uint32_t num_tokens) {
  return {.sequence = &sequence,
          .num_tokens = num_tokens,
          .void_answer = false,
          .id = item.sequence,
          .num_scores = item.targets.count,
          .wants_token = item.wants_sample != 0,
          .wants_logits = item.wants_logits != 0,
          .most_alternatives = item.sampling.num_top_logprobs};
}

absl::Status check_result(const LaneStep& step, const Result& result, TokenId vocab_size) {
  if (result.step != step.number) {
    return absl::DataLossError(fmt::format("it answers step {} when step {} is due", result.step, step.number));
  }
  if (!result.error.empty()) return absl::OkStatus();
  if (result.items.size() != step.items.size()) {
    return absl::DataLossError(
        fmt::format("its answer to step {} has {} items of {}", step.number, result.items.size(), step.items.size()));
  }
  const Checker checker{result, vocab_size};
  for (std::size_t index = 0; index < step.items.size(); ++index) {
    if (const char* fault = checker.fault(step.items[index], result.items[index])) {
      return absl::DataLossError(fmt::format("its answer to step {} has, for sequence {}, {}", step.number,
                                             step.items[index].id.value, fault));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
