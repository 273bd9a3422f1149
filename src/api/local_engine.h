// The Engine of this process: checks and tokenises requests, hands their sequences to the scheduler, and has the
// output pipeline turn tokens into events. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "api/output.h"
#include "api/request_counters.h"
#include "base/metrics.h"
#include "sched/scheduler.h"
#include "tandem/engine.h"
#include "text/chat_template.h"

namespace tandem {

struct LocalEngineOptions {
  ModelInfo model;                         // context_length: of prompt and output together
  std::uint32_t max_sequence_tokens = 0;   // what the KV pool can ever hold of one sequence
  std::optional<std::uint32_t> default_ttft_ms;
  std::optional<std::uint32_t> default_tpot_ms;
  std::function<std::string()> trouble;    // empty while every process of the instance is well
  std::function<PlacementState()> placement;
  std::function<void(const PlacementChange&, PlacementDone)> set_placement;  // of checked changes
  std::function<void()> end_placement_changes;  // fails those under way; there will be no others
};

class LocalEngine final : public Engine {
 public:
  // `chat_template` may be null: conversations are then refused. All references outlive the engine.
  LocalEngine(LocalEngineOptions options, const Tokenizer& tokenizer, const ChatTemplate* chat_template,
              Scheduler& scheduler, OutputPipeline& output, MetricRegistry& metrics);

  absl::StatusOr<RequestId> submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  EngineState state() const override;
  const ModelInfo& model() const override { return options_.model; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  void set_placement(const PlacementChange& change, PlacementDone done) override;
  PlacementState placement() const override { return options_.placement(); }
  void flush_prefix_cache() override { scheduler_.flush_cache(); }
  std::string metrics() const override { return metrics_.scrape(); }
  void drain(std::chrono::milliseconds grace) override;
  // The two halves of drain(), for a caller that waits for something else besides.
  void begin_drain() { draining_.store(true); }
  bool busy() const { return output_.num_requests() > 0; }

 private:
  absl::StatusOr<RequestId> try_submit(Request request, EventSink sink);
  absl::StatusOr<std::vector<TokenId>> tokenize(const Prompt& prompt) const;
  absl::Status check(const Request& request, const std::vector<TokenId>& prompt) const;
  SequenceRequest sequence_request(const Request& request, const std::vector<TokenId>& prompt) const;

  const LocalEngineOptions options_;
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_template_;
  Scheduler& scheduler_;
  OutputPipeline& output_;
  MetricRegistry& metrics_;
  RequestCounters counters_;
  std::atomic<std::uint64_t> next_request_{1};
  std::atomic<std::uint64_t> next_sequence_{1};
  std::atomic<bool> draining_{false};
};

}  // namespace tandem
