// What scheduler and lane say to each other: one Plan and one Result per step, over two rings in shared memory.
// A plan carries all that a step needs (tokens, blocks, sampling), so a worker that was just started can run the next
// step of any sequence. Only a plan that was sent ahead, before the results of the plans before it were read, leaves
// out what the lane alone knows yet: the tokens it drew in those steps.
// Plans and results are flat, so that a reused object allocates nothing after warm-up.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/sampling.h"
#include "tandem/types.h"

namespace tandem {

// A run of elements in one of the plan's flat lists.
struct Run {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

struct PlanItem {
  SequenceId sequence;
  std::uint32_t position = 0;  // absolute position of its first token
  Run tokens;
  Run blocks;                  // the sequence's whole table, up to the last token of this step
  Run targets;                 // prompt scoring: targets[i] follows tokens[i]; empty: none wanted
  Run bias;
  Run counts;
  Run stops;                   // drawing one of these ends the sequence: its items in plans sent ahead are not run
  // Of a decode step sent ahead: how many of the sequence's newest tokens the scheduler did not know, at most
  // kMaxLookAhead. The step's one row is the newest; `tokens` is empty and `counts` lacks them all.
  std::uint32_t unknown_tokens = 0;
  std::uint32_t previous_index = 0;       // index of the same sequence in the previous plan's items
  std::uint32_t wants_sample = 0;  // 1: draw the token that follows the last row
  std::uint32_t wants_logits = 0;  // 1: return the last row's logits, before any sampling change
  SampleRow sampling;              // its spans are filled in by the lane from `bias` and `counts`
};

struct Plan {
  std::uint64_t step = 0;
  Share share;
  std::vector<PlanItem> items;
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  std::vector<TokenId> targets;
  std::vector<TokenLogprob> bias;
  std::vector<TokenCount> counts;
  std::vector<TokenId> stops;

  void clear();
};

// What became of one item. A failed item ends its own request; the others of the step are valid.
enum class ItemStatus : std::uint32_t {
  kOk,
  kRefused,   // the item names what does not exist: a token, a block, tokens of an earlier step
  kNumeric,   // the model gave no number to sample from
  kTooLarge,  // the answer, with its scores and logits, fits no message
};

struct ResultItem {
  SequenceId sequence;
  ItemStatus status = ItemStatus::kOk;
  std::uint32_t has_token = 0;
  Sampled sampled;
  Run scores;  // one per target
  Run logits;
};

struct Result {
  std::uint64_t step = 0;
  std::uint64_t busy_us = 0;    // time the lane worked on the step
  std::uint64_t waited_us = 0;  // time it waited for the plan
  std::vector<ResultItem> items;
  std::vector<Sampled> scores;
  std::vector<float> logits;
  std::string error;  // not empty: the step failed as a whole and no item is valid

  void clear();
};

// The scheduler's end of a lane.
class LanePort {
 public:
  virtual ~LanePort() = default;
  // ResourceExhausted: the ring is full (the scheduler sent too much ahead). Unavailable: the peer is gone.
  virtual absl::Status send(const Plan& plan) = 0;
  // True when a result was read into `result`; never waits. A damaged message is DataLoss.
  virtual absl::StatusOr<bool> poll(Result& result) = 0;
};

// The lane's end.
class WorkerPort {
 public:
  virtual ~WorkerPort() = default;
  // Waits until a plan is there (true) or `timeout` has passed (false).
  virtual absl::StatusOr<bool> receive(Plan& plan, std::chrono::milliseconds timeout) = 0;
  virtual absl::Status send(const Result& result) = 0;
};

}  // namespace tandem
