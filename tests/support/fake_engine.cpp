#include "support/fake_engine.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"

namespace tandem {
namespace {

constexpr auto kWords = std::to_array<std::string_view>({" river", " stone", " lamp", " caf\xC3\xA9", " green", ",",
                                                         " boat", " \"quote\"", " seven", "\n", " porch", " sky"});
constexpr TokenId kFirstWord = 256;
constexpr TokenId kFirstHalf = kFirstWord + static_cast<TokenId>(kWords.size());  // U+9F9C in two tokens
constexpr TokenId kSecondHalf = kFirstHalf + 1;
constexpr TokenId kEnd = kFirstHalf + 2;

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

std::string prompt_text(const Prompt& prompt, const Tokenizer& tokenizer) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  std::string out;
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    for (const TokenId id : *ids) out += tokenizer.token_bytes(id);
    return out;
  }
  for (const ChatMessage& message : std::get<ChatPrompt>(prompt).messages) {
    out += fmt::format("<{}>{}", message.role, message.content);
    for (const ToolCall& call : message.tool_calls) out += fmt::format("[{}({})]", call.name, call.arguments_json);
  }
  return out;
}

std::uint32_t directive(std::string_view prompt, std::string_view name, std::uint32_t otherwise) {
  const auto at = prompt.find(name);
  if (at == std::string_view::npos) return otherwise;
  return static_cast<std::uint32_t>(std::atoi(std::string(prompt.substr(at + name.size(), 8)).c_str()));
}

absl::Status status_of(std::uint32_t http) {
  if (http == 429) return absl::ResourceExhaustedError("the queue is full");
  if (http == 503) return absl::UnavailableError("not ready");
  return absl::InternalError("a fault was asked for");
}

}  // namespace

FakeTokenizer::FakeTokenizer() {
  for (int byte = 0; byte < 256; ++byte) spec_.tokens.emplace_back(1, static_cast<char>(byte));
  for (const std::string_view word : kWords) spec_.tokens.emplace_back(word);
  spec_.tokens.insert(spec_.tokens.end(), {"\xE9\xBE", "\x9C", "<|end|>"});
  spec_.kinds.assign(spec_.tokens.size(), TokenKind::kNormal);
  spec_.kinds.back() = TokenKind::kControl;
}

std::vector<TokenId> FakeTokenizer::encode(std::string_view text, std::span<const TextSpan>) const {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string_view FakeTokenizer::token_bytes(TokenId id) const {
  return id < 0 || id >= vocab_size() ? std::string_view() : spec_.tokens[static_cast<std::size_t>(id)];
}

TokenKind FakeTokenizer::kind(TokenId id) const { return id == kEnd ? TokenKind::kControl : TokenKind::kNormal; }

FakeEngine::FakeEngine(FakeEngineOptions options)
    : options_(options),
      model_{.id = "fake/model", .root = "fake/model", .context_length = options.context_length, .created = 1700000000},
      thread_([this] { run(); }) {}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

TokenInfo FakeEngine::info(TokenId id, bool wants_top, std::uint32_t top) const {
  TokenInfo token{.id = id, .bytes = std::string(tokenizer_.token_bytes(id)), .logprob = 0.0F, .top = {}};
  if (!wants_top) return token;
  token.logprob = -0.25F * static_cast<float>(id % 7 + 1);
  for (std::uint32_t i = 0; i < top; ++i) {
    const TokenId other = (id + static_cast<TokenId>(i)) % tokenizer_.vocab_size();
    token.top.push_back({.id = other,
                         .bytes = std::string(tokenizer_.token_bytes(other)),
                         .logprob = token.logprob - static_cast<float>(i)});
  }
  return token;
}

FakeEngine::Choice FakeEngine::make_choice(const Request& request, std::uint64_t seed, std::uint32_t index) const {
  Choice choice;
  const std::uint32_t limit = request.stopping.max_tokens.value_or(options_.context_length);
  const std::uint32_t natural = request.stopping.ignore_eos ? UINT32_MAX : options_.natural_tokens;
  std::string text;
  Step step;
  for (std::uint32_t i = 0; i < std::min(limit, natural); ++i) {
    const std::uint64_t draw = mix(seed * 1000003 + index * 7919 + i);
    // Every fourth and fifth token are the two halves of one character.
    const TokenId id = i % 5 == 3 && i + 1 < limit ? kFirstHalf
                       : i % 5 == 4                ? kSecondHalf
                                                   : kFirstWord + static_cast<TokenId>(draw % kWords.size());
    step.tokens.push_back(info(id, request.top_logprobs.has_value(), request.top_logprobs.value_or(0)));
    step.text += tokenizer_.token_bytes(id);
    ++choice.num_tokens;
    if (id == kFirstHalf) continue;
    text += step.text;
    for (const std::string& stop : request.stopping.stop) {
      const auto at = text.find(stop);
      if (at == std::string::npos) continue;
      // Good enough for a fake: what earlier steps already sent of the stop string stays.
      step.text.resize(step.text.size() - std::min(step.text.size(), text.size() - at));
      choice.finish.matched_stop = stop;
    }
    choice.steps.push_back(std::exchange(step, {}));
    if (choice.finish.matched_stop) break;
  }
  choice.finish.choice = index;
  choice.finish.reason = !choice.finish.matched_stop && limit <= natural ? FinishReason::kLength : FinishReason::kStop;
  return choice;
}

void FakeEngine::add_scores(const Request& request, const std::vector<TokenId>& ids, Running& running) const {
  PromptScoresEvent event;
  for (std::size_t i = 1; i < ids.size(); ++i)
    event.scores.push_back(info(ids[i], true, request.top_logprobs.value_or(0)));
  running.first.emplace_back(std::move(event));
}

absl::StatusOr<RequestId> FakeEngine::submit(Request request, EventSink sink) {
  const std::string prompt = prompt_text(request.prompt, tokenizer_);
  if (const std::uint32_t http = directive(prompt, "!refuse=", 0); http != 0) return status_of(http);
  std::vector<TokenId> ids = tokenizer_.encode(prompt, {});
  if (ids.size() >= options_.context_length) {
    return request_error(fmt::format("This model's maximum context length is {} tokens, but the prompt has {}.",
                                     options_.context_length, ids.size()),
                         std::holds_alternative<ChatPrompt>(request.prompt) ? "messages" : "prompt",
                         "context_length_exceeded");
  }
  Running running;
  running.sink = std::move(sink);
  running.prompt = prompt;
  running.usage.prompt_tokens = static_cast<std::uint32_t>(ids.size());
  running.first.emplace_back(PromptEvent{.token_ids = ids});
  if (request.score_prompt) add_scores(request, ids, running);
  running.fail_after = directive(prompt, "!fail=", UINT32_MAX);
  if (const std::uint32_t http = directive(prompt, "!queued=", 0); http != 0) running.failure = status_of(http);
  std::uint64_t seed =
      request.sampling.seed.value_or(request.sampling.temperature == 0.0F ? 0 : std::random_device{}());
  seed = mix(seed) + std::hash<std::string>{}(prompt);
  for (std::uint32_t i = 0; i < request.num_choices; ++i) {
    running.choices.push_back(make_choice(request, request.sampling.temperature == 0.0F ? 0 : seed, i));
  }
  const std::lock_guard lock(mutex_);
  if (draining_ || !alive_) return absl::UnavailableError("draining");
  if (running_.size() >= options_.max_running) return absl::ResourceExhaustedError("the queue is full");
  const RequestId id{next_id_++};
  running_.emplace(id.value, std::move(running));
  requests_.push_back(std::move(request));
  changed_.notify_all();
  return id;
}

void FakeEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto it = running_.find(id.value); it != running_.end() && !std::exchange(it->second.cancelled, true))
    ++num_cancelled_;
}

bool FakeEngine::advance(Running& running) {
  const auto end = [&running](absl::Status status) {
    running.sink(DoneEvent{.status = std::move(status), .usage = running.usage});
    return false;
  };
  for (Event& event : std::exchange(running.first, {})) running.sink(std::move(event));
  if (running.cancelled) return end(absl::CancelledError("cancelled"));
  if (!running.failure.ok()) return end(running.failure);
  if (running.prompt.find("!silent") != std::string::npos) return true;
  bool any = false;
  for (std::uint32_t i = 0; i < running.choices.size(); ++i) {
    Choice& choice = running.choices[i];
    if (choice.finished) continue;
    any = true;
    if (choice.next >= running.fail_after)
      return end(absl::UnavailableError("the worker was lost; send the request again"));
    if (choice.next < choice.steps.size()) {
      Step& step = choice.steps[choice.next++];
      running.sink(TextEvent{.choice = i, .text = std::move(step.text), .tokens = std::move(step.tokens)});
      continue;
    }
    choice.finished = true;
    running.usage.completion_tokens += choice.num_tokens;
    running.sink(choice.finish);
  }
  return any || end(absl::OkStatus());
}

void FakeEngine::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      for (auto it = running_.begin(); it != running_.end();)
        it = advance(it->second) ? std::next(it) : running_.erase(it);
      changed_.notify_all();
      if (stopping_) return;
    }
    apply_placement();
    std::this_thread::sleep_for(options_.step);
  }
}

EngineState FakeEngine::state() const {
  const std::lock_guard lock(mutex_);
  return {.alive = alive_,
          .ready = alive_ && !draining_,
          .reason = draining_ ? "draining"
                    : alive_  ? ""
                              : "the worker is gone",
          .running = static_cast<std::uint32_t>(running_.size()),
          .waiting = 0,
          .kv_blocks_total = 0,
          .kv_blocks_used = 0};
}

void FakeEngine::set_placement(const PlacementChange& change, PlacementDone done) {
  const std::lock_guard lock(mutex_);
  changes_.emplace_back(change, std::move(done));
}

PlacementState FakeEngine::placement() const {
  const std::lock_guard lock(mutex_);
  return placement_;
}

// As an engine that replaces every worker at once. 3 units: a worker that never gets ready.
void FakeEngine::apply_placement() {
  std::vector<std::pair<PlacementChange, PlacementDone>> changes;
  {
    const std::lock_guard lock(mutex_);
    changes.swap(changes_);
    for (const auto& [change, done] : changes) {
      placement_.decode_units = change.decode_units.value_or(placement_.decode_units);
      for (const LaneId lane : change.replace) ++placement_.lanes[lane.value].epoch;
    }
  }
  for (const auto& [change, done] : changes) {
    done(change.decode_units == 3 ? absl::DeadlineExceededError("the new worker is not ready") : absl::OkStatus());
  }
}

std::string FakeEngine::metrics() const {
  return fmt::format("{}fake_running {}\n", registry_.scrape(), num_running());
}

void FakeEngine::drain(std::chrono::milliseconds grace) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.wait_for(lock, grace, [this] { return running_.empty(); });
  for (auto& [id, running] : running_) running.failure = absl::UnavailableError("the server is shutting down");
}

std::size_t FakeEngine::num_running() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

std::vector<Request> FakeEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

bool FakeEngine::wait_running(std::size_t count, std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return running_.size() == count; });
}

}  // namespace tandem
