// The engine: the embedding API, and the only part that front ends see. A front end submits a request with a sink,
// receives the request's events on an engine thread, and may cancel it; the process drains the engine before it ends.
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/placement.h"
#include "tandem/request.h"
#include "tandem/tokenizer.h"
#include "tandem/types.h"

namespace tandem {

using RequestId = Id<struct RequestTag, std::uint64_t>;

// One generated or scored token with its log-probabilities (natural log, of the unmodified model).
struct TokenInfo {
  TokenId id = 0;
  std::string bytes;  // not necessarily whole characters
  float logprob = 0.0F;
  struct Alternative {
    TokenId id = 0;
    std::string bytes;
    float logprob = 0.0F;
  };
  std::vector<Alternative> top;  // descending
};

// Accepted: the prompt's ids are known. Sent once, first.
struct PromptEvent {
  std::vector<TokenId> token_ids;
};

// The prompt has been read (score_prompt, return_last_logits). Sent at most once per request.
struct PromptScoresEvent {
  std::vector<TokenInfo> scores;   // of tokens 1..n-1 given the ones before
  std::vector<TokenId> top1;       // argmax after each token 0..n-1
  std::vector<float> last_logits;  // [vocab] when asked for
};

// Text of one choice: whole UTF-8 characters, nothing that may still turn out to be a stop string. `text` is
// empty only in an event that carries tokens for the logprobs of a request that asked for them.
struct TextEvent {
  std::uint32_t choice = 0;
  std::string text;
  std::vector<TokenInfo> tokens;  // those whose text this event completes; ids always, logprobs when asked for
};

struct FinishEvent {
  std::uint32_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> matched_stop;    // the stop string
  std::optional<TokenId> matched_stop_token;  // or the stop token
};

// The last event of a request. Not ok: the request failed after it was accepted (worker lost, draining, ...).
struct DoneEvent {
  absl::Status status;
  Usage usage;
};

using Event = std::variant<PromptEvent, PromptScoresEvent, TextEvent, FinishEvent, DoneEvent>;

// Called on an engine thread, in order, never concurrently for one request; must not block or throw.
using EventSink = std::function<void(Event)>;

struct ModelInfo {
  std::string id;  // as in /v1/models
  std::string root;
  std::uint32_t context_length = 0;
  std::int64_t created = 0;  // Unix seconds
};

// A snapshot for /health, /ready and load reports.
struct EngineState {
  bool alive = false;   // every process of the instance answers, or is being replaced within its deadline
  bool ready = false;   // accepts requests: loaded and not draining
  std::string reason;   // when not ready: why
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::uint32_t kv_blocks_total = 0;
  std::uint32_t kv_blocks_used = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Checks, renders and tokenises on the caller's thread, then queues. A failure here sends no event:
  // InvalidArgument naming the field (base/status.h), ResourceExhausted when the queue is full,
  // Unavailable when not ready. After ok the sink receives events up to one DoneEvent.
  virtual absl::StatusOr<RequestId> submit(Request request, EventSink sink) = 0;
  // The request's blocks are free within one step; a DoneEvent with Cancelled follows. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;
  // Later requests find no prefix that was computed before.
  virtual void flush_prefix_cache() = 0;
  // Shares hold from each lane's next step, workers are replaced with no request lost. `done` comes when all of it is
  // in effect: InvalidArgument, Internal (a worker could not be replaced; the old one serves on), DeadlineExceeded.
  virtual void set_placement(const PlacementChange& change, PlacementDone done) = 0;
  virtual PlacementState placement() const = 0;
  virtual EngineState state() const = 0;
  virtual const ModelInfo& model() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  // Prometheus text, version 0.0.4.
  virtual std::string metrics() const = 0;
  // Refuses new requests, lets running ones end until `grace` has passed, then ends them with Unavailable.
  virtual void drain(std::chrono::milliseconds grace) = 0;
};

}  // namespace tandem
