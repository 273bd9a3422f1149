// What a lane remembers of its last step: the tokens it sampled, for a plan that was sent before they were known. The
// scheduler can do without all of it: when a worker dies, it plans the steps anew with the tokens it has read.
// Owned by the lane.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "tandem/transport.h"

namespace tandem {

// The newest tokens of one sequence.
struct SampledTail {
  SequenceId sequence;
  std::uint64_t end = 0;     // the sequence's length with them
  std::uint32_t count = 0;   // sampled in a row, as far as remembered
  bool ended = true;         // nothing was sampled, or a stop token: the sequence does not go on
  std::array<TokenId, kMaxLookAhead> tokens{};  // the first `count`, newest last

  std::span<const TokenId> newest(std::uint32_t n) const { return std::span(tokens).first(count).last(n); }
};

class SampledTokens final {
 public:
  // InvalidArgument when the item was sent ahead and does not follow the item of the last step that it names.
  absl::Status check(const Plan& plan, const PlanItem& item) const;
  // The tokens that the item's plan lacks; null for an item that lacks none. The item has passed check().
  const SampledTail* tail_of(const PlanItem& item) const;
  // The step is over. Of one that failed nothing goes on.
  void record(const Plan& plan, const Result& result);

 private:
  std::uint64_t step_ = 0;
  std::vector<SampledTail> tails_;  // one for each item of the last plan
  std::vector<SampledTail> next_;   // kept for its memory
};

}  // namespace tandem
