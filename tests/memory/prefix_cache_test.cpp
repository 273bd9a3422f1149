// The prefix cache of a pool: what is found, shared, evicted, flushed, and what outlives its process.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

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
  void reopen() {
    pool.reset();
    const std::span<std::byte> bytes = names.bytes();
    const std::span table(reinterpret_cast<PrefixKey*>(bytes.data()), bytes.size() / sizeof(PrefixKey));
    pool = ledger.open({.holder = kSchedulerHolder, .decode_reserve_blocks = 0, .prefix_table = table});
  }
  // A sequence that computes what is not cached, and publishes all.
  KvLease run(std::span<const PrefixKey> keys) const {
    KvLease lease = pool->match(SequenceId{1}, keys);
    const auto missing = static_cast<std::uint32_t>(keys.size() - lease.blocks().size());
    EXPECT_TRUE(lease.grow(missing, Phase::kPrefill).ok());
    pool->publish(lease, keys);
    return lease;
  }
  std::uint32_t cached(std::span<const PrefixKey> keys) const { return pool->match(SequenceId{9}, keys).num_cached(); }

  TestLedger ledger;
  TestMemory names;
  std::unique_ptr<LedgerPool> pool;
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
  KvLease second = cache.pool->match(SequenceId{2}, longer);
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
    ASSERT_TRUE(lease.grow(2, Phase::kDecode).ok());
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
  EXPECT_EQ(cache.cached(old_keys), 1U);  // and makes it the newest
  EXPECT_EQ(cache.cached(new_keys), 3U);
  EXPECT_EQ(cache.cached(old_keys), 1U);
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

TEST(PrefixCache, retires_evicted_blocks_under_the_stamps) {
  const Cache cache(2);
  cache.run(keys_of(0, 2));
  cache.ledger.control().lanes[0].issued_step = 1;  // may still read them
  EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode).ok());
  EXPECT_EQ(cache.pool->usage().retiring, 2U);
  cache.ledger.control().lanes[0].completed_step = 1;
  EXPECT_TRUE(cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode).ok());
}

TEST(PrefixCache, frees_at_once_what_it_evicts_when_no_step_has_read_it_for_long) {
  const Cache cache(4);
  LaneCounters& lane = cache.ledger.control().lanes[0];
  cache.run(keys_of(0, 2));
  cache.pool->reclaim();  // nothing runs: what is unpinned now is out of use
  lane.issued_step = 1;   // a step that names none of them
  KvLease late = cache.run(keys_of(100, 2));
  late = KvLease();  // its blocks may be read by that step
  ASSERT_EQ(cache.pool->usage().evictable, 4U);
  const auto first = cache.pool->reserve(SequenceId{2}, 2, Phase::kDecode);
  EXPECT_TRUE(first.ok()) << "the two that were left alone longest: " << first.status();
  EXPECT_EQ(cache.pool->reserve(SequenceId{3}, 1, Phase::kDecode).status().code(),
            absl::StatusCode::kResourceExhausted);
  lane.completed_step = 1;
  EXPECT_TRUE(cache.pool->reserve(SequenceId{3}, 1, Phase::kDecode).ok());
  EXPECT_EQ(cache.cached(keys_of(0, 1)), 0U);
}

// A moment to wait for is chosen again and again; a block that was unpinned after it is not part of it.
TEST(PrefixCache, never_frees_at_once_what_a_step_under_way_may_read) {
  const Cache cache(1);
  LaneCounters& lane = cache.ledger.control().lanes[1];
  for (std::uint64_t step = 1; step < 50; ++step) {
    KvLease lease = cache.run(keys_of(static_cast<int>(step) * 10, 1));
    cache.pool->reclaim();
    lane.issued_step = step;  // it names the lease's block
    if (step % 3 == 0) cache.pool->reclaim();
    lease = KvLease();
    if (step % 2 == 0) cache.pool->reclaim();
    EXPECT_FALSE(cache.pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok()) << "step " << step;
    lane.completed_step = step;
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
    if (again.blocks()[0] == early.blocks()[0] || !lost.grow(1, Phase::kDecode).ok()) return 1;
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

// Random sequences over a small alphabet of blocks, beside a model: a map of names to blocks.
TEST(PrefixCache, random_use_keeps_every_block_accounted_for) {
  Cache cache(40);
  std::mt19937 random(7);
  std::vector<std::pair<KvLease, std::vector<PrefixKey>>> live;
  std::map<std::uint32_t, PrefixKey> content;  // what the last publisher wrote into a block
  for (int turn = 0; turn < 20'000; ++turn) {
    const auto choice = random() % 8;
    if (choice < 5 && live.size() < 6) {
      std::vector<TokenId> tokens;
      const std::size_t num_blocks = 1 + random() % 6;
      for (std::size_t i = 0; i < num_blocks; ++i) {
        const auto word = static_cast<TokenId>(random() % 3);
        tokens.insert(tokens.end(), kBlockTokens, word);
      }
      const auto keys = keys_of(tokens);
      KvLease lease = cache.pool->match(SequenceId{1}, keys);
      for (std::uint32_t i = 0; i < lease.num_cached(); ++i) ASSERT_EQ(content[lease.blocks()[i].value], keys[i]);
      const std::uint32_t own = lease.num_cached();
      if (!lease.grow(static_cast<std::uint32_t>(keys.size()) - own + 1, Phase::kPrefill).ok()) continue;
      for (std::size_t i = own; i < keys.size(); ++i) content[lease.blocks()[i].value] = keys[i];
      live.emplace_back(std::move(lease), keys);
    } else if (choice < 6 && !live.empty()) {
      auto& [lease, keys] = live[random() % live.size()];
      const std::size_t count = std::max<std::size_t>(lease.num_cached(), random() % (keys.size() + 1));
      cache.pool->publish(lease, std::span(keys).first(count));
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(content[lease.blocks()[i].value], keys[i]);
    } else if (choice < 7 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      live.pop_back();
    } else if (random() % 50 == 0) {
      cache.pool->flush_cache();
    }
    if (random() % 500 == 0) {
      live.clear();
      cache.reopen();
    }
  }
  live.clear();
  EXPECT_EQ(cache.pool->usage().held, 0U);
  cache.pool->flush_cache();
  expect_exact(cache.ledger, *cache.pool, 0);
}

}  // namespace
}  // namespace tandem
