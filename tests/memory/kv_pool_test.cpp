#include "memory/kv_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <set>
#include <string>

#include "base/status.h"
#include "memory/pool_support.h"

namespace tandem {
namespace {

std::vector<std::uint32_t> ids(const KvLease& lease) {
  std::vector<std::uint32_t> result;
  for (const BlockId block : lease.blocks()) result.push_back(block.value);
  return result;
}

TEST(KvPool, reserves_all_blocks_or_none) {
  const TestLedger ledger(MemoryKind::kHeap, 10);
  const auto pool = ledger.open();
  KvLease six = pool->reserve(SequenceId{1}, 6, Phase::kPrefill).value();
  EXPECT_EQ(six.blocks().size(), 6U);
  const auto five = pool->reserve(SequenceId{2}, 5, Phase::kPrefill);
  EXPECT_EQ(five.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->grow(six, 5, Phase::kDecode).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(six.blocks().size(), 6U);
  EXPECT_EQ(pool->grow(six, 0xffffffff, Phase::kDecode).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(pool->grow(six, 4, Phase::kDecode).ok());
  EXPECT_EQ(six.blocks().size(), 10U);
  EXPECT_EQ(pool->usage().free, 0U);
  EXPECT_TRUE(pool->reserve(SequenceId{3}, 0, Phase::kDecode).ok());
  EXPECT_TRUE(pool->grow(six, 0, Phase::kPrefill).ok());
}

TEST(KvPool, hands_out_ascending_runs) {
  const TestLedger ledger(MemoryKind::kHeap, 100);
  const auto pool = ledger.open();
  const KvLease lease = pool->reserve(SequenceId{1}, 40, Phase::kPrefill).value();
  const auto blocks = ids(lease);
  for (std::size_t i = 1; i < blocks.size(); ++i) EXPECT_EQ(blocks[i], blocks[i - 1] + 1);
}

TEST(KvPool, counts_the_runs_of_free_blocks) {
  const TestLedger ledger(MemoryKind::kHeap, 10);
  const auto runs = [&] { return read_free_runs(ledger.bytes()).value(); };
  EXPECT_EQ(runs().num_runs, 1U);
  EXPECT_EQ(runs().longest, 10U);
  const auto pool = ledger.open();
  std::vector<KvLease> leases;
  for (std::uint64_t i = 0; i < 10; ++i) leases.push_back(pool->reserve(SequenceId{i}, 1, Phase::kDecode).value());
  EXPECT_EQ(runs().num_runs, 0U);
  EXPECT_EQ(runs().longest, 0U);
  for (KvLease& lease : leases) {
    const std::uint32_t block = lease.blocks()[0].value;
    if (block == 0 || block == 4 || block == 5 || block == 9) lease = KvLease();
  }
  EXPECT_EQ(runs().num_runs, 3U);
  EXPECT_EQ(runs().longest, 2U);
}

TEST(KvPool, keeps_the_decode_reserve_from_prefill) {
  const TestLedger ledger(MemoryKind::kHeap, 10);
  const auto pool = ledger.open(kSchedulerHolder, 3);
  EXPECT_FALSE(pool->reserve(SequenceId{1}, 8, Phase::kPrefill).ok());
  KvLease seven = pool->reserve(SequenceId{1}, 7, Phase::kPrefill).value();
  EXPECT_FALSE(pool->grow(seven, 1, Phase::kPrefill).ok());
  EXPECT_TRUE(pool->grow(seven, 3, Phase::kDecode).ok());
}

TEST(KvLease, gives_its_blocks_back_exactly_once) {
  const TestLedger ledger(MemoryKind::kHeap, 10);
  const auto pool = ledger.open();
  {
    KvLease a = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
    KvLease b = std::move(a);
    EXPECT_TRUE(a.blocks().empty());  // NOLINT: moved-from is defined here
    EXPECT_EQ(pool->grow(a, 1, Phase::kDecode).code(), absl::StatusCode::kFailedPrecondition);
    a = pool->reserve(SequenceId{2}, 3, Phase::kDecode).value();
    EXPECT_EQ(pool->usage().held, 7U);
    a = std::move(b);  // gives the three back
    EXPECT_EQ(pool->usage().held, 4U);
    auto& same = a;
    a = std::move(same);
    EXPECT_EQ(a.blocks().size(), 4U);
  }
  expect_exact(ledger, *pool, 0);
}

constexpr LaneId kPrefillLane{0};
constexpr LaneId kDecodeLane{1};

TEST(KvLease, waits_for_the_steps_of_all_lanes_when_its_last_use_is_not_said) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  const auto pool = ledger.open();
  StepClock& steps = pool->steps();
  steps.resume(LaneId{0}, 4);
  steps.resume(LaneId{3}, 7);
  steps.issue(LaneId{0});
  steps.issue(LaneId{3});
  steps.issue(LaneId{3});
  {
    const KvLease lease = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  }
  // Steps issued from now on do not name the blocks any more.
  EXPECT_EQ(steps.issue(LaneId{0}), 6U);
  EXPECT_EQ(steps.issue(LaneId{3}), 10U);
  EXPECT_EQ(pool->usage().retiring, 4U);
  EXPECT_EQ(ledger.usage().retiring, 4U);
  EXPECT_FALSE(pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  steps.complete(LaneId{0}, 5);
  steps.complete(LaneId{3}, 8);
  pool->reclaim();
  EXPECT_FALSE(pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  steps.complete(LaneId{3}, 9);
  EXPECT_TRUE(pool->reserve(SequenceId{2}, 4, Phase::kDecode).ok());  // reserve reclaims when it must
}

TEST(KvLease, waits_for_its_own_last_step_and_for_no_other_lane) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  const auto pool = ledger.open();
  KvLease decode = pool->reserve(SequenceId{1}, 5, Phase::kDecode).value();
  const KvLease prompt = pool->reserve(SequenceId{2}, 3, Phase::kPrefill).value();
  pool->steps().issue(kPrefillLane);  // a step of the prompt, which never ends
  const std::uint64_t step = pool->steps().issue(kDecodeLane);
  pool->give_back(std::move(decode), {kDecodeLane, step});
  EXPECT_EQ(pool->usage().retiring, 5U);
  EXPECT_FALSE(pool->reserve(SequenceId{3}, 1, Phase::kDecode).ok()) << "the decode step may still read them";
  pool->steps().complete(kDecodeLane, step);
  EXPECT_TRUE(pool->reserve(SequenceId{3}, 5, Phase::kDecode).ok());
}

// Leases end in any order of their last steps.
TEST(KvLease, is_not_freed_by_an_earlier_step_than_its_last) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  const auto pool = ledger.open();
  KvLease early = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  KvLease late = pool->reserve(SequenceId{2}, 4, Phase::kDecode).value();
  StepClock& steps = pool->steps();
  for (int i = 0; i < 3; ++i) steps.issue(kDecodeLane);
  pool->give_back(std::move(late), {kDecodeLane, 3});
  pool->give_back(std::move(early), {kDecodeLane, 1});
  for (const std::uint64_t step : {1U, 2U}) {
    steps.complete(kDecodeLane, step);
    pool->reclaim();
    EXPECT_GE(pool->usage().retiring, 4U) << "step 3 still runs";
  }
  steps.complete(kDecodeLane, 3);
  pool->reclaim();
  EXPECT_EQ(pool->usage().free, 8U);
}

TEST(KvLease, is_free_once_its_lanes_process_is_reaped) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  const auto pool = ledger.open();
  KvLease lease = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  pool->steps().issue(kPrefillLane);
  pool->steps().issue(kDecodeLane);
  pool->give_back(std::move(lease), {kDecodeLane, pool->steps().issue(kDecodeLane)});
  pool->steps().complete_all(kPrefillLane);
  pool->reclaim();
  EXPECT_EQ(pool->usage().free, 0U);
  pool->steps().complete_all(kDecodeLane);
  pool->reclaim();
  EXPECT_EQ(pool->usage().free, 4U);
}

TEST(KvLease, frees_at_once_when_nothing_is_in_flight) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  const auto pool = ledger.open();
  pool->steps().complete(LaneId{1}, pool->steps().issue(LaneId{1}));
  {
    const KvLease lease = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  }
  EXPECT_EQ(pool->usage().free, 4U);
}

TEST(KvLease, that_ends_idle_is_free_while_other_steps_run) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  const auto pool = ledger.open();
  KvLease idle = *pool->reserve(SequenceId{1}, 4, Phase::kDecode);
  const KvLease busy = *pool->reserve(SequenceId{2}, 4, Phase::kDecode);
  pool->steps().issue(LaneId{1});  // a step of the other sequence
  pool->give_back_idle(std::move(idle));
  EXPECT_TRUE(idle.blocks().empty());  // NOLINT: moved-from is defined here
  EXPECT_EQ(pool->usage().free, 4U);
  EXPECT_EQ(pool->usage().retiring, 0U);
  pool->give_back_idle(std::move(idle));  // NOLINT: of nothing
  EXPECT_EQ(pool->usage().free, 4U);
  EXPECT_TRUE(pool->reserve(SequenceId{3}, 4, Phase::kDecode).ok());
}

// The hazard itself: a lane's step reads its blocks late; whoever gets them meanwhile overwrites them.
TEST(KvLease, keeps_a_late_reader_from_seeing_another_sequence) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  const auto pool = ledger.open();
  std::vector<std::uint64_t> content(8, 0);
  std::mt19937_64 random(11);
  for (std::uint64_t step = 1; step < 2'000; ++step) {
    KvLease lease = pool->reserve(SequenceId{step}, 2, Phase::kDecode).value();
    for (const std::uint32_t block : ids(lease)) content[block] = step;
    const auto read_by_lane = ids(lease);
    ASSERT_EQ(pool->steps().issue(LaneId{0}), step);
    if (step % 2 == 0) {  // the request is cancelled while the step runs
      lease = KvLease();
    } else {
      pool->give_back(std::move(lease), {LaneId{0}, step});
    }
    std::vector<KvLease> others;
    for (std::uint64_t n = random() % 4; n > 0; --n) {
      auto other = pool->reserve(SequenceId{1'000'000 + step}, 2, Phase::kDecode);
      if (!other.ok()) break;
      for (const std::uint32_t block : ids(*other)) content[block] = 0;
      others.push_back(*std::move(other));
    }
    for (const std::uint32_t block : read_by_lane) ASSERT_EQ(content[block], step);
    pool->steps().complete(LaneId{0}, step);
    others.clear();
  }
}

// ---- random operations against a model ---------------------------------------------------------------------------

// What the pool should do, with a count in the place of the blocks: leases end with a last use or without one.
struct PoolModel {
  static constexpr std::uint32_t kLanes = 2;
  struct Wait {
    std::array<std::uint64_t, kLanes> until{};
    std::uint32_t num_blocks = 0;
  };

  void reclaim() {
    for (std::deque<Wait>& line : lines) {
      for (; !line.empty() && passed(line.front()); line.pop_front()) free += line.front().num_blocks;
    }
  }
  bool passed(const Wait& wait) const { return wait.until[0] <= completed[0] && wait.until[1] <= completed[1]; }
  void retire(std::size_t line, const Wait& wait) {
    if (passed(wait)) {
      free += wait.num_blocks;
    } else {
      lines[line].push_back(wait);
    }
  }
  std::uint32_t retiring() const {
    std::uint32_t sum = 0;
    for (const auto& line : lines) {
      for (const Wait& wait : line) sum += wait.num_blocks;
    }
    return sum;
  }

  std::uint32_t free = 0;
  std::array<std::uint64_t, kLanes> issued{}, completed{};
  std::array<std::deque<Wait>, kLanes + 1> lines;  // of each lane, and of those that wait for both
};

TEST(KvPool, behaves_like_its_model) {
  constexpr std::uint32_t kBlocks = 64;
  constexpr std::uint32_t kReserve = 8;
  const TestLedger ledger(MemoryKind::kHeap, kBlocks);
  const auto pool = ledger.open(kSchedulerHolder, kReserve);
  PoolModel model;
  model.free = kBlocks;
  std::mt19937_64 random(20240607);
  std::vector<KvLease> leases;
  for (int i = 0; i < 30'000; ++i) {
    const Phase phase = random() % 2 == 0 ? Phase::kPrefill : Phase::kDecode;
    const auto n = static_cast<std::uint32_t>(random() % 12);
    const std::uint32_t needed = n + (phase == Phase::kPrefill ? kReserve : 0);
    const auto lane = static_cast<std::uint32_t>(random() % PoolModel::kLanes);
    KvLease* some = leases.empty() ? nullptr : &leases[random() % leases.size()];
    switch (random() % 8) {
      case 0: {
        if (n > 0 && model.free < needed) model.reclaim();
        auto lease = pool->reserve(SequenceId{static_cast<std::uint64_t>(i)}, n, phase);
        ASSERT_EQ(lease.ok(), n == 0 || model.free >= needed) << "operation " << i;
        if (lease.ok()) {
          model.free -= n;
          leases.push_back(*std::move(lease));
        }
        break;
      }
      case 1: {
        if (some == nullptr) break;
        if (n > 0 && model.free < needed) model.reclaim();
        const bool ok = pool->grow(*some, n, phase).ok();
        ASSERT_EQ(ok, n == 0 || model.free >= needed) << "operation " << i;
        if (ok) model.free -= n;
        break;
      }
      case 2:
      case 3: {
        if (some == nullptr) break;
        PoolModel::Wait wait{.until = model.issued, .num_blocks = static_cast<std::uint32_t>(some->blocks().size())};
        const bool both = model.issued[0] > 0 && model.issued[1] > 0;
        const std::uint64_t step = model.issued[lane] - random() % 3 % (model.issued[lane] + 1);
        switch (random() % 3) {
          case 0:
            model.retire(both ? PoolModel::kLanes : model.issued[0] > 0 ? 0 : 1, wait);
            *some = KvLease();
            break;
          case 1:
            wait.until = {};
            model.retire(0, wait);
            pool->give_back_idle(std::move(*some));
            break;
          default:
            wait.until = {};
            wait.until[lane] = step;
            model.retire(lane, wait);
            pool->give_back(std::move(*some), {LaneId{lane}, step});
            break;
        }
        std::swap(*some, leases.back());
        leases.pop_back();
        break;
      }
      case 4:
      case 5: ASSERT_EQ(pool->steps().issue(LaneId{lane}), ++model.issued[lane]); break;
      case 6: {
        std::uint64_t& completed = model.completed[lane];
        completed = std::min(model.issued[lane], completed + random() % 4);
        pool->steps().complete(LaneId{lane}, completed);
        break;
      }
      default:
        pool->reclaim();
        model.reclaim();
        break;
    }
    std::set<std::uint32_t> held;
    std::size_t count = 0;
    for (const KvLease& lease : leases) {
      for (const std::uint32_t block : ids(lease)) held.insert(block);
      count += lease.blocks().size();
    }
    ASSERT_EQ(held.size(), count) << "a block is held twice after operation " << i;
    const KvPoolUsage usage = pool->usage();
    const KvPoolUsage words = ledger.usage();
    ASSERT_EQ(usage.free, model.free) << "operation " << i;
    ASSERT_EQ(usage.retiring, model.retiring()) << "operation " << i;
    ASSERT_EQ(usage.held, count);
    ASSERT_TRUE(usage.free == words.free && usage.held == words.held && usage.retiring == words.retiring);
  }
  leases.clear();
  for (std::uint32_t lane = 0; lane < PoolModel::kLanes; ++lane) pool->steps().complete_all(LaneId{lane});
  pool->reclaim();
  expect_exact(ledger, *pool, 0);
}

TEST(KvPool, takes_back_what_an_earlier_process_left) {
  const TestLedger ledger(MemoryKind::kShared, 16);
  ChildProcess front_end([&] {
    const auto pool = ledger.open();
    pool->steps().issue(LaneId{0});
    const KvLease held = pool->reserve(SequenceId{1}, 5, Phase::kDecode).value();
    {
      const KvLease retiring = pool->reserve(SequenceId{2}, 3, Phase::kDecode).value();
    }
    ::_exit(0);  // no destructor runs
    return 0;
  });
  ASSERT_EQ(front_end.join(), 0);
  EXPECT_EQ(ledger.usage().held, 5U);
  EXPECT_EQ(ledger.usage().retiring, 3U);
  const auto pool = ledger.open();  // no step of it runs any more
  expect_exact(ledger, *pool, 0);
}

TEST(KvPool, recovers_another_holder_once_the_steps_of_now_are_over) {
  const TestLedger ledger(MemoryKind::kShared, 16);
  const auto scheduler = ledger.open();
  const KvLease mine = scheduler->reserve(SequenceId{1}, 2, Phase::kDecode).value();
  ChildProcess worker([&] {
    const auto pool = ledger.open(LaneId{1});
    const auto lease = pool->reserve(SequenceId{2}, 6, Phase::kDecode);
    ::_exit(lease.ok() ? 0 : 1);  // no destructor runs
    return 0;
  });
  ASSERT_EQ(worker.join(), 0);
  scheduler->steps().issue(LaneId{0});
  ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
  ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
  EXPECT_EQ(scheduler->usage().retiring, 6U);
  EXPECT_EQ(scheduler->usage().held, 2U);
  // Its successor has to wait until the scheduler is done with it.
  const auto early = KvPool::create(ledger.bytes(), {.holder = LaneId{1}});
  EXPECT_EQ(early.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(message(early.status())).find("holder 1 is still being recovered by holder 8"),
            std::string::npos)
      << early.status();
  scheduler->steps().complete(LaneId{0}, 1);
  scheduler->reclaim();
  EXPECT_TRUE(KvPool::create(ledger.bytes(), {.holder = LaneId{1}}).ok());
  expect_exact(ledger, *scheduler, 2);
}

TEST(KvPool, refuses_what_makes_no_sense) {
  const TestLedger ledger(MemoryKind::kHeap, 16);
  EXPECT_EQ(KvPool::create(ledger.bytes(), {.holder = LaneId{9}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvPool::create(ledger.bytes(), {.decode_reserve_blocks = 16}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.open()->recover_holder(kSchedulerHolder).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.open()->recover_holder(LaneId{77}).code(), absl::StatusCode::kInvalidArgument);
  const TestMemory blank(MemoryKind::kHeap, Ledger::bytes(16));
  EXPECT_EQ(KvPool::create(blank.bytes(), {}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(KvPool::create(ledger.bytes().first(100), {}).ok());
  EXPECT_EQ(KvPool::create(ledger.bytes().first(Ledger::bytes(15)), {}).status().code(), absl::StatusCode::kDataLoss);
  std::vector<PrefixKey> names(15);
  EXPECT_EQ(KvPool::create(ledger.bytes(), {.prefix_table = names}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(KvPool::create(ledger.bytes(), {.decode_reserve_blocks = 15}).ok());
  const auto pool = ledger.open();
  const TestLedger elsewhere(MemoryKind::kHeap, 4);
  const auto other_pool = elsewhere.open();
  KvLease foreign = other_pool->reserve(SequenceId{1}, 1, Phase::kDecode).value();
  EXPECT_EQ(pool->grow(foreign, 1, Phase::kDecode).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
