// From sampled tokens to events: the scheduler's listener, with one thread that runs the text streams (detokenising,
// stop strings), keeps the books of every request and calls its sink. Detokenising never delays a step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "api/request_counters.h"
#include "base/metrics.h"
#include "sched/sequence.h"
#include "tandem/engine.h"
#include "text/text_stream.h"

namespace tandem {

class OutputPipeline final : public SequenceListener {
 public:
  OutputPipeline(const Tokenizer& tokenizer, MetricRegistry& metrics);
  ~OutputPipeline() override;
  // `cancel` ends a sequence in the scheduler. Starts the thread.
  void start(std::function<void(SequenceId)> cancel);
  // Delivers what is queued, then joins the thread.
  void stop();

  // A request is known from here to its DoneEvent. Choice j is sequence first + j.
  void add(RequestId id, const Request& request, std::vector<TokenId> prompt, SequenceId first, EventSink sink);
  // Forgets a request that was never submitted: no event is sent.
  void remove(RequestId id);
  std::vector<SequenceId> sequences_of(RequestId id) const;
  std::size_t num_requests() const;

  void on_start(SequenceId id, std::uint32_t cached_tokens) override;
  void on_scores(SequenceId id, std::span<const Sampled> scores, std::span<const float> logits) override;
  void on_token(SequenceId id, const Sampled& sampled) override;
  void on_finish(SequenceId id, FinishReason reason, const absl::Status& status) override;

 private:
  struct Choice;
  struct RequestState;
  struct Scores {
    std::vector<Sampled> scores;
    std::vector<float> logits;
  };
  struct Finish {
    FinishReason reason;
    absl::Status status;
  };
  struct Start {
    std::uint32_t cached_tokens;
  };
  struct Record {
    SequenceId sequence;
    std::variant<Sampled, Start, Scores, Finish> what;
  };

  void push(Record record);
  void run();
  void handle(Record& record);
  void handle_scores(RequestState& request, Scores& scores);
  void handle_token(RequestState& request, std::uint32_t index, const Sampled& sampled);
  void handle_finish(RequestState& request, std::uint32_t index, const Finish& finish);
  void begin(RequestState& request);
  void emit_text(RequestState& request, std::uint32_t index, const Piece& piece);
  void end_choice(RequestState& request, std::uint32_t index, FinishReason reason);
  void end_request(RequestState& request, absl::Status status);
  TokenInfo token_info(const Sampled& sampled) const;

  const Tokenizer& tokenizer_;
  std::function<void(SequenceId)> cancel_;

  mutable std::mutex table_mutex_;  // guards the two maps; a state is changed by the output thread alone
  std::unordered_map<std::uint64_t, std::shared_ptr<RequestState>> requests_;  // shared: by both maps
  std::unordered_map<std::uint64_t, std::shared_ptr<RequestState>> by_sequence_;

  std::mutex queue_mutex_;
  std::condition_variable queue_filled_;
  std::vector<Record> queue_;
  bool stopping_ = false;
  std::thread thread_;

  Histogram ttft_seconds_, gap_seconds_, e2e_seconds_, prompt_length_, output_length_;
  Counter prompt_tokens_, generated_tokens_;
  RequestCounters counters_;
};

}  // namespace tandem
