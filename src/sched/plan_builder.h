// Turns what a sequence needs next into an item of a plan. Stateless but for its limits.
#pragma once

#include <cstdint>

#include "sched/sequence.h"
#include "tandem/transport.h"

namespace tandem {

struct PlanLimits {
  std::uint32_t block_tokens = 16;
  std::uint32_t prefill_chunk_tokens = 256;  // prompt tokens of one step, over all its sequences
  std::uint32_t max_decode_items = 64;
};

class PlanBuilder final {
 public:
  explicit PlanBuilder(PlanLimits limits) : limits_(limits) {}

  const PlanLimits& limits() const { return limits_; }
  std::uint32_t blocks_for(std::uint64_t num_tokens) const {
    return static_cast<std::uint32_t>((num_tokens + limits_.block_tokens - 1) / limits_.block_tokens);
  }
  // Appends the next `num_tokens` tokens of the sequence; its lease covers them. Sets sequence.step_*.
  void append(Plan& plan, Sequence& sequence, std::uint32_t num_tokens) const;

 private:
  PlanLimits limits_;
};

}  // namespace tandem
