// Turns what a sequence needs next into an item of a plan. Stateless but for its limits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sched/sequence.h"
#include "tandem/transport.h"

namespace tandem {

struct PlanLimits {
  std::uint32_t block_tokens = 16;
  std::uint32_t prefill_chunk_tokens = 256;  // prompt tokens of one step, over all its sequences
  std::uint32_t max_decode_items = 64;
  std::size_t max_bytes = std::size_t{1} << 20;  // of a plan's message; a plan of one sequence may be larger
};

class PlanBuilder final {
 public:
  explicit PlanBuilder(PlanLimits limits) : limits_(limits) {}

  const PlanLimits& limits() const { return limits_; }
  std::uint32_t blocks_for(std::uint64_t num_tokens) const {
    return static_cast<std::uint32_t>((num_tokens + limits_.block_tokens - 1) / limits_.block_tokens);
  }
  // False: the plan would not fit its ring with `num_tokens` more of this sequence, which then waits for a later one.
  bool has_room(const Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const;
  // Appends the next `num_tokens` tokens of the sequence; its lease covers them.
  void append(Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const;
  // Appends the decode step after those that a lane has of the sequence already; its lease covers it. The newest of
  // them is of the plan before this one.
  void append_ahead(Plan& plan, const Sequence& sequence) const;

 private:
  PlanItem& add_item(Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const;
  void add_sampling(Plan& plan, PlanItem& item, const Sequence& sequence) const;

  PlanLimits limits_;
};

}  // namespace tandem
