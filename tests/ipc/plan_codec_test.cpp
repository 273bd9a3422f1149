#include "ipc/plan_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <type_traits>

#include "base/status.h"
#include "ipc/shared_memory.h"

namespace tandem {
namespace {

constexpr std::uint64_t kSeed = 7;

Run grow(std::mt19937_64& random, std::size_t at, std::uint32_t max) {
  return {.begin = static_cast<std::uint32_t>(at), .count = static_cast<std::uint32_t>(random() % (max + 1))};
}

Plan random_plan(std::mt19937_64& random) {
  Plan plan;
  plan.step = random();
  plan.share = {.first = static_cast<std::uint16_t>(random()), .count = static_cast<std::uint16_t>(random())};
  for (std::uint64_t n = random() % 6; n > 0; --n) {
    PlanItem item;
    item.sequence = {random()};
    item.position = static_cast<std::uint32_t>(random() % 100'000);
    item.tokens = grow(random, plan.tokens.size(), 40);
    item.blocks = grow(random, plan.blocks.size(), 10);
    item.targets = grow(random, plan.targets.size(), item.tokens.count);
    item.bias = grow(random, plan.bias.size(), 3);
    item.counts = grow(random, plan.counts.size(), 3);
    item.stops = grow(random, plan.stops.size(), 3);
    item.unknown_tokens = static_cast<std::uint32_t>(random() % (kMaxLookAhead + 1));
    item.previous_index = static_cast<std::uint32_t>(random());
    item.wants_sample = random() % 2;
    item.wants_logits = random() % 2;
    item.sampling.seed = random();
    item.sampling.temperature = 0.5F;
    item.sampling.num_top_logprobs = static_cast<std::int32_t>(random() % 21);
    item.sampling.wants_logprob = random() % 2 == 0;
    for (std::uint32_t i = 0; i < item.tokens.count; ++i) plan.tokens.push_back(static_cast<TokenId>(random() % 999));
    for (std::uint32_t i = 0; i < item.blocks.count; ++i) plan.blocks.push_back({static_cast<std::uint32_t>(random())});
    for (std::uint32_t i = 0; i < item.targets.count; ++i) plan.targets.push_back(static_cast<TokenId>(random() % 99));
    for (std::uint32_t i = 0; i < item.bias.count; ++i) plan.bias.push_back({.token = 4, .logprob = -1.5F});
    for (std::uint32_t i = 0; i < item.counts.count; ++i) plan.counts.push_back({.token = 5, .output_count = 2});
    for (std::uint32_t i = 0; i < item.stops.count; ++i) plan.stops.push_back(static_cast<TokenId>(random() % 99));
    plan.items.push_back(item);
  }
  return plan;
}

Result random_result(std::mt19937_64& random) {
  Result result;
  result.step = random();
  result.busy_us = random();
  result.waited_us = random();
  for (std::uint64_t n = random() % 5; n > 0; --n) {
    ResultItem item;
    item.sequence = {random()};
    item.has_token = random() % 2;
    item.sampled.token = static_cast<TokenId>(random() % 50'000);
    item.sampled.num_top = static_cast<std::int32_t>(random() % 21);
    item.scores = grow(random, result.scores.size(), 4);
    item.logits = grow(random, result.logits.size(), 300);
    for (std::uint32_t i = 0; i < item.scores.count; ++i) result.scores.push_back(item.sampled);
    for (std::uint32_t i = 0; i < item.logits.count; ++i) result.logits.push_back(static_cast<float>(i) * 0.25F);
    result.items.push_back(item);
  }
  if (random() % 3 == 0) result.error = "the step failed";
  return result;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool equal(const Run& a, const Run& b) { return a.begin == b.begin && a.count == b.count; }

void expect_equal(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.share, b.share);
  EXPECT_TRUE(same_bytes(a.tokens, b.tokens) && same_bytes(a.blocks, b.blocks) && same_bytes(a.targets, b.targets) &&
              same_bytes(a.bias, b.bias) && same_bytes(a.counts, b.counts) && same_bytes(a.stops, b.stops));
  ASSERT_EQ(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    const PlanItem& x = a.items[i];
    const PlanItem& y = b.items[i];
    EXPECT_TRUE(x.sequence == y.sequence && x.position == y.position && equal(x.tokens, y.tokens) &&
                equal(x.blocks, y.blocks) && equal(x.targets, y.targets) && equal(x.bias, y.bias) &&
                equal(x.counts, y.counts) && equal(x.stops, y.stops) && x.unknown_tokens == y.unknown_tokens &&
                x.previous_index == y.previous_index && x.wants_sample == y.wants_sample &&
                x.wants_logits == y.wants_logits && x.sampling.seed == y.sampling.seed &&
                x.sampling.temperature == y.sampling.temperature &&
                x.sampling.num_top_logprobs == y.sampling.num_top_logprobs &&
                x.sampling.wants_logprob == y.sampling.wants_logprob);
    EXPECT_TRUE(y.sampling.bias.empty() && y.sampling.counts.empty());
  }
}

class PlanCodec : public testing::Test {
 protected:
  PlanCodec() { init_ring(memory_.bytes()); }

  template <class Encoder, class T>
  std::vector<std::byte> bytes_of(Encoder& encoder, const T& object) {
    std::vector<std::byte> bytes;
    for (const auto part : encoder.encode(object)) bytes.insert(bytes.end(), part.begin(), part.end());
    return bytes;
  }
  template <class T>
  absl::Status decode_bytes(std::span<const std::byte> bytes, T& object) {
    TANDEM_TRY(writer_.push({&bytes, 1}));
    TANDEM_TRY(reader_.begin().status());
    const absl::Status status = decode(reader_, object);
    reader_.end();
    return status;
  }

  TestMemory memory_{MemoryKind::kHeap, ring_bytes(1U << 17)};
  RingWriter writer_ = RingWriter::open(memory_.bytes()).value();
  RingReader reader_ = RingReader::open(memory_.bytes()).value();
  PlanEncoder plans_;
  ResultEncoder results_;
  std::mt19937_64 random_{kSeed};
};

TEST_F(PlanCodec, returns_the_plan_that_was_sent) {
  Plan got;
  for (int i = 0; i < 300; ++i) {
    const Plan plan = random_plan(random_);
    ASSERT_TRUE(writer_.push(plans_.encode(plan)).ok());
    EXPECT_EQ(bytes_of(plans_, plan).size(), message_bytes(plan));
    ASSERT_TRUE(reader_.begin().ok());
    ASSERT_TRUE(decode(reader_, got).ok());
    reader_.end();
    expect_equal(plan, got);
  }
}

TEST_F(PlanCodec, returns_the_result_that_was_sent) {
  Result got;
  for (int i = 0; i < 300; ++i) {
    const Result result = random_result(random_);
    ASSERT_TRUE(writer_.push(results_.encode(result)).ok());
    ASSERT_TRUE(reader_.begin().ok());
    ASSERT_TRUE(decode(reader_, got).ok());
    reader_.end();
    EXPECT_TRUE(got.step == result.step && got.busy_us == result.busy_us && got.waited_us == result.waited_us &&
                got.error == result.error && same_bytes(got.scores, result.scores) &&
                same_bytes(got.logits, result.logits) && same_bytes(got.items, result.items));
  }
}

TEST_F(PlanCodec, sends_no_span_and_believes_none) {
  const TokenLogprob secret[] = {{.token = 1, .logprob = 2.0F}};
  Plan plan;
  plan.items.emplace_back();
  plan.items[0].sampling.bias = secret;
  std::vector<std::byte> bytes = bytes_of(plans_, plan);
  const void* pointer = secret;
  EXPECT_EQ(memmem(bytes.data(), bytes.size(), &pointer, sizeof(pointer)), nullptr);
  // A damaged message that carries one.
  std::memcpy(bytes.data() + bytes.size() - sizeof(PlanItem) + offsetof(PlanItem, sampling) + offsetof(SampleRow, bias),
              &plan.items[0].sampling.bias, sizeof(plan.items[0].sampling.bias));
  Plan got;
  ASSERT_TRUE(decode_bytes(bytes, got).ok());
  EXPECT_TRUE(got.items[0].sampling.bias.empty());
}

TEST_F(PlanCodec, refuses_a_plan_whose_items_point_outside_its_lists) {
  const std::function<void(PlanItem&)> changes[] = {
      [](PlanItem& item) { item.tokens.count = 5; },
      [](PlanItem& item) { item.tokens = {.begin = 5, .count = 0}; },
      [](PlanItem& item) { item.tokens = {.begin = 0xffffffff, .count = 2}; },
      [](PlanItem& item) { item.blocks = {.begin = 2, .count = 0xffffffff}; },
      [](PlanItem& item) { item.stops = {.begin = 0, .count = 0xffffffff}; },
      [](PlanItem& item) { item.unknown_tokens = kMaxLookAhead + 1; },
      [](PlanItem& item) { item.targets.count = 4; },
      [](PlanItem& item) { item.bias.count = 1; },
      [](PlanItem& item) { item.counts.begin = 1; },
      [](PlanItem& item) { item.tokens.count = 1; },  // fewer than its targets
      [](PlanItem& item) { item.wants_sample = 2; },
      [](PlanItem& item) { item.wants_logits = 9; },
      [](PlanItem& item) { item.sampling.num_top_logprobs = 21; },
      [](PlanItem& item) { item.sampling.num_top_logprobs = -1; },
      [](PlanItem& item) { std::memset(&item.sampling.wants_logprob, 0x55, 1); },
  };
  Plan good;
  good.tokens = {1, 2, 3, 4};
  good.blocks = {{1}, {2}};
  good.targets = {2, 3, 4};
  good.items.emplace_back();
  good.items[0].tokens.count = 4;
  good.items[0].blocks.count = 2;
  good.items[0].targets.count = 3;
  Plan got;
  ASSERT_TRUE(decode_bytes(bytes_of(plans_, good), got).ok());
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    Plan bad = good;
    changes[i](bad.items[0]);
    const absl::Status status = decode_bytes(bytes_of(plans_, bad), got);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "change " << i;
    EXPECT_TRUE(got.items.empty() && got.tokens.empty()) << "change " << i;
  }
}

TEST_F(PlanCodec, refuses_a_result_whose_items_point_outside_its_lists) {
  const std::function<void(Result&)> changes[] = {
      [](Result& r) { r.items[0].scores.count = 3; },         [](Result& r) { r.items[0].logits.begin = 9; },
      [](Result& r) { r.items[0].sampled.num_top = 21; },     [](Result& r) { r.items[0].sampled.num_top = -1; },
      [](Result& r) { r.scores[1].num_top = 1'000'000'000; }, [](Result& r) { r.items[0].has_token = 3; },
  };
  Result good;
  good.scores.resize(2);
  good.logits.resize(8);
  good.items.resize(1);
  good.items[0].scores.count = 2;
  good.items[0].logits.count = 8;
  Result got;
  ASSERT_TRUE(decode_bytes(bytes_of(results_, good), got).ok());
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    Result bad = good;
    changes[i](bad);
    EXPECT_EQ(decode_bytes(bytes_of(results_, bad), got).code(), absl::StatusCode::kDataLoss) << "change " << i;
  }
}

TEST_F(PlanCodec, refuses_the_other_kind_and_every_truncation) {
  const std::vector<std::byte> plan = bytes_of(plans_, random_plan(random_));
  const std::vector<std::byte> result = bytes_of(results_, random_result(random_));
  Plan got_plan;
  Result got_result;
  EXPECT_EQ(decode_bytes(result, got_plan).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(decode_bytes(plan, got_result).code(), absl::StatusCode::kDataLoss);
  std::vector<std::byte> longer = plan;
  longer.push_back(std::byte{0});
  EXPECT_EQ(decode_bytes(longer, got_plan).code(), absl::StatusCode::kDataLoss);
  for (std::size_t size = 0; size < plan.size(); size += 1 + size / 50) {
    EXPECT_EQ(decode_bytes(std::span(plan).first(size), got_plan).code(), absl::StatusCode::kDataLoss) << size;
  }
}

// Any damage decodes to something whose runs may be followed, or to DataLoss.
TEST_F(PlanCodec, survives_random_damage) {
  Plan got;
  for (int round = 0; round < 3'000; ++round) {
    std::vector<std::byte> bytes = bytes_of(plans_, random_plan(random_));
    for (std::uint64_t n = 1 + random_() % 4; n > 0; --n) {
      bytes[random_() % bytes.size()] = static_cast<std::byte>(random_());
    }
    if (!decode_bytes(bytes, got).ok()) continue;
    std::int64_t sum = 0;
    for (const PlanItem& item : got.items) {
      for (std::uint32_t i = 0; i < item.tokens.count; ++i) sum += got.tokens[item.tokens.begin + i];
      for (std::uint32_t i = 0; i < item.blocks.count; ++i) sum += got.blocks[item.blocks.begin + i].value;
      sum += item.sampling.wants_logprob ? 1 : 0;
    }
    volatile std::int64_t sink = sum;
    (void)sink;
  }
}

TEST_F(PlanCodec, reuses_the_lists_of_a_plan_that_is_reused) {
  Plan plan = random_plan(random_);
  while (plan.tokens.empty() || plan.blocks.empty()) plan = random_plan(random_);
  Plan got;
  ASSERT_TRUE(decode_bytes(bytes_of(plans_, plan), got).ok());
  const auto* tokens = got.tokens.data();
  const auto* items = got.items.data();
  got.clear();
  ASSERT_TRUE(decode_bytes(bytes_of(plans_, plan), got).ok());
  EXPECT_EQ(got.tokens.data(), tokens);
  EXPECT_EQ(got.items.data(), items);
}

}  // namespace
}  // namespace tandem
