#include "ipc/plan_codec.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

// Heads, in 64-bit words: kind, step, then what follows in the message, in order.
constexpr std::uint64_t kPlanKind = 0x31706c616e;
constexpr std::uint64_t kResultKind = 0x317265736c74;

template <class T>
std::span<const std::byte> bytes_of(const T& list) {
  static_assert(std::is_trivially_copyable_v<typename T::value_type>);
  return std::as_bytes(std::span(list.data(), list.size()));
}

// Grows `list` only after the message was seen to hold that many elements.
template <class T>
bool read_list(RingReader& reader, std::uint64_t count, T& list) {
  if (count > reader.remaining() / sizeof(typename T::value_type)) return false;
  list.resize(count);
  return reader.read(std::as_writable_bytes(std::span(list.data(), list.size())));
}

bool inside(const Run& run, std::size_t size) { return run.begin <= size && run.count <= size - run.begin; }

absl::Status bad_item(const char* what, std::size_t index, const char* field) {
  return absl::DataLossError(fmt::format("{} message: item {} has {}; restart the worker", what, index, field));
}

absl::Status check_item(const PlanItem& item, const Plan& plan, std::size_t index) {
  unsigned char wants_logprob = 0;  // not read as a bool before it is known to be one
  std::memcpy(&wants_logprob, &item.sampling.wants_logprob, 1);
  if (!inside(item.tokens, plan.tokens.size())) return bad_item("plan", index, "tokens outside their list");
  if (!inside(item.blocks, plan.blocks.size())) return bad_item("plan", index, "blocks outside their list");
  if (!inside(item.targets, plan.targets.size())) return bad_item("plan", index, "targets outside their list");
  if (!inside(item.bias, plan.bias.size())) return bad_item("plan", index, "bias outside its list");
  if (!inside(item.counts, plan.counts.size())) return bad_item("plan", index, "counts outside their list");
  if (!inside(item.stops, plan.stops.size())) return bad_item("plan", index, "stops outside their list");
  if (item.unknown_tokens > kMaxLookAhead) return bad_item("plan", index, "too many unknown tokens");
  if (item.targets.count > item.tokens.count) return bad_item("plan", index, "more targets than tokens");
  if (item.wants_sample > 1 || item.wants_logits > 1 || wants_logprob > 1) {
    return bad_item("plan", index, "a flag that is neither 0 nor 1");
  }
  if (item.sampling.num_top_logprobs < 0 ||
      item.sampling.num_top_logprobs > static_cast<std::int32_t>(kMaxTopLogprobs)) {
    return bad_item("plan", index, "an impossible number of top logprobs");
  }
  return absl::OkStatus();
}

bool plausible(const Sampled& sampled) {
  return sampled.num_top >= 0 && sampled.num_top <= static_cast<std::int32_t>(kMaxTopLogprobs);
}

absl::Status decode_plan(RingReader& reader, Plan& plan) {
  std::array<std::uint64_t, kPlanHeadWords> head;
  if (!reader.read(std::as_writable_bytes(std::span(head))) || head[0] != kPlanKind) {
    return absl::DataLossError("message in the plan ring is not a plan; restart the worker");
  }
  plan.step = head[1];
  plan.share = {.first = static_cast<std::uint16_t>(head[2] >> 16), .count = static_cast<std::uint16_t>(head[2])};
  if (!read_list(reader, head[3], plan.items) || !read_list(reader, head[4], plan.tokens) ||
      !read_list(reader, head[5], plan.blocks) || !read_list(reader, head[6], plan.targets) ||
      !read_list(reader, head[7], plan.bias) || !read_list(reader, head[8], plan.counts) ||
      !read_list(reader, head[9], plan.stops) || reader.remaining() != 0) {
    return absl::DataLossError(fmt::format("plan message of step {}: its counts do not match its size", plan.step));
  }
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    plan.items[i].sampling.bias = {};
    plan.items[i].sampling.counts = {};
    TANDEM_TRY(check_item(plan.items[i], plan, i));
  }
  return absl::OkStatus();
}

absl::Status decode_result(RingReader& reader, Result& result) {
  std::array<std::uint64_t, kResultHeadWords> head;
  if (!reader.read(std::as_writable_bytes(std::span(head))) || head[0] != kResultKind) {
    return absl::DataLossError("message in the result ring is not a result; restart the worker");
  }
  result.step = head[1];
  result.busy_us = head[2];
  result.waited_us = head[3];
  if (!read_list(reader, head[4], result.items) || !read_list(reader, head[5], result.scores) ||
      !read_list(reader, head[6], result.logits) || !read_list(reader, head[7], result.error) ||
      reader.remaining() != 0) {
    return absl::DataLossError(fmt::format("result message of step {}: its counts do not match its size", result.step));
  }
  for (std::size_t i = 0; i < result.items.size(); ++i) {
    const ResultItem& item = result.items[i];
    if (!inside(item.scores, result.scores.size())) return bad_item("result", i, "scores outside their list");
    if (!inside(item.logits, result.logits.size())) return bad_item("result", i, "logits outside their list");
    if (item.status > ItemStatus::kTooLarge) return bad_item("result", i, "an unknown status");
    if (item.has_token > 1) return bad_item("result", i, "a flag that is neither 0 nor 1");
    if (!plausible(item.sampled)) return bad_item("result", i, "an impossible number of top logprobs");
  }
  for (std::size_t i = 0; i < result.scores.size(); ++i) {
    if (!plausible(result.scores[i])) return bad_item("result", i, "a score with an impossible number of logprobs");
  }
  return absl::OkStatus();
}

}  // namespace

void Plan::clear() {
  step = 0;
  share = {};
  items.clear();
  tokens.clear();
  blocks.clear();
  targets.clear();
  bias.clear();
  counts.clear();
  stops.clear();
}

void Result::clear() {
  step = 0;
  busy_us = 0;
  waited_us = 0;
  items.clear();
  scores.clear();
  logits.clear();
  error.clear();
}

std::span<const std::span<const std::byte>> PlanEncoder::encode(const Plan& plan) {
  items_.assign(plan.items.begin(), plan.items.end());
  for (PlanItem& item : items_) {
    item.sampling.bias = {};
    item.sampling.counts = {};
  }
  const std::uint64_t share = std::uint64_t{plan.share.first} << 16 | plan.share.count;
  head_ = {kPlanKind,           plan.step,          share,
           plan.items.size(),   plan.tokens.size(), plan.blocks.size(),
           plan.targets.size(), plan.bias.size(),   plan.counts.size(),
           plan.stops.size()};
  parts_ = {bytes_of(head_),        bytes_of(items_),    bytes_of(plan.tokens), bytes_of(plan.blocks),
            bytes_of(plan.targets), bytes_of(plan.bias), bytes_of(plan.counts), bytes_of(plan.stops)};
  return parts_;
}

std::size_t message_bytes(const Plan& plan) {
  const auto bytes = [](const auto& list) { return list.size() * sizeof(list[0]); };
  return kPlanHeadWords * sizeof(std::uint64_t) + bytes(plan.items) + bytes(plan.tokens) + bytes(plan.blocks) +
         bytes(plan.targets) + bytes(plan.bias) + bytes(plan.counts) + bytes(plan.stops);
}

std::span<const std::span<const std::byte>> ResultEncoder::encode(const Result& result) {
  head_ = {kResultKind,         result.step,          result.busy_us,       result.waited_us,
           result.items.size(), result.scores.size(), result.logits.size(), result.error.size()};
  parts_ = {bytes_of(head_), bytes_of(result.items), bytes_of(result.scores), bytes_of(result.logits),
            bytes_of(result.error)};
  return parts_;
}

absl::Status decode(RingReader& reader, Plan& plan) {
  absl::Status status = decode_plan(reader, plan);
  if (!status.ok()) plan.clear();
  return status;
}

absl::Status decode(RingReader& reader, Result& result) {
  absl::Status status = decode_result(reader, result);
  if (!status.ok()) result.clear();
  return status;
}

}  // namespace tandem
