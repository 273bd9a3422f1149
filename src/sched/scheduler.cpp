#include "sched/scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"
#include "ipc/token_counts.h"
#include "memory/prefix_key.h"
#include "sched/prefix_reuse.h"
#include "sched/prompt_facts.h"
#include "sched/result_check.h"
#include "sched/server_counters.h"

namespace tandem {
namespace {

constexpr std::chrono::milliseconds kIdleWait{100};
// A lane beats with every layer of a step. Between two polls the silence grows by this much at most: when all processes
// were paused, as in a frozen container, no lane was silent.
constexpr std::int64_t kLongestPollUs = 200'000;
// A turn that was asked for and found nothing to do. So many in a row, and the next waits: a worker that rings without
// end costs little.
constexpr std::uint32_t kMaxIdleTurns = 256;
constexpr std::chrono::milliseconds kIdlePause{1};

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, KvPool& pool, ControlPage& control, SequenceListener& listener,
                     MetricRegistry& metrics, std::function<void(LaneId, std::uint64_t)> give_up_lane)
    : options_(options),
      pool_(pool),
      control_(control),
      listener_(listener),
      give_up_lane_(std::move(give_up_lane)),
      builder_(options.plan),
      lanes_(options.placement == Placement::kSemi ? 2 : 1),
      decode_units_(options.decode_units.value_or(default_decode_units(options.num_units))),
      metrics_(metrics) {
  // Step numbers go on where an earlier scheduler over the same control page ended.
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    pool_.steps().resume(LaneId{lane}, control_.lanes[lane].issued_step.load());
  }
}

Scheduler::~Scheduler() { stop(absl::UnavailableError("the server is shutting down")); }

void Scheduler::start() {
  publish_load();
  thread_ = std::thread([this] { run(); });
}

void Scheduler::stop(const absl::Status& status) {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!stopping_) stop_status_ = status;
    stopping_ = true;
  }
  control_.scheduler.ring();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    end();
  }
}

std::shared_ptr<const PromptFacts> Scheduler::prepare(std::vector<TokenId> prompt, const SampleRow& sampling,
                                                      std::optional<std::string_view> salt) const {
  std::optional<PrefixKey> root;
  if (salt && !options_.prefix_identity.empty()) root = prefix_root(options_.prefix_identity, *salt);
  return std::make_shared<const PromptFacts>(
      make_prompt_facts(std::move(prompt), sampling, root, options_.plan.block_tokens));
}

absl::Status Scheduler::submit(std::vector<SequenceRequest> requests) {
  const auto count = static_cast<std::uint32_t>(requests.size());
  std::vector<std::unique_ptr<Sequence>> sequences;
  sequences.reserve(count);
  for (SequenceRequest& request : requests) {
    TANDEM_CHECK(request.prompt && !request.prompt->tokens.empty(), "a sequence has a prompt");
    sequences.push_back(std::make_unique<Sequence>());
    sequences.back()->request = std::move(request);
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    if (stopping_) return stop_status_;
    if (count > options_.max_queued_sequences) {
      return absl::InvalidArgumentError(
          fmt::format("{} sequences at once are more than the queue ever holds, {}; ask for fewer, or start the server "
                      "with a larger --max-queued-requests",
                      count, options_.max_queued_sequences));
    }
    const std::uint32_t queued = queued_.load(std::memory_order_relaxed);
    if (queued + count > options_.max_queued_sequences) {
      return absl::ResourceExhaustedError(fmt::format(
          "the queue is full: {} sequences wait, the limit is {}; try later", queued, options_.max_queued_sequences));
    }
    queued_.fetch_add(count, std::memory_order_relaxed);
    for (std::unique_ptr<Sequence>& sequence : sequences) inbox_.emplace_back(std::move(sequence));
  }
  control_.scheduler.ring();
  return absl::OkStatus();
}

void Scheduler::post(SchedulerMessage message) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(message));
  }
  control_.scheduler.ring();
}

void Scheduler::cancel(SequenceId id) { post(CancelMessage{id}); }
void Scheduler::flush_cache() { post(FlushCacheMessage{}); }
void Scheduler::lane_up(LaneId lane, std::unique_ptr<LanePort> port, std::uint64_t epoch, std::function<void()> taken) {
  post(LaneUpMessage{lane, epoch, std::move(port), std::move(taken)});
}
void Scheduler::lane_down(LaneId lane, std::uint64_t epoch) { post(LaneDownMessage{lane, epoch}); }
void Scheduler::lane_stuck(LaneId lane, std::uint64_t epoch) { post(LaneStuckMessage{lane, epoch}); }

SchedulerLoad Scheduler::load() const {
  SchedulerLoad load;
  load.running = load_running_.load(std::memory_order_relaxed);
  load.waiting = queued_.load(std::memory_order_relaxed);
  load.kv_blocks_used = load_used_.load(std::memory_order_relaxed);
  load.kv_blocks_total = load_total_.load(std::memory_order_relaxed);
  load.lanes_up = load_lanes_.load(std::memory_order_relaxed);
  return load;
}

void Scheduler::run() {
  for (std::uint32_t idle_turns = 0;;) {
    const std::uint32_t seen = control_.scheduler.seen();
    {
      const std::lock_guard lock(inbox_mutex_);
      if (stopping_) break;
    }
    if (turn()) {
      idle_turns = 0;
    } else {
      if (++idle_turns > kMaxIdleTurns) std::this_thread::sleep_for(kIdlePause);
      if (!control_.scheduler.wait(seen, kIdleWait)) idle_turns = 0;
    }
  }
  end();
}

void Scheduler::end() {
  if (std::exchange(ended_, true)) return;
  drain_inbox();  // what was submitted before the stop has its answer too
  while (!sequences_.empty()) finish(*sequences_.begin()->second, FinishReason::kCancelled, stop_status_);
  publish_load();
}

bool Scheduler::turn() {
  bool progress = drain_inbox();
  progress |= poll_lanes();
  progress |= send_plans();
  if (progress) publish_load();
  return progress;
}

bool Scheduler::drain_inbox() {
  drained_.clear();
  {
    const std::lock_guard lock(inbox_mutex_);
    std::swap(drained_, inbox_);
  }
  for (SchedulerMessage& message : drained_) {
    if (auto* sequence = std::get_if<std::unique_ptr<Sequence>>(&message)) {
      enqueue(std::move(*sequence));
    } else if (const auto* cancelled = std::get_if<CancelMessage>(&message)) {
      const auto at = sequences_.find(cancelled->id.value);
      if (at != sequences_.end()) finish(*at->second, FinishReason::kCancelled, absl::OkStatus());
    } else if (auto* up = std::get_if<LaneUpMessage>(&message)) {
      lanes_[up->lane.value].next = std::move(*up);
    } else if (const auto* down = std::get_if<LaneDownMessage>(&message)) {
      handle_lane_down(down->lane, down->epoch);
    } else if (const auto* stuck = std::get_if<LaneStuckMessage>(&message)) {
      handle_lane_stuck(stuck->lane, stuck->epoch);
    } else if (std::holds_alternative<FlushCacheMessage>(message)) {
      pool_.flush_cache();
    }
  }
  return !drained_.empty();
}

void Scheduler::enqueue(std::unique_ptr<Sequence> sequence) {
  waiting_.insert(*sequence, prefill_speed_.ns_per_token());
  const std::uint64_t id = sequence->request.id.value;
  sequences_.emplace(id, std::move(sequence));
}

bool Scheduler::poll_lanes() {
  bool progress = false;
  for (std::uint32_t id = 0; id < lanes_.size(); ++id) {
    LaneState& lane = lanes_[id];
    if (!lane.port || lane.in_flight.empty()) continue;
    const absl::StatusOr<bool> read = read_result(LaneId{id}, lane);
    if (!read.ok()) lose_lane(LaneId{id}, message(read.status()));
    progress |= !read.ok() || *read;
    if (read.ok() && !*read && hangs(id, lane)) lose_lane(LaneId{id}, "it hangs in a step");
  }
  return progress;
}

// True when the result of the lane's oldest step was there.
absl::StatusOr<bool> Scheduler::read_result(LaneId id, LaneState& lane) {
  TANDEM_ASSIGN(const bool polled, lane.port->poll(lane.result));
  if (!polled) return false;
  TANDEM_TRY(check_result(lane.in_flight.front(), lane.result, options_.plan.vocab_size));
  pool_.steps().complete(id, lane.in_flight.front().number);
  note_completed(id);
  apply(lane);
  return true;
}

// For `tandem inspect`.
void Scheduler::note_completed(LaneId id) {
  control_.lanes[id.value].completed_step.store(pool_.steps().completed(id), std::memory_order_relaxed);
}

bool Scheduler::hangs(std::uint32_t id, LaneState& lane) const {
  const std::uint64_t heartbeat = control_.lanes[id].heartbeat.load(std::memory_order_relaxed);
  const std::int64_t now_us = steady_now_us();
  const std::int64_t heartbeat_read_us = std::exchange(lane.heartbeat_read_us, now_us);
  const bool beats = heartbeat != std::exchange(lane.heartbeat, heartbeat);
  lane.heartbeat_silent_us =
      beats ? 0 : lane.heartbeat_silent_us + std::min(now_us - heartbeat_read_us, kLongestPollUs);
  return lane.heartbeat_silent_us > options_.heartbeat_timeout_us;
}

void Scheduler::apply(LaneState& lane) {
  // Out of flight first, so that finish() looks no more at its items.
  lane.spare.splice(lane.spare.end(), lane.in_flight, lane.in_flight.begin());
  const LaneStep& step = lane.spare.back();
  const std::int64_t now_us = steady_now_us();
  const std::int64_t began_us = std::max(step.sent_us, std::exchange(lane.ended_us, now_us));
  metrics_.step_seconds[step.decodes ? 1 : 0].observe(static_cast<double>(now_us - began_us) * 1e-6);
  if (step.prefill_tokens > 0) {
    // The step's time, shared out by tokens.
    const std::int64_t prefill_us = (now_us - began_us) * step.prefill_tokens / step.num_tokens;
    if (prefill_speed_.observe(step.prefill_tokens, prefill_us)) waiting_.reorder(prefill_speed_.ns_per_token());
  }
  if (step.continues_decode) metrics_.decode_wait_seconds.add(static_cast<double>(lane.result.waited_us) * 1e-6);

  LaneStep& applied = lane.spare.back();
  for (const LaneStep::Item& item : applied.items) {
    if (item.sequence != nullptr && --item.sequence->steps_in_flight == 0) item.sequence->lane.reset();
  }
  if (!lane.result.error.empty()) return fail_step(applied, lane.result.error);
  for (std::size_t index = 0; index < applied.items.size(); ++index) {
    const LaneStep::Item& item = applied.items[index];
    const ResultItem& answer = lane.result.items[index];
    if (item.sequence == nullptr || item.void_answer) continue;
    if (answer.status == ItemStatus::kOk) {
      apply_item(*item.sequence, item.num_tokens, lane.result, answer);
    } else {
      fail_item(*item.sequence, answer.status);
    }
  }
}

// The step failed as a whole and its lane goes on. Whose fault it was shows when its sequences run apart.
void Scheduler::fail_step(LaneStep& step, const std::string& error) {
  std::vector<Sequence*> sequences;
  for (const LaneStep::Item& item : step.items) {
    if (item.sequence != nullptr && !item.void_answer) sequences.push_back(item.sequence);
  }
  if (sequences.empty()) return;
  TANDEM_LOG(kWarning, "a step of {} sequences failed: {}", sequences.size(), error);
  // What was sent ahead of them goes on from tokens that do not exist.
  for (const Sequence* sequence : sequences) {
    if (!sequence->lane) continue;
    for (LaneStep& later : lanes_[sequence->lane->value].in_flight) {
      const auto item = std::ranges::find(later.items, sequence, &LaneStep::Item::sequence);
      if (item != later.items.end()) item->void_answer = true;
    }
  }
  if (Sequence* guilty = suspects_.failed(sequences)) {
    finish(*guilty, FinishReason::kCancelled, absl::InternalError(fmt::format("the step failed: {}", error)));
  }
}

void Scheduler::fail_item(Sequence& sequence, ItemStatus status) {
  const char* const what =
      status == ItemStatus::kNumeric
          ? "the model's output for this request is not a number; the weights or a kernel are wrong"
      : status == ItemStatus::kTooLarge
          ? "the scores and logits of this request do not fit one answer of a worker; ask for fewer"
          : "the worker refused this request's step";
  finish(sequence, FinishReason::kCancelled, absl::InternalError(what));
}

void Scheduler::apply_item(Sequence& sequence, std::uint32_t num_tokens, const Result& result, const ResultItem& item) {
  if (sequence.generated() == 0) metrics_.prefill_tokens.add(num_tokens);
  sequence.computed += num_tokens;
  suspects_.clear(sequence);
  publish_blocks(sequence, pool_, options_.plan.block_tokens);
  waiting_.release(sequence, sequence.lease.num_cached());
  if (item.scores.count > 0 || item.logits.count > 0) {
    sequence.scored += item.scores.count;
    listener_.on_scores(sequence.request.id, std::span(result.scores).subspan(item.scores.begin, item.scores.count),
                        std::span(result.logits).subspan(item.logits.begin, item.logits.count));
  }
  if (item.has_token != 0 && !accept_token(sequence, item.sampled)) return;
  if (sequence.decoding()) waiting_.release_all(sequence);
  running_.update(sequence);
}

// False: the sequence has ended with this token.
bool Scheduler::accept_token(Sequence& sequence, const Sampled& sampled) {
  const SequenceRequest& request = sequence.request;
  sequence.output.push_back(sampled.token);
  if (wants_counts(request.sampling)) count_token(sequence.output_counts, 0, sampled.token, 1);
  metrics_.sampled_tokens.add();
  listener_.on_token(request.id, sampled);
  if (std::ranges::find(request.stop_tokens, sampled.token) != request.stop_tokens.end()) {
    finish(sequence, FinishReason::kStop, absl::OkStatus());
    return false;
  }
  if (sequence.generated() >= request.max_tokens) {
    finish(sequence, FinishReason::kLength, absl::OkStatus());
    return false;
  }
  return true;
}

// Stops talking to a lane. Its sequences come back with handle_lane_down, when it is certain that its process has ended
// and writes no more.
void Scheduler::lose_lane(LaneId id, std::string_view why) {
  TANDEM_LOG(kWarning, "lane {} is given up: {}", id.value, why);
  lanes_[id.value].port.reset();
  give_up_lane_(id, lanes_[id.value].epoch);
}

void Scheduler::handle_lane_down(LaneId id, std::uint64_t epoch) {
  LaneState& lane = lanes_[id.value];
  if (epoch != lane.epoch) {  // not the one that serves: it was replaced, or dies before it took over
    if (lane.next && lane.next->epoch == epoch) lane.next.reset();
    return;
  }
  // Results that were complete before the death still count.
  while (lane.port && !lane.in_flight.empty() && read_result(id, lane).value_or(false)) {
  }
  lane.port.reset();
  metrics_.lane_losses.add();
  // The oldest step is the one that it ran.
  std::vector<Sequence*> lost;
  if (!lane.in_flight.empty()) {
    for (const LaneStep::Item& item : lane.in_flight.front().items) {
      if (item.sequence != nullptr && !item.void_answer) lost.push_back(item.sequence);
    }
  }
  // Nothing of that process reads or writes any more: blocks that wait for its last steps may be reused.
  pool_.steps().complete_all(id);
  note_completed(id);
  lane.spare.splice(lane.spare.end(), lane.in_flight);
  // The steps are run again, by any lane: what was written of them is written once more.
  for (Sequence* sequence : running_.all()) {
    if (sequence->lane != id) continue;
    sequence->lane.reset();
    sequence->steps_in_flight = 0;
  }
  if (lost.empty()) return;
  if (Sequence* guilty = suspects_.lost(lost)) {
    finish(*guilty, FinishReason::kCancelled,
           absl::InternalError(
               fmt::format("{} workers in a row ended while running this request alone", Suspects::kMaxLoneLosses)));
  }
}

// Its steps stay in flight, so that no block of them is reused; the lane serves nobody until its process has ended.
void Scheduler::handle_lane_stuck(LaneId id, std::uint64_t epoch) {
  LaneState& lane = lanes_[id.value];
  if (epoch != lane.epoch) return;
  lane.port.reset();
  for (Sequence* sequence : running_.all()) {
    if (sequence->lane != id) continue;
    finish(*sequence, FinishReason::kCancelled,
           absl::UnavailableError("the worker that ran this request was killed and does not end; send it again"));
  }
}

void Scheduler::finish(Sequence& sequence, FinishReason reason, const absl::Status& status) {
  if (sequence.place) {
    waiting_.release_all(sequence);
    running_.remove(sequence);
  } else {
    waiting_.erase(sequence);
    queued_.fetch_sub(1, std::memory_order_relaxed);  // not the queue's size: what is still in the inbox counts too
  }
  suspects_.clear(sequence);
  // Its lane may still read and write its blocks, which are not reused before the newest of its steps is over. Their
  // results have no more use.
  if (sequence.lane) {
    std::optional<std::uint64_t> newest;
    for (LaneStep& step : lanes_[sequence.lane->value].in_flight) {
      const auto item = std::ranges::find(step.items, &sequence, &LaneStep::Item::sequence);
      if (item == step.items.end()) continue;
      item->sequence = nullptr;
      newest = step.number;
    }
    if (newest) pool_.give_back(std::move(sequence.lease), {*sequence.lane, *newest});
  } else {
    pool_.give_back_idle(std::move(sequence.lease));
  }
  const SequenceId id = sequence.request.id;
  const auto node = sequences_.extract(id.value);
  listener_.on_finish(id, reason, status);
}

void Scheduler::publish_load() {
  pool_.reclaim();
  const KvPoolUsage usage = pool_.usage();
  load_total_.store(usage.total, std::memory_order_relaxed);
  const std::uint32_t used = usage.total - usage.free - usage.evictable;
  load_used_.store(used, std::memory_order_relaxed);
  load_running_.store(static_cast<std::uint32_t>(running_.size()), std::memory_order_relaxed);
  const auto up = std::ranges::count_if(lanes_, [](const LaneState& lane) { return lane.port != nullptr; });
  load_lanes_.store(static_cast<std::uint32_t>(up), std::memory_order_relaxed);
  metrics_.running.set(static_cast<double>(running_.size()));
  metrics_.waiting.set(static_cast<double>(waiting_.size()));
  metrics_.kv_usage.set(usage.total == 0 ? 0.0 : static_cast<double>(used) / usage.total);
  metrics_.cached_blocks.set(usage.published);
  publish_counters(control_.server, running_, waiting_.size(), usage);
}

}  // namespace tandem
