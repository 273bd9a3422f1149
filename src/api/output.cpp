#include "api/output.h"

#include <algorithm>

#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace tandem {

struct OutputPipeline::Choice {
  SequenceId sequence;
  std::unique_ptr<TextStream> stream;
  std::deque<TokenInfo> held;     // pushed into the stream, text not released yet
  std::size_t num_released = 0;   // tokens that left `held`
  std::uint32_t num_tokens = 0;
  std::optional<TokenId> last_token;
  bool text_ended = false;  // a stop string matched: later tokens are ignored
  bool finished = false;
};

struct OutputPipeline::RequestState {
  RequestId id;
  EventSink sink;
  std::vector<TokenId> prompt;
  std::vector<std::string> stop;
  std::vector<Choice> choices;
  std::vector<Sampled> scores;
  bool score_prompt = false;
  bool prompt_only = false;  // max_tokens is 0
  bool begun = false;
  std::uint32_t open_choices = 0;
  bool cut_off = false;  // a choice ended at its length
  std::uint32_t cached_tokens = 0;
  std::int64_t arrival_us = 0;
  std::int64_t last_token_us = 0;
};

OutputPipeline::OutputPipeline(const Tokenizer& tokenizer, MetricRegistry& metrics)
    : tokenizer_(tokenizer), counters_(metrics) {
  ttft_seconds_ = metrics.histogram("tandem_time_to_first_token_seconds",
                                    "Seconds from a request's arrival to its first token", round_bounds(0.005, 500));
  gap_seconds_ = metrics.histogram("tandem_inter_token_latency_seconds",
                                   "Seconds between two tokens of a request with one choice", round_bounds(0.001, 10));
  e2e_seconds_ = metrics.histogram("tandem_e2e_request_latency_seconds", "Seconds from a request's arrival to its end",
                                   round_bounds(0.01, 1000));
  prompt_length_ = metrics.histogram("tandem_request_prompt_tokens", "Prompt tokens of a request that had a result",
                                     round_bounds(1, 200'000));
  output_length_ = metrics.histogram("tandem_request_generation_tokens",
                                     "Tokens that a request generated, all its choices together, whatever its end",
                                     round_bounds(1, 200'000));
  prompt_tokens_ =
      metrics.counter("tandem_prompt_tokens_total",
                      "Prompt tokens of requests, cached ones too, once a request's first result is there: "
                      "the sum of usage.prompt_tokens, with those of requests that ended early");
  generated_tokens_ = metrics.counter("tandem_generation_tokens_total",
                                      "Tokens that requests generated: the sum of usage.completion_tokens, with those "
                                      "of requests that ended early");
}

OutputPipeline::~OutputPipeline() { stop(); }

void OutputPipeline::start(std::function<void(SequenceId)> cancel) {
  cancel_ = std::move(cancel);
  thread_ = std::thread([this] { run(); });
}

void OutputPipeline::stop() {
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
  }
  queue_filled_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void OutputPipeline::add(RequestId id, const Request& request, std::vector<TokenId> prompt, SequenceId first,
                         EventSink sink) {
  auto state = std::make_shared<RequestState>();
  state->id = id;
  state->sink = std::move(sink);
  state->prompt = std::move(prompt);
  state->stop = request.stopping.stop;
  state->score_prompt = request.score_prompt;
  state->prompt_only = request.stopping.max_tokens == 0U;
  state->open_choices = request.num_choices;
  state->arrival_us = steady_now_us();
  TextStreamOptions options;
  options.stop = request.stopping.stop;
  if (request.stopping.include_stop_text) options.stop_text = StopText::kIncluded;
  if (request.show_control_tokens) options.control_text = ControlText::kShown;
  for (std::uint32_t choice = 0; choice < request.num_choices; ++choice) {
    Choice& added = state->choices.emplace_back();
    added.sequence = SequenceId{first.value + choice};
    added.stream = std::make_unique<TextStream>(tokenizer_, options);
  }
  const std::lock_guard lock(table_mutex_);
  for (const Choice& choice : state->choices) by_sequence_.emplace(choice.sequence.value, state);
  requests_.emplace(id.value, std::move(state));
}

void OutputPipeline::remove(RequestId id) {
  const std::lock_guard lock(table_mutex_);
  const auto at = requests_.find(id.value);
  if (at == requests_.end()) return;
  for (const Choice& choice : at->second->choices) by_sequence_.erase(choice.sequence.value);
  requests_.erase(at);
}

std::vector<SequenceId> OutputPipeline::sequences_of(RequestId id) const {
  const std::lock_guard lock(table_mutex_);
  std::vector<SequenceId> sequences;
  const auto at = requests_.find(id.value);
  if (at == requests_.end()) return sequences;
  for (const Choice& choice : at->second->choices) sequences.push_back(choice.sequence);
  return sequences;
}

std::size_t OutputPipeline::num_requests() const {
  const std::lock_guard lock(table_mutex_);
  return requests_.size();
}

void OutputPipeline::on_start(SequenceId id, std::uint32_t cached_tokens) { push({id, Start{cached_tokens}}); }

void OutputPipeline::on_scores(SequenceId id, std::span<const Sampled> scores, std::span<const float> logits) {
  push({id, Scores{{scores.begin(), scores.end()}, {logits.begin(), logits.end()}}});
}

void OutputPipeline::on_token(SequenceId id, const Sampled& sampled) { push({id, sampled}); }

void OutputPipeline::on_finish(SequenceId id, FinishReason reason, const absl::Status& status) {
  push({id, Finish{reason, status}});
}

void OutputPipeline::push(Record record) {
  bool was_empty = false;
  {
    const std::lock_guard lock(queue_mutex_);
    was_empty = queue_.empty();
    queue_.push_back(std::move(record));
  }
  if (was_empty) queue_filled_.notify_one();
}

void OutputPipeline::run() {
  std::vector<Record> batch;
  for (;;) {
    batch.clear();
    {
      std::unique_lock lock(queue_mutex_);
      queue_filled_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::swap(batch, queue_);
    }
    for (Record& record : batch) handle(record);
  }
}

void OutputPipeline::handle(Record& record) {
  std::shared_ptr<RequestState> request;
  {
    const std::lock_guard lock(table_mutex_);
    const auto at = by_sequence_.find(record.sequence.value);
    if (at == by_sequence_.end()) return;  // its request has ended
    request = at->second;
  }
  const auto choice = static_cast<std::uint32_t>(record.sequence.value - request->choices.front().sequence.value);
  if (const auto* sampled = std::get_if<Sampled>(&record.what)) {
    handle_token(*request, choice, *sampled);
  } else if (const auto* start = std::get_if<Start>(&record.what)) {
    if (choice == 0) request->cached_tokens = start->cached_tokens;  // the prompt is counted once, too
  } else if (auto* scores = std::get_if<Scores>(&record.what)) {
    handle_scores(*request, *scores);
  } else {
    handle_finish(*request, choice, std::get<Finish>(record.what));
  }
}

// The first sign of life of a request: everything before it may still fail with a plain error.
void OutputPipeline::begin(RequestState& request) {
  if (std::exchange(request.begun, true)) return;
  prompt_tokens_.add(static_cast<double>(request.prompt.size()));
  prompt_length_.observe(static_cast<double>(request.prompt.size()));
  request.sink(PromptEvent{request.prompt});
}

void OutputPipeline::handle_scores(RequestState& request, Scores& scores) {
  request.scores.insert(request.scores.end(), scores.scores.begin(), scores.scores.end());
  if (request.score_prompt && request.scores.size() + 1 < request.prompt.size()) return;  // more chunks follow
  begin(request);
  PromptScoresEvent event;
  const std::size_t scored_tokens = std::min(request.scores.size(), request.prompt.size() - 1);
  for (std::size_t index = 0; index < scored_tokens; ++index) {
    const Sampled& scored = request.scores[index];
    TokenInfo info = token_info(scored);
    event.top1.push_back(scored.token);
    info.id = request.prompt[index + 1];
    info.bytes = tokenizer_.token_bytes(info.id);
    event.scores.push_back(std::move(info));
  }
  event.last_logits = std::move(scores.logits);
  request.scores.clear();
  request.sink(std::move(event));
}

TokenInfo OutputPipeline::token_info(const Sampled& sampled) const {
  TokenInfo info;
  info.id = sampled.token;
  info.bytes = tokenizer_.token_bytes(sampled.token);
  info.logprob = sampled.logprob;
  for (std::int32_t i = 0; i < sampled.num_top; ++i) {
    const TokenLogprob& top = sampled.top[i];
    info.top.push_back({top.token, std::string(tokenizer_.token_bytes(top.token)), top.logprob});
  }
  return info;
}

void OutputPipeline::handle_token(RequestState& request, std::uint32_t index, const Sampled& sampled) {
  Choice& choice = request.choices[index];
  if (choice.text_ended) return;
  begin(request);
  if (request.prompt_only) return;  // the step that scored the prompt also drew a token
  const std::int64_t now_us = steady_now_us();
  if (request.last_token_us == 0) {
    ttft_seconds_.observe(static_cast<double>(now_us - request.arrival_us) * 1e-6);
  } else if (request.choices.size() == 1) {
    gap_seconds_.observe(static_cast<double>(now_us - request.last_token_us) * 1e-6);
  }
  request.last_token_us = now_us;
  ++choice.num_tokens;
  generated_tokens_.add();
  choice.last_token = sampled.token;
  choice.held.push_back(token_info(sampled));
  const Piece piece = choice.stream->push(sampled.token);
  emit_text(request, index, piece);
  if (!piece.stop_idx) return;
  choice.text_ended = true;
  cancel_(choice.sequence);
  FinishEvent finish;
  finish.choice = index;
  finish.reason = FinishReason::kStop;
  finish.matched_stop = request.stop[*piece.stop_idx];
  request.sink(std::move(finish));
  end_choice(request, index, FinishReason::kStop);
}

void OutputPipeline::emit_text(RequestState& request, std::uint32_t index, const Piece& piece) {
  Choice& choice = request.choices[index];
  TextEvent event;
  event.choice = index;
  event.text = piece.text;
  for (; choice.num_released < piece.released_tokens; ++choice.num_released) {
    event.tokens.push_back(std::move(choice.held.front()));
    choice.held.pop_front();
  }
  if (event.text.empty() && event.tokens.empty()) return;
  request.sink(std::move(event));
}

void OutputPipeline::handle_finish(RequestState& request, std::uint32_t index, const Finish& finish) {
  Choice& choice = request.choices[index];
  if (choice.finished) return;
  if (!finish.status.ok()) return end_request(request, finish.status);
  if (finish.reason == FinishReason::kCancelled) {
    return end_request(request, absl::CancelledError("the request was cancelled"));
  }
  emit_text(request, index, choice.stream->finish());
  FinishEvent event;
  event.choice = index;
  event.reason = finish.reason;
  if (finish.reason == FinishReason::kStop && choice.last_token) event.matched_stop_token = choice.last_token;
  request.sink(std::move(event));
  end_choice(request, index, finish.reason);
}

void OutputPipeline::end_choice(RequestState& request, std::uint32_t index, FinishReason reason) {
  request.choices[index].finished = true;
  if (reason == FinishReason::kLength) request.cut_off = true;
  if (--request.open_choices == 0) end_request(request, absl::OkStatus());
}

void OutputPipeline::end_request(RequestState& request, absl::Status status) {
  for (const Choice& choice : request.choices) {
    if (!choice.finished) cancel_(choice.sequence);
  }
  using Counters = RequestCounters;
  const Counters::Reason ok = request.cut_off ? Counters::kLength : Counters::kStop;
  counters_.finished[status.ok() ? ok : absl::IsCancelled(status) ? Counters::kCancelled : Counters::kFailed].add();
  DoneEvent done;
  done.status = std::move(status);
  done.usage.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  for (const Choice& choice : request.choices) done.usage.completion_tokens += choice.num_tokens;
  done.usage.cached_tokens = request.cached_tokens;
  output_length_.observe(done.usage.completion_tokens);
  e2e_seconds_.observe(static_cast<double>(steady_now_us() - request.arrival_us) * 1e-6);
  const EventSink sink = std::move(request.sink);
  remove(request.id);
  sink(std::move(done));
}

}  // namespace tandem
