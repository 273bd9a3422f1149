#include "worker/lane.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"
#include "ipc/token_counts.h"

namespace tandem {
namespace {

constexpr std::chrono::milliseconds kReceiveTimeout{100};

template <class T>
std::span<const T> run_of(const std::vector<T>& list, Run run) {
  return std::span<const T>(list).subspan(run.begin, run.count);
}

// A row for each token, or one for the newest token of a step sent ahead.
std::uint32_t rows_of(const PlanItem& item) { return item.unknown_tokens > 0 ? 1 : item.tokens.count; }

std::uint64_t microseconds_since(std::chrono::steady_clock::time_point start) {
  const auto time = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

}  // namespace

Lane::Lane(Decoder& decoder, Backend& backend, Stream& stream, KvView kv, std::uint32_t num_blocks,
           LaneCounters& counters)
    : decoder_(decoder), backend_(backend), stream_(stream), kv_(kv), num_blocks_(num_blocks), counters_(counters) {}

// What no item can be blamed for: the plan as a whole does not fit the lane.
absl::Status Lane::check(const Plan& plan) const {
  std::uint32_t next_token = 0;
  std::size_t num_rows = 0;
  for (const PlanItem& item : plan.items) {
    if (item.tokens.begin != next_token || item.targets.count > item.tokens.count) {
      return absl::InvalidArgumentError(
          fmt::format("plan item of sequence {}: its tokens are not the plan's next", item.sequence.value));
    }
    next_token += item.tokens.count;
    num_rows += rows_of(item);
  }
  if (next_token != plan.tokens.size()) return absl::InvalidArgumentError("a plan has tokens that belong to no item");
  const auto max_rows = static_cast<std::size_t>(decoder_.limits().max_rows);
  if (num_rows > max_rows) {
    return absl::InvalidArgumentError(fmt::format("a plan of {} rows exceeds the lane's {}", num_rows, max_rows));
  }
  return absl::OkStatus();
}

absl::Status Lane::check_item(const Plan& plan, const PlanItem& item) const {
  const TokenId vocab = decoder_.spec().vocab_size;
  const auto outside = [vocab](TokenId token) { return token < 0 || token >= vocab; };
  if (std::ranges::any_of(run_of(plan.tokens, item.tokens), outside) ||
      std::ranges::any_of(run_of(plan.targets, item.targets), outside)) {
    return absl::InvalidArgumentError("a token outside the vocabulary");
  }
  const auto no_block = [this](BlockId block) { return block.value >= num_blocks_; };
  if (std::ranges::any_of(run_of(plan.blocks, item.blocks), no_block)) {
    return absl::InvalidArgumentError("a block outside the pool");
  }
  const std::uint32_t num_rows = rows_of(item);
  const std::uint64_t capacity = std::uint64_t{item.blocks.count} * static_cast<std::uint32_t>(kv_.layout.block_tokens);
  if (num_rows == 0 || std::uint64_t{item.position} + num_rows > capacity) {
    return absl::InvalidArgumentError(
        fmt::format("{} tokens at {} do not fit its {} blocks", num_rows, item.position, item.blocks.count));
  }
  return tails_.check(plan, item);
}

// One item's rows: its tokens, or the newest one that this lane drew.
void Lane::add_rows(const Plan& plan, const PlanItem& item) {
  const auto first_row = static_cast<std::int32_t>(tokens_.size());
  const auto position = static_cast<std::int32_t>(item.position);
  const auto num_rows = static_cast<std::int32_t>(rows_of(item));
  sequences_.push_back({first_row, num_rows, position, static_cast<std::int32_t>(item.blocks.begin)});
  for (std::int32_t row = 0; row < num_rows; ++row) positions_.push_back(position + row);
  const SampledTail* tail = tails_.tail_of(item);
  const auto tokens = tail == nullptr ? run_of(plan.tokens, item.tokens) : tail->newest(1);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

// The item's counts, with the tokens that its plan lacks. A plan has counts only where a penalty reads them.
Run Lane::add_counts(const Plan& plan, const PlanItem& item) {
  const std::size_t first = counts_.size();
  const auto counts = run_of(plan.counts, item.counts);
  counts_.insert(counts_.end(), counts.begin(), counts.end());
  if (const SampledTail* tail = tails_.tail_of(item); tail != nullptr && !counts.empty()) {
    for (const TokenId token : tail->newest(item.unknown_tokens)) count_token(counts_, first, token, 1);
  }
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(counts_.size() - first)};
}

void Lane::build_batch(const Plan& plan, Result& result) {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  counts_.clear();
  logit_rows_.clear();
  logit_uses_.clear();
  const auto vocab = static_cast<std::uint32_t>(decoder_.spec().vocab_size);
  std::uint32_t num_logits = 0;
  for (std::uint32_t index = 0; index < plan.items.size(); ++index) {
    const PlanItem& item = plan.items[index];
    ResultItem& answer = result.items.emplace_back();
    answer.sequence = item.sequence;
    if (const absl::Status status = check_item(plan, item); !status.ok()) {
      TANDEM_LOG(kError, "plan item of sequence {}: {}", item.sequence.value, message(status));
      answer.status = ItemStatus::kRefused;
      continue;
    }
    if (const SampledTail* tail = tails_.tail_of(item); tail != nullptr && tail->ended) continue;

    const auto first_row = static_cast<std::int32_t>(tokens_.size());
    add_rows(plan, item);
    answer.scores = {static_cast<std::uint32_t>(result.scores.size()), item.targets.count};
    result.scores.resize(result.scores.size() + item.targets.count);
    for (std::uint32_t i = 0; i < item.targets.count; ++i) {
      logit_rows_.push_back(first_row + static_cast<std::int32_t>(i));
      logit_uses_.push_back({index, static_cast<std::int32_t>(answer.scores.begin + i), {}});
    }
    if (item.wants_sample != 0) {
      logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
      logit_uses_.push_back({index, -1, add_counts(plan, item)});
      if (item.wants_logits != 0) {
        answer.logits = {num_logits, vocab};
        num_logits += vocab;
      }
    }
  }
  // Once, before any copy into it is queued: a device may fill it late.
  result.logits.resize(num_logits);
}

void Lane::sample_slice(const Plan& plan, std::size_t begin, std::size_t count, Result& result) {
  const Tensor logits = decoder_.logits(std::span(logit_rows_).subspan(begin, count), stream_);
  sample_rows_.resize(count);
  sampled_.resize(count);
  for (std::size_t row = 0; row < count; ++row) {
    const LogitRow use = logit_uses_[begin + row];
    const PlanItem& item = plan.items[use.item];
    SampleRow& sampling = sample_rows_[row];
    if (use.score >= 0) {
      sampling = SampleRow{};
      sampling.wants_logprob = true;
      sampling.num_top_logprobs = item.sampling.num_top_logprobs;
      const auto offset = static_cast<std::uint32_t>(use.score) - result.items[use.item].scores.begin;
      sampling.target = plan.targets[item.targets.begin + offset];
      continue;
    }
    sampling = item.sampling;
    sampling.bias = run_of(plan.bias, item.bias);
    sampling.counts = run_of(counts_, use.counts);
    if (item.wants_logits != 0) {
      backend_.copy(stream_, reinterpret_cast<std::byte*>(result.logits.data() + result.items[use.item].logits.begin),
                    reinterpret_cast<const std::byte*>(logits.f32(static_cast<std::int64_t>(row))),
                    static_cast<std::size_t>(logits.cols) * sizeof(float));
    }
  }
  backend_.sample({logits, sample_rows_, sampled_}, stream_);
  if (const absl::Status status = stream_.synchronize(); !status.ok()) {
    result.error = message(status);
    return;
  }
  for (std::size_t row = 0; row < count; ++row) {
    const LogitRow use = logit_uses_[begin + row];
    if (use.score >= 0) {
      result.scores[static_cast<std::size_t>(use.score)] = sampled_[row];
    } else if (sampled_[row].token < 0) {
      result.items[use.item].status = ItemStatus::kNumeric;
    } else {
      result.items[use.item].has_token = 1;
      result.items[use.item].sampled = sampled_[row];
    }
  }
}

void Lane::run_batch(const Plan& plan, Result& result) {
  const ForwardBatch batch{tokens_, positions_, sequences_, plan.blocks, kv_};
  for (std::int32_t layer = 0; layer < decoder_.spec().num_layers; ++layer) {
    decoder_.forward(batch, {layer, layer + 1}, stream_);
    beat();
  }
  const auto slice = static_cast<std::size_t>(decoder_.limits().max_logit_rows);
  for (std::size_t begin = 0; begin < logit_rows_.size() && result.error.empty(); begin += slice) {
    sample_slice(plan, begin, std::min(slice, logit_rows_.size() - begin), result);
    beat();
  }
  if (const absl::Status status = stream_.synchronize(); !status.ok()) result.error = message(status);
}

void Lane::step(const Plan& plan, Result& result) {
  const auto start = std::chrono::steady_clock::now();
  result.clear();
  result.step = plan.step;
  absl::Status status = check(plan);
  if (status.ok()) status = stream_.set_share(plan.share);
  if (status.ok()) {
    build_batch(plan, result);
    if (!tokens_.empty()) run_batch(plan, result);  // all its sequences may have ended in the step before
  } else {
    result.error = message(status);
  }
  tails_.record(plan, result);
  result.busy_us = microseconds_since(start);
}

void Lane::drop_large_answers(Result& result) {
  for (ResultItem& item : result.items) {
    if (item.scores.count == 0 && item.logits.count == 0) continue;
    const SequenceId sequence = item.sequence;
    item = ResultItem();
    item.sequence = sequence;
    item.status = ItemStatus::kTooLarge;
  }
  result.scores.clear();
  result.logits.clear();
}

absl::Status Lane::run(WorkerPort& port, const std::function<bool()>& keep_going) {
  Plan plan;
  Result result;
  auto answered = std::chrono::steady_clock::now();
  while (true) {
    TANDEM_ASSIGN(const bool received, port.receive(plan, kReceiveTimeout));
    if (!received) {
      if (!keep_going()) return absl::OkStatus();
      continue;
    }
    const std::uint64_t waited_us = microseconds_since(answered);
    step(plan, result);
    result.waited_us = waited_us;
    // The step has synchronized: whoever reads the answer may count on its blocks being no longer read.
    absl::Status sent = port.send(result);
    if (absl::IsInvalidArgument(sent)) {  // larger than the ring: whoever asked for so much is told
      drop_large_answers(result);
      sent = port.send(result);
    }
    TANDEM_TRY(sent);
    answered = std::chrono::steady_clock::now();
  }
}

}  // namespace tandem
