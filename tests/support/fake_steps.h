// What a fake lane does with a plan. Its "keys and values" are the tokens themselves, kept per block as a real lane
// keeps KV; the next token is a hash of all it finds through the plan's block table. So a block that was given away too
// early, a chunk that was skipped or a hand-off that lost something changes the output. One lane's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fmt/core.h"
#include "support/fake_kv.h"
#include "tandem/transport.h"

namespace tandem::test {

class FakeSteps {
 public:
  explicit FakeSteps(FakeKv& kv) : kv_(kv) {}

  // A plan sent ahead of what these steps did not draw gives an error.
  void run(const Plan& plan, Result& result) {
    result.clear();
    result.step = plan.step;
    for (const PlanItem& item : plan.items) run_item(plan, item, result);
    sampled_.clear();
    stops_ = plan.stops;
    for (std::size_t i = 0; i < plan.items.size(); ++i) sampled_.push_back({plan.items[i], result.items[i]});
  }

  // Every block of the plan is in use from the start of a step to its end.
  void begin_use(const Plan& plan) {
    for_blocks(plan, [this](SequenceId s, BlockId block, FakeKv::Use use) { kv_.begin_use(s, block, use); });
  }
  void end_use(const Plan& plan) {
    for_blocks(plan, [this](SequenceId, BlockId block, FakeKv::Use use) { kv_.end_use(block, use); });
  }

 private:
  struct Drawn {
    PlanItem item;
    ResultItem answer;
  };

  template <class Visit>
  void for_blocks(const Plan& plan, const Visit& visit) {
    for (const PlanItem& item : plan.items) {
      for (std::uint32_t i = 0; i < item.blocks.count; ++i) {
        const bool writes = i >= item.position / kv_.block_tokens;
        visit(item.sequence, plan.blocks[item.blocks.begin + i], writes ? FakeKv::Use::kWrite : FakeKv::Use::kRead);
      }
    }
  }

  // The token that a step sent ahead continues with. None when the sequence ended with it.
  std::optional<TokenId> newest(const PlanItem& item, Result& result) const {
    const auto wrong = [&](const char* what) {
      result.error = fmt::format("sequence {} was sent ahead {}", item.sequence.value, what);
      return std::nullopt;
    };
    if (item.previous_index >= sampled_.size()) return wrong("of a step that has no such item");
    const auto& [before, answer] = sampled_[item.previous_index];
    if (before.sequence != item.sequence) return wrong("and follows another");
    if (answer.has_token == 0) return std::nullopt;
    if (before.position + std::max(before.tokens.count, 1U) != item.position) return wrong("to another position");
    if (before.unknown_tokens + 1 < item.unknown_tokens) return wrong("beyond what this lane drew");
    const auto stops = std::span(stops_).subspan(before.stops.begin, before.stops.count);
    if (std::ranges::find(stops, answer.sampled.token) != stops.end()) return std::nullopt;
    return answer.sampled.token;
  }

  void run_item(const Plan& plan, const PlanItem& item, Result& result) {
    ResultItem& answer = result.items.emplace_back();
    answer.sequence = item.sequence;
    std::vector<TokenId> tokens(plan.tokens.begin() + item.tokens.begin,
                                plan.tokens.begin() + item.tokens.begin + item.tokens.count);
    if (item.unknown_tokens > 0) {
      const std::optional<TokenId> token = newest(item, result);
      if (!token) return;
      tokens = {*token};
    }
    const auto block = [&](std::uint32_t at) { return plan.blocks[item.blocks.begin + at / kv_.block_tokens]; };
    std::uint32_t end = item.position;
    for (const TokenId token : tokens) {
      kv_.write(item.sequence, block(end), end, token);
      ++end;
    }
    answer.scores = {static_cast<std::uint32_t>(result.scores.size()), item.targets.count};
    for (std::uint32_t i = 0; i < item.targets.count; ++i) {
      Sampled& score = result.scores.emplace_back();
      score.token = plan.targets[item.targets.begin + i];
      score.logprob = -static_cast<float>(item.position + i);
    }
    if (item.wants_sample == 0) return;
    std::vector<TokenId> seen;
    for (std::uint32_t at = 0; at < end; ++at) seen.push_back(kv_.read(item.sequence, block(at), at));
    answer.has_token = 1;
    answer.sampled.token = fake_next(seen);
    if (item.wants_logits != 0) {
      answer.logits = {static_cast<std::uint32_t>(result.logits.size()), static_cast<std::uint32_t>(kFakeVocab)};
      result.logits.resize(result.logits.size() + kFakeVocab, static_cast<float>(answer.sampled.token));
    }
  }

  FakeKv& kv_;
  std::vector<Drawn> sampled_;  // in the last step
  std::vector<TokenId> stops_;
};

}  // namespace tandem::test
