// One generation inside the engine: what was asked for, its output so far, its hold on the KV pool, and where it
// stands. The thread that submits makes it; from then on the scheduler's thread owns and changes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "memory/kv_lease.h"
#include "memory/prefix_key.h"
#include "sched/prompt_facts.h"
#include "tandem/policy.h"
#include "tandem/request.h"
#include "tandem/sampling.h"
#include "tandem/types.h"

namespace tandem {

// What the scheduler is asked for: ids and numbers, no text.
struct SequenceRequest {
  SequenceId id;
  std::shared_ptr<const PromptFacts> prompt;  // never null; owned by all sequences of one request together
  SampleRow sampling;  // without its spans
  std::vector<TokenLogprob> bias;
  std::uint32_t max_tokens = 1;  // at least 1
  std::uint32_t min_tokens = 0;
  std::vector<TokenId> stop_tokens;
  bool score_prompt = false;
  bool wants_logits = false;  // of the last prompt token
  std::int32_t priority = 0;
  std::optional<std::uint32_t> ttft_ms;
  std::int64_t arrival_us = 0;  // steady clock
};

// Told on the scheduler thread; must not block.
class SequenceListener {
 public:
  virtual ~SequenceListener() = default;
  // Its prompt is read from now on, but for the first `cached_tokens`. At most once, before what follows.
  virtual void on_start(SequenceId id, std::uint32_t cached_tokens) = 0;
  // Scores of prompt tokens, in order, each once; `logits` with the last ones when asked for.
  virtual void on_scores(SequenceId id, std::span<const Sampled> scores, std::span<const float> logits) = 0;
  virtual void on_token(SequenceId id, const Sampled& sampled) = 0;
  // The last call for a sequence. A stop token is its last on_token. Not ok: it failed.
  virtual void on_finish(SequenceId id, FinishReason reason, const absl::Status& status) = 0;
};

struct Sequence {
  SequenceRequest request;
  std::vector<TokenId> output;            // the tokens generated so far
  std::vector<TokenCount> output_counts;  // of these, for the penalties; kept only when one is set
  std::uint32_t computed = 0;             // tokens whose keys and values are in the pool
  std::uint32_t scored = 0;               // prompt scores already delivered
  KvLease lease;
  std::vector<PrefixKey> own_keys;  // names of its blocks from the first on, once it has named one with output in it
  bool started = false;             // the listener knows

  std::optional<LaneId> lane;         // the lane that has steps of it
  std::uint32_t steps_in_flight = 0;  // sent, result not read; more than one only while decoding ahead
  std::uint32_t step_index = 0;       // its place in the newest of them
  bool left_out = false;              // the last plan had no room for it: it comes first in the next
  std::uint32_t suspect_group = 0;  // not 0: a step of it was lost; it runs with others of its group only (suspects.h)
  std::uint32_t lone_losses = 0;  // steps in a row that were lost with nobody else in them

  // Of RunningSequences.
  struct Place {
    Phase phase = Phase::kPrefill;
    std::size_t index = 0;
    std::uint32_t num_blocks = 0;
  };
  std::optional<Place> place;  // absent: it is not admitted
  // Of WaitingQueue.
  Urgency queued_as;  // its key in the queue's order
  Sequence* leader = nullptr;  // computes blocks that this sequence waits for
  std::uint32_t awaited_blocks = 0;  // how many the leader must have published
  std::optional<Urgency> follower;  // the most urgent sequence that waits for this one's blocks
  std::uint32_t lacking_blocks = 0;  // more than the cached ones, that the pool did not have when it was asked last

  std::uint32_t prompt_tokens() const { return static_cast<std::uint32_t>(request.prompt->tokens.size()); }
  std::uint32_t generated() const { return static_cast<std::uint32_t>(output.size()); }
  std::uint32_t num_tokens() const { return prompt_tokens() + generated(); }
  std::uint32_t remaining() const { return num_tokens() - computed; }
  // Appends its tokens [begin, end), prompt and output in one row.
  void append_tokens(std::uint32_t begin, std::uint32_t end, std::vector<TokenId>& into) const;
  // Ready to generate: all but the newest token are in the pool.
  bool decoding() const { return generated() > 0 && remaining() == 1; }
  Phase phase() const { return decoding() ? Phase::kDecode : Phase::kPrefill; }
  // Names of its whole blocks, as far as they were needed.
  std::span<const PrefixKey> keys() const { return own_keys.empty() ? request.prompt->keys : own_keys; }
  QueueView queue_view() const {
    return {request.id, request.priority, request.arrival_us, remaining(), request.ttft_ms};
  }
};

}  // namespace tandem
