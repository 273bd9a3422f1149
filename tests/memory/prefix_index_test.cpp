#include "memory/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace tandem {
namespace {

// Random operations against a model: a map of names, an order of unpinning, and how many calls are idle. Few distinct
// low halves, so that names meet in the table, which is full of them at times.
class RandomIndex {
 public:
  void run() {
    for (int turn = 0; turn < 50'000 && !::testing::Test::HasFailure(); ++turn) {
      const BlockId block{static_cast<std::uint32_t>(random_() % kBlocks)};
      State& state = states_[block.value];
      switch (random_() % 16) {
        case 0:
        case 1:
        case 2:
        case 3: insert(block, state); break;
        case 4:
        case 5:
          if (!state.name) break;
          index_.pin(block);
          if (state.pins++ == 0) std::erase(unpinned_, block.value);
          break;
        case 6:
        case 7:
        case 8:
        case 9: unpin(block, state); break;
        case 10:
        case 11: evict(); break;
        case 12:
        case 13: {
          const std::uint64_t count = random_() % (num_calls_ - num_idle_calls_ + 1);
          index_.set_idle(count);
          num_idle_calls_ += count;
          break;
        }
        default:
          if (random_() % 100 == 0) clear();
          break;
      }
      check();
    }
  }

 private:
  static constexpr std::uint32_t kBlocks = 16;
  struct State {
    std::optional<PrefixKey> name;
    std::uint32_t pins = 0;
    std::uint64_t last_call = 0;
  };

  // Homes at both ends of the table, so that runs of names go round its end.
  PrefixKey draw_name() {
    constexpr std::uint64_t kLow[] = {0, 62, 63};
    return {1 + random_() % 20, kLow[random_() % 3]};
  }
  bool is_taken(const PrefixKey& name) const {
    return std::ranges::any_of(states_, [&](const State& state) { return state.name == name; });
  }
  void insert(BlockId block, State& state) {
    const PrefixKey name = draw_name();
    if (state.name || state.pins > 0 || is_taken(name)) return;
    index_.insert(block, name);
    state = {.name = name, .pins = 1, .last_call = state.last_call};
  }
  void unpin(BlockId block, State& state) {
    if (state.pins == 0) return;
    state.last_call = ++num_calls_;
    const bool is_last = --state.pins == 0;
    ASSERT_EQ(index_.unpin(block), is_last && !state.name);
    if (is_last && state.name) unpinned_.push_back(block.value);
  }
  void evict() {
    const auto block = index_.evict();
    ASSERT_EQ(block.has_value(), !unpinned_.empty());
    if (!block) return;
    ASSERT_EQ(block->value, unpinned_.front());
    unpinned_.pop_front();
    states_[block->value].name.reset();
  }
  void clear() {
    std::vector<std::uint32_t> returned;
    for (const BlockId block : index_.clear()) returned.push_back(block.value);
    std::ranges::sort(unpinned_);
    ASSERT_TRUE(std::ranges::equal(returned, unpinned_));
    unpinned_.clear();
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      if (!states_[block].name) continue;
      EXPECT_EQ(table_[block], PrefixKey{}) << "it must not come back";
      states_[block].name.reset();
    }
  }
  bool is_idle(std::uint32_t block) const {
    return states_[block].name && states_[block].pins == 0 && states_[block].last_call <= num_idle_calls_;
  }
  void check() {
    std::uint32_t num_blocks = 0;
    std::uint32_t num_idle = 0;
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      const State& state = states_[block];
      num_blocks += state.name || state.pins > 0 ? 1 : 0;
      num_idle += is_idle(block) ? 1 : 0;
      ASSERT_EQ(index_.is_idle(BlockId{block}), is_idle(block));
      if (!state.name) continue;
      ASSERT_EQ(index_.find(*state.name), BlockId{block});
      ASSERT_EQ(table_[block], *state.name);
    }
    const PrefixKey name = draw_name();
    ASSERT_EQ(index_.find(name).has_value(), is_taken(name));
    ASSERT_EQ(index_.num_blocks(), num_blocks);
    ASSERT_EQ(index_.num_unpinned(), unpinned_.size());
    ASSERT_EQ(index_.num_idle(), num_idle);
  }

  std::vector<PrefixKey> table_ = std::vector<PrefixKey>(kBlocks);
  PrefixIndex index_{table_};
  std::mt19937 random_{5};
  std::vector<State> states_ = std::vector<State>(kBlocks);
  std::deque<std::uint32_t> unpinned_;
  std::uint64_t num_calls_ = 0;
  std::uint64_t num_idle_calls_ = 0;
};

TEST(PrefixIndex, behaves_like_its_model) { RandomIndex().run(); }

TEST(PrefixIndex, restores_each_name_once_and_no_block_without_one) {
  std::vector<PrefixKey> table(4);
  table[0] = table[1] = {1, 7};
  table[2] = {2, 7};
  PrefixIndex index(table);
  EXPECT_TRUE(index.restore(BlockId{0}));
  EXPECT_FALSE(index.restore(BlockId{1})) << "its name is taken";
  EXPECT_TRUE(index.restore(BlockId{2}));
  EXPECT_FALSE(index.restore(BlockId{3})) << "it has no name";
  EXPECT_EQ(index.find({1, 7}), BlockId{0});
  EXPECT_EQ(index.find({2, 7}), BlockId{2});
  EXPECT_EQ(index.num_unpinned(), 2U);
  EXPECT_EQ(index.num_idle(), 0U);
  index.set_idle(2);
  EXPECT_EQ(index.num_idle(), 2U);
  EXPECT_EQ(index.evict(), BlockId{0});
}

TEST(PrefixIndex, of_a_pool_without_a_cache_finds_nothing) {
  const PrefixIndex index({});
  EXPECT_FALSE(index.find({1, 2}));
}

TEST(PrefixIndexDeathTest, is_never_given_what_cannot_be) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<PrefixKey> table(4);
  PrefixIndex index(table);
  index.insert(BlockId{0}, {1, 1});
  EXPECT_DEATH(index.insert(BlockId{0}, {2, 2}), "a block is published once");
  EXPECT_DEATH(index.insert(BlockId{1}, {1, 1}), "no two blocks have one name");
  EXPECT_DEATH(static_cast<void>(index.unpin(BlockId{1})), "only pinned blocks are unpinned");
  EXPECT_DEATH(index.set_idle(1), "only of leases that were given back");
  static_cast<void>(index.unpin(BlockId{0}));
  table[0] = {9, 9};
  EXPECT_DEATH(static_cast<void>(index.evict()), "only the index changes the names of cached blocks");
}

}  // namespace
}  // namespace tandem
