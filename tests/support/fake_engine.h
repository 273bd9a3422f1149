// An engine without a model, for tests of the front ends: its text is a function of (prompt, seed, choice), one token
// per step of its thread. Words in the prompt change what happens:
//   !refuse=429|503|500  submit() fails       !fail=N   the request fails with Unavailable after N tokens of a choice
//   !silent              no token, until cancelled        !queued=429   accepted, then refused before the first token
// Text ids: 0-255 are bytes, then come words, two halves of one character, and a control token.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "tandem/engine.h"

namespace tandem {

class FakeTokenizer final : public Tokenizer {
 public:
  FakeTokenizer();
  std::vector<TokenId> encode(std::string_view text, std::span<const TextSpan> user_spans) const override;
  std::vector<TokenId> encode_prompt(std::string_view text) const override { return encode(text, {}); }
  std::string_view token_bytes(TokenId id) const override;
  TokenKind kind(TokenId id) const override;
  bool ends_generation(TokenId id) const override { return kind(id) == TokenKind::kControl; }
  TokenId vocab_size() const override { return static_cast<TokenId>(spec_.tokens.size()); }
  const TokenizerSpec& spec() const override { return spec_; }

 private:
  TokenizerSpec spec_;
};

struct FakeEngineOptions {
  std::chrono::microseconds step{200};
  std::uint32_t natural_tokens = 12;  // a choice's length when nothing else ends it
  std::uint32_t context_length = 4096;
  std::size_t max_running = 1000;     // more: ResourceExhausted
};

class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine() override;

  absl::StatusOr<RequestId> submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  void flush_prefix_cache() override { ++num_flushes_; }
  std::size_t num_flushes() const { return num_flushes_; }
  void set_placement(const PlacementChange& change, PlacementDone done) override;
  PlacementState placement() const override;
  EngineState state() const override;
  const ModelInfo& model() const override { return model_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  std::string metrics() const override;
  MetricRegistry& registry() { return registry_; }
  void drain(std::chrono::milliseconds grace) override;

  void set_alive(bool alive) { alive_ = alive; }
  std::size_t num_cancelled() const { return num_cancelled_; }
  std::size_t num_running() const;
  std::vector<Request> requests() const;  // all that were accepted, in order
  bool wait_running(std::size_t count, std::chrono::milliseconds timeout) const;

 private:
  struct Step {
    std::string text;
    std::vector<TokenInfo> tokens;
  };
  struct Choice {
    std::vector<Step> steps;
    std::size_t next = 0;
    std::uint32_t num_tokens = 0;
    FinishEvent finish;
    bool finished = false;
  };
  struct Running {
    EventSink sink;
    std::vector<Choice> choices;
    Usage usage;
    std::string prompt;
    std::vector<Event> first;
    bool cancelled = false;
    absl::Status failure;
    std::uint32_t fail_after = UINT32_MAX;
  };

  Choice make_choice(const Request& request, std::uint64_t seed, std::uint32_t index) const;
  void add_scores(const Request& request, const std::vector<TokenId>& ids, Running& running) const;
  TokenInfo info(TokenId id, bool wants_top, std::uint32_t top) const;
  bool advance(Running& running);  // false: it has ended
  void run();
  void apply_placement();

  const FakeEngineOptions options_;
  const ModelInfo model_;
  const FakeTokenizer tokenizer_;
  MetricRegistry registry_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint64_t, Running> running_;
  std::vector<Request> requests_;
  PlacementState placement_{Placement::kSemi, 4, 2, {{"prefill", true, 1, 0}, {"decode", true, 1, 0}}};
  std::vector<std::pair<PlacementChange, PlacementDone>> changes_;  // not answered yet
  std::uint64_t next_id_ = 1;
  bool draining_ = false;
  bool stopping_ = false;
  std::atomic<bool> alive_ = true;
  std::atomic<std::size_t> num_cancelled_ = 0;
  std::atomic<std::size_t> num_flushes_ = 0;
  std::thread thread_;
};

}  // namespace tandem
