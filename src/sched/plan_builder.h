// Turns what a sequence needs next into an item of a plan. It holds limits and no other state; the scheduler owns it.
// The cost of an item, and its size in the plan, grows with the context: the whole block table is copied, and with a
// penalty also the count of every distinct token (8 bytes each), in every step.
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
  std::size_t ring_bytes = std::size_t{1} << 20;  // where plans lie until the lane takes them
  std::size_t result_bytes = std::size_t{1} << 20;  // for the answers of one step
  TokenId vocab_size = 0;  // bounds the ids that a lane may answer with, and gives the size of logits
};

class PlanBuilder final {
 public:
  explicit PlanBuilder(PlanLimits limits) : limits_(limits) {}

  const PlanLimits& limits() const { return limits_; }
  std::uint32_t blocks_for(std::uint64_t num_tokens) const {
    return static_cast<std::uint32_t>((num_tokens + limits_.block_tokens - 1) / limits_.block_tokens);
  }
  // What the next `num_tokens` tokens of the sequence add to a plan's message, at most.
  std::size_t item_bytes(const Sequence& sequence, std::uint32_t num_tokens) const;
  // What a plan's item makes of the result's message.
  std::size_t answer_bytes(const PlanItem& item) const;
  // So many of the sequence's next `num_tokens` tokens can be in a step whose result has `used_bytes` already; 0: none.
  std::uint32_t answerable(const Sequence& sequence, std::uint32_t num_tokens, std::size_t used_bytes) const;
  // True when a message of `bytes` bytes fits the ring.
  bool fits(std::size_t bytes) const { return bytes + kFrameBytes <= limits_.ring_bytes; }
  // Appends the next `num_tokens` tokens of the sequence; its lease covers them.
  void append(Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const;
  // Appends the decode step that follows the sequence's steps in flight; its lease covers it. The newest step in flight
  // belongs to the previous plan of the same lane.
  void append_ahead(Plan& plan, const Sequence& sequence) const;

 private:
  static constexpr std::size_t kFrameBytes = 256;  // around messages, with room to spare
  PlanItem& add_item(Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const;
  void add_sampling(Plan& plan, PlanItem& item, const Sequence& sequence) const;

  PlanLimits limits_;
};

}  // namespace tandem
