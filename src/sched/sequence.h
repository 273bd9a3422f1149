// One generation inside the engine: its tokens, its hold on the KV pool, and where it stands. Owned and changed by the
// scheduler thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tandem/kv_pool.h"
#include "tandem/policy.h"
#include "tandem/request.h"
#include "tandem/sampling.h"
#include "tandem/types.h"

namespace tandem {

// What the scheduler is asked for: ids and numbers, no text.
struct SequenceRequest {
  SequenceId id;
  std::vector<TokenId> prompt;
  SampleRow sampling;  // without its spans
  std::vector<TokenLogprob> bias;
  std::uint32_t max_tokens = 1;  // at least 1
  std::uint32_t min_tokens = 0;
  std::vector<TokenId> stop_tokens;
  bool score_prompt = false;
  bool wants_logits = false;  // of the last prompt token
  std::int32_t priority = 0;
  std::string tenant;  // who asked
  std::optional<std::uint32_t> ttft_ms;
  std::optional<std::uint32_t> tpot_ms;  // no policy reads it yet
  std::int64_t arrival_us = 0;  // steady clock
  bool use_prefix_cache = true;  // false: it reads nothing from there and leaves nothing
  std::string cache_salt;        // it shares blocks with requests of the same salt only
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
  std::vector<TokenId> tokens;  // prompt, then what was generated
  std::uint32_t computed = 0;   // tokens whose keys and values are in the pool
  std::uint32_t scored = 0;     // prompt scores already delivered
  KvLease lease;
  std::optional<PrefixKey> prefix_root;  // what its blocks' names start from; absent: it shares none
  std::vector<PrefixKey> keys;           // names of its whole blocks, as far as they were needed
  bool started = false;         // the listener knows
  std::vector<TokenCount> counts;  // for the penalties; kept only when one is set

  std::optional<LaneId> lane;    // the lane that has steps of it
  std::uint32_t steps_in_flight = 0;   // sent, result not read; more than one only while decoding ahead
  std::uint32_t step_index = 0;  // its place in the newest of them
  bool left_out = false;         // the last plan had no room for it: it comes first in the next
  std::uint32_t lane_losses = 0;  // since its last step that ended well

  std::uint32_t generated() const { return static_cast<std::uint32_t>(tokens.size() - request.prompt.size()); }
  std::uint32_t remaining() const { return static_cast<std::uint32_t>(tokens.size()) - computed; }
  // Ready to generate: all but the newest token are in the pool.
  bool decoding() const { return generated() > 0 && remaining() == 1; }
  // The name of the next block it computes, if that can be shared.
  const PrefixKey* next_key() const { return lease.num_cached() < keys.size() ? &keys[lease.num_cached()] : nullptr; }
  QueueView queue_view() const { return {request.priority, request.arrival_us, remaining(), request.ttft_ms}; }
};

}  // namespace tandem
