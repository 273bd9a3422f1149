// The prefix cache of a pool: what is found, shared, evicted, flushed, and what outlives its process.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/status.h"
#include "memory/pool_support.h"
#include "memory/prefix_key.h"

namespace tandem {
namespace {

constexpr std::uint32_t kBlockTokens = 4;

// The names of the whole blocks of `tokens`.
std::vector<PrefixKey> keys_of(const std::vector<TokenId>& tokens, std::string_view salt = "") {
  std::vector<PrefixKey> keys;
  PrefixKey parent = prefix_root("model", salt);
  for (std::size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens) {
    keys.push_back(parent = prefix_key(parent, std::span(tokens).subspan(at, kBlockTokens)));
  }
  return keys;
}

std::vector<PrefixKey> keys_of(int first, int num_blocks, std::string_view salt = "") {
  std::vector<TokenId> tokens;
  for (int i = 0; i < num_blocks * static_cast<int>(kBlockTokens); ++i) tokens.push_back(first + i);
  return keys_of(tokens, salt);
}

struct Cache {
  explicit Cache(std::uint32_t num_blocks, MemoryKind kind = MemoryKind::kHeap)
      : ledger(kind, num_blocks), names(kind, num_blocks * sizeof(PrefixKey)) {
    reopen();
  }
  void reopen(std::uint32_t decode_reserve = 0) {
    pool.reset();
    const std::span<std::byte> bytes = names.bytes();
    const std::span table(reinterpret_cast<PrefixKey*>(bytes.data()), bytes.size() / sizeof(PrefixKey));
    pool = ledger.open({.holder = kSchedulerHolder, .decode_reserve_blocks = decode_reserve, .prefix_table = table});
  }
  // A sequence that computes what is not cached, and publishes all.
  KvLease run(std::span<const PrefixKey> keys) const {
    KvLease lease =
        pool->reserve(SequenceId{1}, static_cast<std::uint32_t>(keys.size()), Phase::kPrefill, keys).value();
    pool->publish(lease, keys);
    return lease;
  }
  // A lease on what is cached of it.
  KvLease read(std::span<const PrefixKey> keys) const {
    return pool->reserve(SequenceId{9}, cached(keys), Phase::kPrefill, keys).value();
  }
  std::uint32_t cached(std::span<const PrefixKey> keys) const { return pool->num_cached(keys); }

  TestLedger ledger;
  TestMemory names;
  std::unique_ptr<KvPool> pool;
};

TEST(PrefixKey, tells_models_salts_and_orders_apart) {
  const auto plain = keys_of({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(plain, keys_of({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(plain[0], keys_of({1, 2, 4, 3})[0]);
  EXPECT_NE(plain[1], keys_of({5, 6, 7, 8})[0]);
  EXPECT_NE(plain[0], keys_of({1, 2, 3, 4}, "tenant")[0]);
  EXPECT_NE(prefix_root("ab", "c"), prefix_root("a", "bc"));
}

TEST(PrefixCache, shares_blocks_of_a_common_prefix) {
  const Cache cache(10);
  const auto keys = keys_of(0, 3);
  const KvLease first = cache.run(keys);
  EXPECT_EQ(first.num_cached(), 3U);
  auto longer = keys;
  longer.push_back(keys_of(100, 1)[0]);
  EXPECT_EQ(cache.cached(longer), 3U);
  const KvLease second = cache.read(longer);
  ASSERT_EQ(second.num_cached(), 3U);
  EXPECT_TRUE(std::ranges::equal(second.blocks(), first.blocks()));
  EXPECT_EQ(cache.pool->usage().published, 3U);
  EXPECT_EQ(cache.pool->usage().evictable, 0U);
  EXPECT_EQ(cache.cached(keys_of(0, 3, "another tenant")), 0U);
}

TEST(PrefixCache, keeps_whole_blocks_when_a_sequence_ends_and_retires_the_rest) {
  const Cache cache(10);
  const auto keys = keys_of(0, 3);
  {
    KvLease lease = cache.run(keys);
    ASSERT_TRUE(cache.pool->grow(lease, 2, Phase::kDecode).ok());
    EXPECT_EQ(cache.pool->usage().held, 2U);
  }
  const KvPoolUsage usage = cache.pool->usage();
  EXPECT_EQ(usage.held, 0U);
  EXPECT_EQ(usage.evictable, 3U);
  EXPECT_EQ(usage.free, 7U);
  EXPECT_EQ(cache.cached(keys), 3U);
}

TEST(PrefixCache, keeps_one_block_per_name) {
  const Cache cache(10);
  const auto keys = keys_of(0, 2);
  KvLease a = cache.pool->reserve(SequenceId{1}, 2, Phase::kPrefill).value();
  KvLease b = cache.pool->reserve(SequenceId{2}, 3, Phase::kPrefill).value();
  const BlockId own = b.blocks()[2];
  cache.pool->publish(a, keys);
  cache.pool->publish(b, keys);
  EXPECT_TRUE(std::ranges::equal(a.blocks(), b.blocks().first(2)));
  EXPECT_EQ(b.blocks()[2], own);
  EXPECT_EQ(cache.pool->usage().free, 7U);
}

TEST(PrefixCache, evicts_what_was_left_alone_longest_and_the_ends_of_prefixes_first) {
  const Cache cache(6);
  const auto old_keys = keys_of(0, 3);
  const auto new_keys = keys_of(100, 3);
  cache.run(old_keys);
  cache.run(new_keys);
  EXPECT_EQ(cache.pool->usage().free, 0U);
  {
    const KvLease two = cache.pool->reserve(SequenceId{3}, 2, Phase::kPrefill).value();
  }
  EXPECT_EQ(cache.cached(old_keys), 1U);
  EXPECT_EQ(cache.cached(new_keys), 3U);
  cache.read(old_keys);  // makes it the newest
  {
    const KvLease five = cache.pool->reserve(SequenceId{3}, 5, Phase::kPrefill).value();
  }
  EXPECT_EQ(cache.cached(old_keys), 1U);
  EXPECT_EQ(cache.cached(new_keys), 0U);
}

TEST(PrefixCache, never_evicts_what_a_sequence_reads) {
  const Cache cache(4);
  const auto keys = keys_of(0, 3);
  const KvLease reader = cache.run(keys);
  EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode).ok());
  EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  EXPECT_EQ(cache.cached(keys), 3U);
}

// ---- a reservation that fails changes nothing --------------------------------------------------------------------

TEST(PrefixCache, is_left_alone_by_a_reservation_that_fails) {
  const Cache cache(32);
  const auto keys = keys_of(0, 8);
  cache.run(keys);
  KvLease held = cache.pool->reserve(SequenceId{2}, 20, Phase::kDecode).value();
  for (int turn = 0; turn < 3; ++turn) {
    const absl::Status status = cache.pool->reserve(SequenceId{3}, 13, Phase::kPrefill).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(std::string(message(status)).find("of 32, 4 are free and 8 can be evicted, 0 of them kept for decode; 0"),
              std::string::npos)
        << status;
    EXPECT_FALSE(cache.pool->grow(held, 13, Phase::kDecode).ok());
    EXPECT_FALSE(cache.pool->grow(held, UINT32_MAX, Phase::kDecode).ok());
    EXPECT_EQ(cache.cached(keys), 8U);
    EXPECT_EQ(cache.pool->usage().free, 4U);
    EXPECT_EQ(held.blocks().size(), 20U);
  }
  EXPECT_TRUE(cache.pool->reserve(SequenceId{3}, 12, Phase::kPrefill).ok());
  EXPECT_EQ(cache.cached(keys), 0U);
}

TEST(PrefixCache, is_evicted_only_as_far_as_a_reservation_needs) {
  const Cache cache(16);
  const auto keys = keys_of(0, 8);
  cache.run(keys);
  EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 11, Phase::kDecode).ok());
  EXPECT_EQ(cache.cached(keys), 5U);
}

TEST(PrefixCache, gives_way_to_the_decode_reserve_too) {
  Cache cache(16);
  cache.reopen(4);
  const auto keys = keys_of(0, 8);
  cache.run(keys);
  EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 13, Phase::kPrefill).ok());
  EXPECT_EQ(cache.cached(keys), 8U);
  const KvLease lease = cache.pool->reserve(SequenceId{2}, 12, Phase::kPrefill).value();
  EXPECT_EQ(cache.pool->usage().free, 4U) << "the reserve stays free";
}

TEST(PrefixCache, is_not_evicted_for_the_reservation_that_reads_it) {
  const Cache cache(8);
  const auto keys = keys_of(0, 4);
  auto longer = keys;
  for (const PrefixKey& key : keys_of(100, 5)) longer.push_back(key);
  cache.run(keys);
  EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 9, Phase::kPrefill, longer).ok()) << "4 cached, 4 free";
  EXPECT_EQ(cache.pool->usage().evictable, 4U);
  const KvLease lease = cache.pool->reserve(SequenceId{2}, 8, Phase::kPrefill, longer).value();
  EXPECT_EQ(lease.num_cached(), 4U);
  EXPECT_EQ(cache.cached(keys), 4U);
}

// A prompt that waits asks again and again; it reads nothing meanwhile.
TEST(PrefixCache, grows_no_younger_by_those_who_only_ask) {
  const Cache cache(6);
  const auto asked = keys_of(0, 3);
  const auto read = keys_of(100, 3);
  cache.run(asked);
  cache.run(read);
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(cache.cached(asked), 3U);
    EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 7, Phase::kPrefill, asked).ok());
  }
  EXPECT_TRUE(cache.pool->reserve(SequenceId{3}, 3, Phase::kPrefill).ok());
  EXPECT_EQ(cache.cached(asked), 0U);
  EXPECT_EQ(cache.cached(read), 3U);
}

// ---- steps under way ---------------------------------------------------------------------------------------------

constexpr LaneId kPrefillLane{0};
constexpr LaneId kDecodeLane{1};

TEST(PrefixCache, keeps_blocks_that_a_step_under_way_may_read) {
  const Cache cache(2);
  const auto keys = keys_of(0, 2);
  cache.pool->steps().issue(LaneId{0});  // may read what is given back from now on
  cache.run(keys);
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode).ok());
    EXPECT_EQ(cache.cached(keys), 2U) << "evicted, they would be no use to anybody yet";
    EXPECT_EQ(cache.pool->usage().evictable, 2U);
  }
  cache.pool->steps().complete(LaneId{0}, 1);
  EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode).ok());
  EXPECT_EQ(cache.cached(keys), 0U);
}

TEST(PrefixCache, evicts_what_no_step_under_way_reads_though_steps_run) {
  const Cache cache(4);
  StepClock& steps = cache.pool->steps();
  cache.run(keys_of(0, 2));
  steps.issue(LaneId{0});  // a step that names none of them
  KvLease late = cache.run(keys_of(100, 2));
  late = KvLease();  // its blocks may be read by that step
  ASSERT_EQ(cache.pool->usage().evictable, 4U);
  const auto first = cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode);
  EXPECT_TRUE(first.ok()) << "the two that were left alone longest: " << first.status();
  EXPECT_EQ(cache.pool->reserve(SequenceId{3}, 1, Phase::kDecode).status().code(),
            absl::StatusCode::kResourceExhausted);
  steps.complete(LaneId{0}, 1);
  EXPECT_TRUE(cache.pool->reserve(SequenceId{3}, 1, Phase::kDecode).ok());
  EXPECT_EQ(cache.cached(keys_of(0, 1)), 0U);
}

TEST(PrefixCache, waits_for_the_last_use_and_for_no_other_lane) {
  const Cache cache(2);
  StepClock& steps = cache.pool->steps();
  KvLease lease = cache.run(keys_of(0, 2));
  steps.issue(kPrefillLane);  // of a prompt that shares nothing, and never ends
  cache.pool->give_back(std::move(lease), {kDecodeLane, steps.issue(kDecodeLane)});
  EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  steps.complete(kDecodeLane, 1);
  EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode).ok());
}

// Whichever of its readers ends first.
TEST(PrefixCache, waits_for_the_last_uses_of_all_that_read_a_block) {
  for (const bool prefill_first : {true, false}) {
    const Cache cache(1);
    const auto keys = keys_of(0, 1);
    StepClock& steps = cache.pool->steps();
    KvLease decode = cache.run(keys);
    KvLease prefill = cache.read(keys);
    const LastUse last_uses[] = {{kPrefillLane, steps.issue(kPrefillLane)}, {kDecodeLane, steps.issue(kDecodeLane)}};
    if (prefill_first) cache.pool->give_back(std::move(prefill), last_uses[0]);
    cache.pool->give_back(std::move(decode), last_uses[1]);
    if (!prefill_first) cache.pool->give_back(std::move(prefill), last_uses[0]);
    steps.complete_all(kDecodeLane);
    EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
    // An idle reader that comes and goes meanwhile makes no difference.
    cache.pool->give_back_idle(cache.read(keys));
    EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
    steps.complete_all(kPrefillLane);
    EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  }
}

TEST(PrefixCache, flushed_while_it_is_read_waits_for_all_that_read_it) {
  const Cache cache(1);
  const auto keys = keys_of(0, 1);
  StepClock& steps = cache.pool->steps();
  KvLease decode = cache.run(keys);
  KvLease prefill = cache.read(keys);
  cache.pool->flush_cache();
  cache.pool->give_back(std::move(prefill), {kPrefillLane, steps.issue(kPrefillLane)});
  cache.pool->give_back(std::move(decode), {kDecodeLane, steps.issue(kDecodeLane)});
  steps.complete_all(kDecodeLane);
  EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  EXPECT_EQ(cache.pool->usage().retiring, 1U);
  steps.complete_all(kPrefillLane);
  EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
}

TEST(PrefixCache, retires_a_block_whose_name_is_taken_while_steps_run) {
  const Cache cache(3);
  const auto keys = keys_of(0, 1);
  StepClock& steps = cache.pool->steps();
  const KvLease first = cache.run(keys);
  KvLease second = cache.pool->reserve(SequenceId{2}, 1, Phase::kPrefill).value();
  steps.issue(kDecodeLane);  // sent ahead: it reads the sequence's own block
  cache.pool->publish(second, keys);
  EXPECT_EQ(cache.pool->usage().retiring, 1U);
  EXPECT_FALSE(cache.pool->reserve(SequenceId{3}, 2, Phase::kDecode).ok());
  steps.complete_all(kDecodeLane);
  EXPECT_TRUE(cache.pool->reserve(SequenceId{3}, 2, Phase::kDecode).ok());
}

TEST(PrefixCache, never_frees_at_once_what_a_step_under_way_may_read) {
  const Cache cache(1);
  StepClock& steps = cache.pool->steps();
  for (std::uint64_t step = 1; step < 50; ++step) {
    KvLease lease = cache.run(keys_of(static_cast<int>(step) * 10, 1));
    cache.pool->reclaim();
    ASSERT_EQ(steps.issue(LaneId{1}), step);  // it names the lease's block
    if (step % 3 == 0) cache.pool->reclaim();
    lease = KvLease();
    if (step % 2 == 0) cache.pool->reclaim();
    EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok()) << "step " << step;
    steps.complete(LaneId{1}, step);
    EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok()) << "step " << step;
  }
}

TEST(PrefixCache, flush_forgets_all_names_and_leaves_readers_their_blocks) {
  Cache cache(10);
  const auto keys = keys_of(0, 3);
  {
    const KvLease reader = cache.run(keys);
    cache.run(keys_of(100, 2));
    cache.pool->flush_cache();
    EXPECT_EQ(cache.cached(keys), 0U);
    EXPECT_EQ(reader.blocks().size(), 3U);
    EXPECT_EQ(cache.pool->usage().free, 7U);
    const KvLease again = cache.run(keys);  // the same names, other blocks
    EXPECT_NE(again.blocks()[0], reader.blocks()[0]);
  }
  EXPECT_EQ(cache.pool->usage().evictable, 3U);
  cache.pool->flush_cache();
  expect_exact(cache.ledger, *cache.pool, 0);
}

TEST(PrefixCache, outlives_its_process) {
  Cache cache(10, MemoryKind::kShared);
  const auto keys = keys_of(0, 4);
  const auto flushed = keys_of(50, 1);
  ChildProcess child([&] {
    const KvLease early = cache.run(keys);
    KvLease lost = cache.run(flushed);
    cache.pool->flush_cache();
    const KvLease again = cache.run(keys);
    if (again.blocks()[0] == early.blocks()[0] || !cache.pool->grow(lost, 1, Phase::kDecode).ok()) return 1;
    ::kill(::getpid(), SIGKILL);
    return 2;
  });
  ASSERT_EQ(child.join(), 128 + SIGKILL);
  cache.reopen();
  EXPECT_EQ(cache.cached(keys), 4U);
  EXPECT_EQ(cache.cached(flushed), 0U);
  const KvPoolUsage usage = cache.pool->usage();
  EXPECT_EQ(usage.evictable, 4U);
  EXPECT_EQ(usage.free, 6U);
  cache.pool->flush_cache();
  expect_exact(cache.ledger, *cache.pool, 0);
}

// Random sequences over a small alphabet of blocks, with steps of two lanes under way, beside a model: what was written
// into each block, and which step reads it last.
class RandomUse {
 public:
  void run() {
    for (int turn = 0; turn < 20'000 && !::testing::Test::HasFailure(); ++turn) {
      switch (random_() % 10) {
        case 0:
        case 1:
        case 2:
        case 3: begin(); break;
        case 4: publish(); break;
        case 5: send_step(); break;
        case 6: end_step(); break;
        case 7:
        case 8: end(); break;
        default: rarely(); break;
      }
      check();
    }
    live_.clear();
    for (const LaneId lane : {kPrefillLane, kDecodeLane}) cache_.pool->steps().complete_all(lane);
    EXPECT_EQ(cache_.pool->usage().held, 0U);
    cache_.pool->flush_cache();
    cache_.pool->reclaim();
    expect_exact(cache_.ledger, *cache_.pool, 0);
  }

 private:
  static constexpr std::uint32_t kBlocks = 40;
  struct Live {
    KvLease lease;
    std::vector<PrefixKey> keys;
    LaneId lane;
    std::uint64_t step = 0;  // the last that names its blocks; 0: none
  };

  void begin() {
    if (live_.size() >= 6) return;
    std::vector<TokenId> tokens;
    const std::size_t num_blocks = 1 + random_() % 6;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      tokens.insert(tokens.end(), kBlockTokens, static_cast<TokenId>(random_() % 3));
    }
    const auto keys = keys_of(tokens);
    const auto n = static_cast<std::uint32_t>(keys.size()) + static_cast<std::uint32_t>(random_() % 30);
    const KvPoolUsage before = cache_.pool->usage();
    const std::uint32_t cached = cache_.cached(keys);
    auto lease = cache_.pool->reserve(SequenceId{1}, n, Phase::kPrefill, keys);
    if (!lease.ok()) {
      const KvPoolUsage after = cache_.pool->usage();
      ASSERT_EQ(after.published, before.published) << "a reservation that fails changes nothing";
      ASSERT_EQ(after.evictable, before.evictable);
      ASSERT_EQ(after.held, before.held);
      ASSERT_EQ(cache_.cached(keys), cached);
      return;
    }
    ASSERT_EQ(lease->num_cached(), cached);
    for (std::uint32_t i = 0; i < cached; ++i) ASSERT_EQ(content_[lease->blocks()[i].value], keys[i]);
    for (std::size_t i = cached; i < n; ++i) {
      const std::uint32_t block = lease->blocks()[i].value;
      for (const LaneId lane : {kPrefillLane, kDecodeLane}) {
        ASSERT_LE(last_read_[block][lane.value], cache_.pool->steps().completed(lane)) << "a step still reads it";
      }
      content_[block] = i < keys.size() ? keys[i] : PrefixKey{};
    }
    live_.push_back({*std::move(lease), keys, LaneId{static_cast<std::uint32_t>(random_() % 2)}});
  }
  void publish() {
    if (live_.empty()) return;
    Live& some = live_[random_() % live_.size()];
    const std::size_t count = std::max<std::size_t>(some.lease.num_cached(), random_() % (some.keys.size() + 1));
    cache_.pool->publish(some.lease, std::span(some.keys).first(count));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(content_[some.lease.blocks()[i].value], some.keys[i]);
  }
  // Of one lane, with those of its sequences that are drawn.
  void send_step() {
    const LaneId lane{static_cast<std::uint32_t>(random_() % 2)};
    const std::uint64_t step = cache_.pool->steps().issue(lane);
    for (Live& each : live_) {
      if (each.lane != lane || random_() % 2 == 0) continue;
      each.step = step;
      for (const BlockId block : each.lease.blocks()) last_read_[block.value][lane.value] = step;
    }
  }
  void end_step() {
    const LaneId lane{static_cast<std::uint32_t>(random_() % 2)};
    StepClock& steps = cache_.pool->steps();
    steps.complete(lane, std::min(steps.issued(lane), steps.completed(lane) + random_() % 3));
  }
  void end() {
    if (live_.empty()) return;
    std::swap(live_[random_() % live_.size()], live_.back());
    Live& last = live_.back();
    if (random_() % 4 != 0) {
      if (last.step <= cache_.pool->steps().completed(last.lane)) {
        cache_.pool->give_back_idle(std::move(last.lease));
      } else {
        cache_.pool->give_back(std::move(last.lease), {last.lane, last.step});
      }
    }
    live_.pop_back();
  }
  void rarely() {
    if (random_() % 40 == 0) {
      cache_.pool->flush_cache();
    } else if (random_() % 200 == 0) {
      live_.clear();
      cache_.reopen();
      last_read_ = {};
    }
  }
  void check() {
    const KvPoolUsage usage = cache_.pool->usage();
    const KvPoolUsage words = cache_.ledger.usage();
    ASSERT_EQ(usage.free, words.free);
    ASSERT_EQ(usage.published, words.published);
    ASSERT_EQ(usage.held, words.held);
    ASSERT_EQ(usage.retiring, words.retiring);
    std::set<std::uint32_t> cached, own;
    for (const Live& each : live_) {
      for (std::size_t i = 0; i < each.lease.blocks().size(); ++i) {
        const std::uint32_t block = each.lease.blocks()[i].value;
        if (i < each.lease.num_cached()) {
          cached.insert(block);
        } else {
          ASSERT_TRUE(own.insert(block).second) << "a block is in two leases";
        }
      }
    }
    ASSERT_EQ(usage.held, own.size());
    ASSERT_EQ(usage.evictable + cached.size(), usage.published);
  }

  Cache cache_{kBlocks};
  std::mt19937 random_{7};
  std::vector<Live> live_;
  std::map<std::uint32_t, PrefixKey> content_;  // what the last owner of a block wrote into it
  std::map<std::uint32_t, std::array<std::uint64_t, 2>> last_read_;
};

TEST(PrefixCache, random_use_keeps_every_block_accounted_for) { RandomUse().run(); }

}  // namespace
}  // namespace tandem
