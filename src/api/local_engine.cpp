#include "api/local_engine.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "api/placement.h"
#include "api/request_check.h"
#include "base/clock.h"
#include "fmt/core.h"

namespace tandem {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): spreads (seed, choice) over all 64 bits.
std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t choice) {
  std::uint64_t z = seed + choice * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

std::uint64_t fresh_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device();
}

}  // namespace

LocalEngine::LocalEngine(LocalEngineOptions options, const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                         Scheduler& scheduler, OutputPipeline& output, MetricRegistry& metrics)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      chat_template_(chat_template),
      scheduler_(scheduler),
      output_(output),
      metrics_(metrics),
      counters_(metrics) {}

absl::StatusOr<std::vector<TokenId>> LocalEngine::tokenize(const Prompt& prompt) const {
  if (const auto* text = std::get_if<std::string>(&prompt)) return tokenizer_.encode_prompt(*text);
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) return *ids;
  if (chat_template_ == nullptr) {
    return request_error("this model has no chat template; use /v1/completions with a raw prompt", "messages");
  }
  TANDEM_ASSIGN(const RenderedPrompt rendered, chat_template_->render(std::get<ChatPrompt>(prompt)));
  return tokenizer_.encode(rendered.text, rendered.user_spans);
}

absl::Status LocalEngine::check_length(const Request& request, const std::vector<TokenId>& prompt) const {
  const char* const field = std::holds_alternative<ChatPrompt>(request.prompt) ? "messages" : "prompt";
  if (prompt.empty()) return request_error("the prompt has no tokens", field);
  const std::uint32_t limit = std::min(options_.model.context_length, options_.max_sequence_tokens);
  if (prompt.size() < limit) return absl::OkStatus();
  const std::string held = limit == options_.model.context_length
                               ? fmt::format("This model's maximum context length is {} tokens.", limit)
                               : fmt::format("This server's KV pool holds {} tokens of one request.", limit);
  return request_error(
      fmt::format("{} However, your prompt has {} tokens and leaves no room for an answer. Please shorten it.", held,
                  prompt.size()),
      field, "context_length_exceeded");
}

// What the rest of the engine reads: defaults filled in, one form for each meaning.
void LocalEngine::complete(Request& request) const {
  if (!request.slo.ttft_ms) request.slo.ttft_ms = options_.default_ttft_ms;
  if (!request.slo.tpot_ms) request.slo.tpot_ms = options_.default_tpot_ms;
  if (request.sampling.top_p == 0.0F) {
    request.sampling.temperature = 0.0F;  // the smallest nucleus: the likeliest token alone
    request.sampling.top_p = 1.0F;
  }
  request.sampling.top_k = std::max(request.sampling.top_k, 0);
}

SequenceRequest LocalEngine::sequence_request(const Request& request, const std::vector<TokenId>& prompt) const {
  const SamplingParams& sampling = request.sampling;
  SequenceRequest sequence;
  sequence.sampling.temperature = sampling.temperature;
  sequence.sampling.top_p = sampling.top_p;
  sequence.sampling.top_k = sampling.top_k;
  sequence.sampling.min_p = sampling.min_p;
  sequence.sampling.repetition_penalty = sampling.repetition_penalty;
  sequence.sampling.presence_penalty = sampling.presence_penalty;
  sequence.sampling.frequency_penalty = sampling.frequency_penalty;
  sequence.sampling.wants_logprob = request.top_logprobs.has_value();
  sequence.sampling.num_top_logprobs = static_cast<std::int32_t>(request.top_logprobs.value_or(0));
  for (const auto& [token, bias] : sampling.logit_bias) sequence.bias.push_back({token, bias});
  const std::uint32_t limit = std::min(options_.model.context_length, options_.max_sequence_tokens);
  const auto room = static_cast<std::uint32_t>(limit - prompt.size());
  sequence.max_tokens = std::max(std::min(request.stopping.max_tokens.value_or(room), room), 1U);
  sequence.min_tokens = std::min(request.stopping.min_tokens, sequence.max_tokens);
  sequence.stop_tokens = request.stopping.stop_token_ids;
  if (!request.stopping.ignore_eos) {
    const auto& ends = tokenizer_.spec().end_of_generation;
    sequence.stop_tokens.insert(sequence.stop_tokens.end(), ends.begin(), ends.end());
  }
  sequence.score_prompt = request.score_prompt;
  sequence.wants_logits = request.return_last_logits;
  sequence.priority = request.priority;
  sequence.tenant = request.tenant;
  sequence.ttft_ms = request.slo.ttft_ms;
  sequence.tpot_ms = request.slo.tpot_ms;
  sequence.arrival_us = steady_now_us();
  const bool shares_prefix = request.use_prefix_cache && !request.score_prompt;  // scores need every row computed
  // Tenants share no blocks: whose prompts are cached is nobody else's to find out. The length keeps the parts apart.
  const std::string scope = fmt::format("{}:{}{}", request.tenant.size(), request.tenant, request.cache_salt);
  sequence.prompt = scheduler_.prepare(prompt, sequence.sampling,
                                       shares_prefix ? std::optional<std::string_view>(scope) : std::nullopt);
  return sequence;
}

absl::StatusOr<RequestId> LocalEngine::submit(Request request, EventSink sink) {
  absl::StatusOr<RequestId> id = try_submit(std::move(request), std::move(sink));
  (id.ok() ? counters_.accepted : counters_.refused).add();
  return id;
}

absl::StatusOr<RequestId> LocalEngine::try_submit(Request request, EventSink sink) {
  if (std::string trouble = options_.trouble(); !trouble.empty()) return absl::UnavailableError(trouble);
  if (draining_.load()) return absl::UnavailableError("the server is shutting down");
  TANDEM_TRY(check_request(request, tokenizer_));
  complete(request);
  TANDEM_ASSIGN(std::vector<TokenId> prompt, tokenize(request.prompt));
  TANDEM_TRY(check_length(request, prompt));

  const RequestId id{next_request_.fetch_add(1)};
  const SequenceId first{next_sequence_.fetch_add(request.num_choices)};
  const std::uint64_t seed = request.sampling.seed.value_or(fresh_seed());
  std::vector<SequenceRequest> sequences(request.num_choices, sequence_request(request, prompt));
  for (std::uint32_t choice = 0; choice < request.num_choices; ++choice) {
    sequences[choice].id = SequenceId{first.value + choice};
    sequences[choice].sampling.seed = choice == 0 ? seed : mix_seed(seed, choice);
    if (choice > 0) sequences[choice].score_prompt = sequences[choice].wants_logits = false;
  }
  output_.add(id, request, std::move(prompt), first, std::move(sink));
  if (absl::Status status = scheduler_.submit(std::move(sequences)); !status.ok()) {
    output_.remove(id);
    return status;
  }
  return id;
}

void LocalEngine::cancel(RequestId id) {
  for (const SequenceId sequence : output_.sequences_of(id)) scheduler_.cancel(sequence);
}

void LocalEngine::set_placement(const PlacementChange& change, PlacementDone done) {
  if (draining_.load()) return done(absl::UnavailableError("the server is shutting down"));
  if (absl::Status status = check_placement_change(change, placement()); !status.ok()) return done(status);
  options_.set_placement(change, std::move(done));
}

EngineState LocalEngine::state() const {
  const SchedulerLoad load = scheduler_.load();
  EngineState state;
  state.reason = options_.trouble();
  state.alive = state.reason.empty();
  if (state.alive && draining_.load()) state.reason = "draining";
  state.ready = state.reason.empty();
  state.running = load.running;
  state.waiting = load.waiting;
  state.kv_blocks_total = load.kv_blocks_total;
  state.kv_blocks_used = load.kv_blocks_used;
  return state;
}

void LocalEngine::drain(std::chrono::milliseconds grace) {
  begin_drain();
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (busy() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (options_.end_placement_changes) options_.end_placement_changes();
  const std::string trouble = options_.trouble ? options_.trouble() : std::string();
  scheduler_.stop(absl::UnavailableError(trouble.empty() ? "the server is shutting down; send the request again"
                                                         : fmt::format("the server ends: {}", trouble)));
  output_.stop();
}

}  // namespace tandem
