#include "memory/kv_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>

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
  EXPECT_EQ(six.grow(5, Phase::kDecode).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(six.blocks().size(), 6U);
  EXPECT_EQ(six.grow(0xffffffff, Phase::kDecode).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(six.grow(4, Phase::kDecode).ok());
  EXPECT_EQ(six.blocks().size(), 10U);
  EXPECT_EQ(pool->usage().free, 0U);
  EXPECT_TRUE(pool->reserve(SequenceId{3}, 0, Phase::kDecode).ok());
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
  EXPECT_FALSE(seven.grow(1, Phase::kPrefill).ok());
  EXPECT_TRUE(seven.grow(3, Phase::kDecode).ok());
}

TEST(KvLease, gives_its_blocks_back_exactly_once) {
  const TestLedger ledger(MemoryKind::kHeap, 10);
  const auto pool = ledger.open();
  {
    KvLease a = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
    KvLease b = std::move(a);
    EXPECT_TRUE(a.blocks().empty());  // NOLINT: moved-from is defined here
    EXPECT_EQ(a.grow(1, Phase::kDecode).code(), absl::StatusCode::kFailedPrecondition);
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

TEST(KvLease, returns_blocks_only_after_every_lane_passes) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  ControlPage& control = ledger.control();
  const auto pool = ledger.open();
  control.lanes[0].issued_step = 5;
  control.lanes[0].completed_step = 4;
  control.lanes[3].issued_step = 9;
  control.lanes[3].completed_step = 7;
  {
    const KvLease lease = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  }
  // Steps issued from now on do not name the blocks any more.
  control.lanes[0].issued_step = 6;
  control.lanes[3].issued_step = 11;
  EXPECT_EQ(pool->usage().retiring, 4U);
  EXPECT_EQ(ledger.usage().retiring, 4U);
  EXPECT_FALSE(pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  control.lanes[0].completed_step = 5;
  control.lanes[3].completed_step = 8;
  pool->reclaim();
  EXPECT_FALSE(pool->reserve(SequenceId{2}, 1, Phase::kDecode).ok());
  control.lanes[3].completed_step = 9;
  EXPECT_TRUE(pool->reserve(SequenceId{2}, 4, Phase::kDecode).ok());  // reserve reclaims when it must
}

TEST(KvLease, frees_at_once_when_nothing_is_in_flight) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  ledger.control().lanes[1].issued_step = 3;
  ledger.control().lanes[1].completed_step = 3;
  const auto pool = ledger.open();
  {
    const KvLease lease = pool->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  }
  EXPECT_EQ(pool->usage().free, 4U);
}

TEST(KvLease, that_ends_out_of_use_is_free_while_other_steps_run) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  const auto pool = ledger.open({.holder = kSchedulerHolder});
  KvLease idle = *pool->reserve(SequenceId{1}, 4, Phase::kDecode);
  const KvLease busy = *pool->reserve(SequenceId{2}, 4, Phase::kDecode);
  ledger.control().lanes[1].issued_step = 1;  // a step of the other sequence
  idle.end();
  EXPECT_TRUE(idle.blocks().empty());
  EXPECT_EQ(pool->usage().free, 4U);
  EXPECT_EQ(pool->usage().retiring, 0U);
  idle.end();  // of nothing
  EXPECT_EQ(pool->usage().free, 4U);
  EXPECT_TRUE(pool->reserve(SequenceId{3}, 4, Phase::kDecode).ok());
}

// The hazard itself: a lane's step reads its blocks late; whoever gets them meanwhile overwrites them.
TEST(KvLease, keeps_a_late_reader_from_seeing_another_sequence) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  ControlPage& control = ledger.control();
  const auto pool = ledger.open();
  std::vector<std::uint64_t> content(8, 0);
  std::mt19937_64 random(11);
  for (std::uint64_t step = 1; step < 2'000; ++step) {
    KvLease lease = pool->reserve(SequenceId{step}, 2, Phase::kDecode).value();
    for (const std::uint32_t block : ids(lease)) content[block] = step;
    const auto read_by_lane = ids(lease);
    control.lanes[0].issued_step = step;
    lease = KvLease();  // the request is cancelled while the step runs
    std::vector<KvLease> others;
    for (std::uint64_t n = random() % 4; n > 0; --n) {
      auto other = pool->reserve(SequenceId{1'000'000 + step}, 2, Phase::kDecode);
      if (!other.ok()) break;
      for (const std::uint32_t block : ids(*other)) content[block] = 0;
      others.push_back(*std::move(other));
    }
    for (const std::uint32_t block : read_by_lane) ASSERT_EQ(content[block], step);
    control.lanes[0].completed_step = step;
    others.clear();
  }
}

// Random operations against a model: counts of free blocks, and a queue of {step, blocks} that retire.
TEST(KvPool, behaves_like_its_model) {
  constexpr std::uint32_t kBlocks = 64;
  constexpr std::uint32_t kReserve = 8;
  const TestLedger ledger(MemoryKind::kHeap, kBlocks);
  LaneCounters& lane = ledger.control().lanes[2];
  const auto pool = ledger.open(kSchedulerHolder, kReserve);
  std::mt19937_64 random(20240607);
  std::vector<KvLease> leases;
  std::uint32_t free = kBlocks;
  std::deque<std::pair<std::uint64_t, std::size_t>> retiring;
  const auto reclaim = [&] {
    while (!retiring.empty() && retiring.front().first <= lane.completed_step) {
      free += static_cast<std::uint32_t>(retiring.front().second);
      retiring.pop_front();
    }
  };
  for (int i = 0; i < 30'000; ++i) {
    const Phase phase = random() % 2 == 0 ? Phase::kPrefill : Phase::kDecode;
    const auto n = static_cast<std::uint32_t>(random() % 12);
    const std::uint32_t needed = n + (phase == Phase::kPrefill ? kReserve : 0);
    KvLease* some = leases.empty() ? nullptr : &leases[random() % leases.size()];
    switch (random() % 6) {
      case 0: {
        if (free < needed) reclaim();
        auto lease = pool->reserve(SequenceId{static_cast<std::uint64_t>(i)}, n, phase);
        ASSERT_EQ(lease.ok(), n == 0 || free >= needed) << "operation " << i;
        if (lease.ok()) {
          free -= n;
          leases.push_back(*std::move(lease));
        }
        break;
      }
      case 1: {
        if (some == nullptr) break;
        if (free < needed) reclaim();
        const bool ok = some->grow(n, phase).ok();
        ASSERT_EQ(ok, n == 0 || free >= needed) << "operation " << i;
        if (ok) free -= n;
        break;
      }
      case 2: {
        if (some == nullptr) break;
        const std::size_t count = some->blocks().size();
        if (lane.completed_step >= lane.issued_step) {
          free += static_cast<std::uint32_t>(count);
        } else {
          retiring.emplace_back(lane.issued_step.load(), count);
        }
        std::swap(*some, leases.back());
        leases.pop_back();
        break;
      }
      case 3: lane.issued_step += 1; break;
      case 4:
        lane.completed_step = std::min<std::uint64_t>(lane.issued_step, lane.completed_step + random() % 3);
        break;
      case 5:
        pool->reclaim();
        reclaim();
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
    ASSERT_EQ(usage.free, free) << "operation " << i;
    ASSERT_EQ(usage.held, count);
    ASSERT_TRUE(usage.free == words.free && usage.held == words.held && usage.retiring == words.retiring);
  }
  leases.clear();
  lane.completed_step = lane.issued_step.load();
  pool->reclaim();
  expect_exact(ledger, *pool, 0);
}

TEST(KvPool, starts_over_what_an_earlier_life_left) {
  const TestLedger ledger(MemoryKind::kShared, 16);
  ledger.control().lanes[0].issued_step = 2;
  ChildProcess front_end([&] {
    const auto pool = ledger.open();
    const KvLease held = pool->reserve(SequenceId{1}, 5, Phase::kDecode).value();
    {
      const KvLease retiring = pool->reserve(SequenceId{2}, 3, Phase::kDecode).value();
    }
    ::_exit(0);  // no destructor runs
    return 0;
  });
  ASSERT_EQ(front_end.join(), 0);
  EXPECT_EQ(ledger.usage().held, 5U);
  const auto pool = ledger.open();
  EXPECT_EQ(pool->usage().retiring, 8U) << "the lane may still read what the dead front end held";
  EXPECT_EQ(pool->usage().free, 8U);
  ledger.control().lanes[0].completed_step = 2;
  pool->reclaim();
  expect_exact(ledger, *pool, 0);
}

TEST(KvPool, recovers_another_holder_under_the_stamps_of_now) {
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
  ledger.control().lanes[0].issued_step = 1;
  ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
  ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
  EXPECT_EQ(scheduler->usage().retiring, 6U);
  EXPECT_EQ(scheduler->usage().held, 2U);
  // Its successor has to wait until the scheduler is done with it.
  const auto early = create_kv_pool(ledger.bytes(), ledger.control(), {.holder = LaneId{1}});
  EXPECT_EQ(early.status().code(), absl::StatusCode::kFailedPrecondition);
  ledger.control().lanes[0].completed_step = 1;
  scheduler->reclaim();
  EXPECT_TRUE(create_kv_pool(ledger.bytes(), ledger.control(), {.holder = LaneId{1}}).ok());
  expect_exact(ledger, *scheduler, 2);
}

TEST(KvPool, refuses_what_makes_no_sense) {
  const TestLedger ledger(MemoryKind::kHeap, 16);
  ControlPage& control = ledger.control();
  EXPECT_EQ(create_kv_pool(ledger.bytes(), control, {.holder = LaneId{9}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create_kv_pool(ledger.bytes(), control, {.decode_reserve_blocks = 16}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.open()->recover_holder(kSchedulerHolder).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.open()->recover_holder(LaneId{77}).code(), absl::StatusCode::kInvalidArgument);
  const TestMemory blank(MemoryKind::kHeap, ledger_bytes(16));
  EXPECT_EQ(create_kv_pool(blank.bytes(), control, {}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(create_kv_pool(ledger.bytes().first(100), control, {}).ok());
  EXPECT_EQ(create_kv_pool(ledger.bytes().first(ledger_bytes(15)), control, {}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(init_ledger(blank.bytes(), 0).ok());
  EXPECT_FALSE(init_ledger(blank.bytes(), 17).ok());
  EXPECT_FALSE(init_ledger(blank.bytes(), 1U << 30).ok());
}

}  // namespace
}  // namespace tandem
