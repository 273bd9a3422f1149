// The ledger under contention and under death: threads, processes killed at random, and a process that is stopped
// after every single instruction.
#include "memory/ledger.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "base/handles.h"
#include "base/status.h"
#include "fmt/core.h"
#include "memory/pool_support.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// Reserves and drops at random, `rounds` times or for ever; checks that nobody else has its blocks.
int work(const TestLedger& ledger, LaneId holder, std::span<std::atomic<std::uint32_t>> owners, std::uint32_t most,
         std::uint64_t seed, int rounds) {
  const auto pool = ledger.open(holder);
  std::mt19937_64 random(seed);
  int failures = 0;
  std::vector<KvLease> leases;
  std::uint32_t held = 0;
  const auto own = [&](const KvLease& lease, std::uint32_t from, std::uint32_t to) {
    for (const BlockId block : lease.blocks()) failures += owners[block.value].exchange(to) != from ? 1 : 0;
  };
  for (int i = 0; rounds == 0 || i < rounds; ++i) {
    const auto n = static_cast<std::uint32_t>(1 + random() % 6);
    if (held + n <= most) {
      auto lease = pool->reserve(SequenceId{random()}, n, Phase::kDecode);
      if (!lease.ok()) return 1'000'000;  // `most` of all together is what there is
      own(*lease, 0, holder.value + 1);
      held += n;
      leases.push_back(*std::move(lease));
    } else {
      std::swap(leases[random() % leases.size()], leases.back());
      own(leases.back(), holder.value + 1, 0);
      held -= static_cast<std::uint32_t>(leases.back().blocks().size());
      leases.pop_back();
    }
  }
  for (const KvLease& lease : leases) own(lease, holder.value + 1, 0);
  return failures;
}

TEST(Ledger, gives_no_block_twice_and_fails_nobody_who_is_due) {
  constexpr std::uint32_t kThreads = 4;
  const TestLedger ledger(MemoryKind::kHeap, 48);
  std::vector<std::atomic<std::uint32_t>> owners(48);
  std::vector<int> failures(kThreads, -1);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { failures[i] = work(ledger, LaneId{i}, owners, 12, i, 8'000); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(kThreads, 0));
  const auto pool = ledger.open();
  expect_exact(ledger, *pool, 0);
}

TEST(Ledger, never_gives_more_than_there_is_however_many_ask) {
  constexpr std::uint32_t kThreads = 4;
  const TestLedger ledger(MemoryKind::kHeap, 5);
  std::vector<std::atomic<std::uint32_t>> owners(5);
  std::atomic<int> failures{0};
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto pool = ledger.open(LaneId{i});
      for (int round = 0; round < 30'000; ++round) {
        const auto lease = pool->reserve(SequenceId{i}, 1 + (round + i) % 3, Phase::kDecode);
        if (!lease.ok()) {
          failures += absl::IsResourceExhausted(lease.status()) ? 0 : 1;
          continue;
        }
        ++granted;
        for (const BlockId block : lease->blocks()) failures += owners[block.value].exchange(1) != 0 ? 1 : 0;
        for (const BlockId block : lease->blocks()) owners[block.value] = 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(granted, 0);
  const auto pool = ledger.open();
  expect_exact(ledger, *pool, 0);
}

TEST(Ledger, loses_nothing_when_holders_are_killed_while_others_work) {
  const TestLedger ledger(MemoryKind::kShared, 48);
  const TestMemory owners_memory(MemoryKind::kShared, 48 * sizeof(std::atomic<std::uint32_t>));
  const std::span owners(reinterpret_cast<std::atomic<std::uint32_t>*>(owners_memory.bytes().data()), 48);
  std::mt19937_64 random(3);
  const auto scheduler = ledger.open();
  const KvLease mine = scheduler->reserve(SequenceId{1}, 4, Phase::kDecode).value();
  // A bystander that works on throughout, through every recovery.
  ChildProcess bystander([&] { return work(ledger, LaneId{0}, owners, 12, 1, 0); });
  for (int round = 0; round < 30; ++round) {
    ChildProcess victim([&] {
      std::vector<std::atomic<std::uint32_t>> any(48);  // its marks would outlive it
      return work(ledger, LaneId{1}, any, 12, static_cast<std::uint64_t>(round), 0);
    });
    std::this_thread::sleep_for(std::chrono::microseconds(1'000 + random() % 3'000));
    {
      const auto also = scheduler->reserve(SequenceId{2}, 20, Phase::kDecode);
    }
    victim.kill_now();
    ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
    for (std::uint32_t i = 0; i < 48; ++i) {
      const BlockWord word = Ledger::open(ledger.bytes())->word(i);
      ASSERT_TRUE(word.state == BlockState::kFree || word.holder != 1) << "round " << round;
    }
    ASSERT_TRUE(scheduler->reserve(SequenceId{2}, 32, Phase::kDecode).ok()) << "round " << round;
  }
  ASSERT_EQ(::kill(bystander.pid(), 0), 0);
  bystander.kill_now();
  ASSERT_TRUE(scheduler->recover_holder(LaneId{0}).ok());
  expect_exact(ledger, *scheduler, 4);
}

TEST(Ledger, loses_nothing_when_the_recovering_holder_is_killed_too) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 40; ++round) {
    const TestLedger ledger(MemoryKind::kShared, 512);
    ChildProcess first([&] {
      auto* pool = ledger.open(LaneId{1}).release();
      for (std::uint64_t i = 0; i < 64; ++i) {
        new KvLease(pool->reserve(SequenceId{i}, 7, Phase::kDecode).value());
      }
      ::_exit(0);
      return 0;
    });
    first.join();
    ASSERT_EQ(ledger.usage().held, 448U);
    ChildProcess second([&] {
      auto* pool = ledger.open(LaneId{2}).release();
      if (round % 2 == 1) pool->steps().issue(LaneId{5});  // in every other round a step is under way
      new KvLease(pool->reserve(SequenceId{9}, 3, Phase::kDecode).value());
      pool->recover_holder(LaneId{1}).IgnoreError();
      ::pause();
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3'000));
    second.kill_now();
    const auto scheduler = ledger.open();
    if (round % 2 == 1) scheduler->steps().issue(LaneId{5});
    ASSERT_TRUE(scheduler->recover_holder(LaneId{2}).ok());  // and, with it, the one it was recovering
    ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
    scheduler->steps().complete_all(LaneId{5});
    scheduler->reclaim();
    expect_exact(ledger, *scheduler, 0);
  }
}

// A ledger as it was at one moment, in which holder 1 died then. `held` blocks belong to the scheduler.
void expect_recovery_of(std::span<const std::byte> image, std::uint32_t num_blocks, std::uint32_t held,
                        bool disturbed) {
  const TestLedger copy(MemoryKind::kHeap, num_blocks);
  std::memcpy(copy.bytes().data(), image.data(), image.size());
  const auto other = copy.open(LaneId{2});
  if (disturbed) {  // others go on before the recovery, and hide the dead holder's last word
    for (int i = 0; i < 2; ++i) static_cast<void>(other->reserve(SequenceId{5}, 1, Phase::kDecode));
  }
  ASSERT_TRUE(other->recover_holder(LaneId{1}).ok());
  expect_exact(copy, *other, held);
}

TEST(Ledger, can_be_recovered_after_every_single_store) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "one thread, and far more instructions to step through";
#endif
  constexpr std::uint32_t kBlocks = 6;
  const TestLedger ledger(MemoryKind::kShared, kBlocks);
  const auto scheduler = ledger.open();
  const KvLease mine = scheduler->reserve(SequenceId{1}, 1, Phase::kDecode).value();
  ChildProcess child([&] {
    const auto pool = ledger.open(LaneId{1});
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return 2;
    ::raise(SIGSTOP);
    {
      KvLease lease = pool->reserve(SequenceId{7}, 2, Phase::kDecode).value();
      static_cast<void>(pool->reserve(SequenceId{8}, 4, Phase::kDecode));  // fails
      static_cast<void>(pool->grow(lease, 1, Phase::kDecode));
    }
    pool->steps().issue(LaneId{0});
    {
      const KvLease lease = pool->reserve(SequenceId{9}, 3, Phase::kDecode).value();
    }
    pool->steps().complete(LaneId{0}, 1);
    pool->reclaim();
    ::_exit(0);
    return 0;
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, 0), child.pid());
  if (!WIFSTOPPED(status)) GTEST_SKIP() << "this system lets no process be traced";
  std::vector<std::byte> before(ledger.bytes().begin(), ledger.bytes().end());
  int states = 0;
  while (::ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr) == 0) {
    ASSERT_EQ(::waitpid(child.pid(), &status, 0), child.pid());
    if (!WIFSTOPPED(status)) break;
    if (std::memcmp(before.data(), ledger.bytes().data(), before.size()) == 0) continue;
    before.assign(ledger.bytes().begin(), ledger.bytes().end());
    ++states;
    expect_recovery_of(before, kBlocks, 1, false);
    expect_recovery_of(before, kBlocks, 1, true);
    if (HasFailure()) FAIL() << "in state " << states;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_GT(states, 30);
  ASSERT_TRUE(scheduler->recover_holder(LaneId{1}).ok());
  expect_exact(ledger, *scheduler, 1);
}

std::vector<std::uint32_t> reserve_ids(KvPool& pool, std::uint32_t n) {
  const KvLease lease = pool.reserve(SequenceId{1}, n, Phase::kDecode).value();
  std::vector<std::uint32_t> ids;
  for (const BlockId block : lease.blocks()) ids.push_back(block.value);
  return ids;
}

TEST(Ledger, gives_a_holder_first_what_it_released_last) {
  const TestLedger ledger(MemoryKind::kHeap, 64);
  const auto pool = ledger.open(LaneId{1});
  const auto other = ledger.open(LaneId{2});
  const auto first = reserve_ids(*pool, 5);
  EXPECT_EQ(reserve_ids(*pool, 5), first);
  const auto elsewhere = reserve_ids(*other, 5);
  for (const std::uint32_t id : elsewhere) EXPECT_EQ(std::count(first.begin(), first.end(), id), 0);
  EXPECT_EQ(reserve_ids(*pool, 5), first);
}

TEST(Ledger, is_not_misled_by_what_a_holder_remembers) {
  const TestLedger ledger(MemoryKind::kHeap, 8);
  const auto pool = ledger.open(LaneId{1});
  const auto other = ledger.open(LaneId{2});
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(reserve_ids(*pool, 8).size(), 8U);  // remembers all of them as free
    const KvLease taken = other->reserve(SequenceId{2}, 6, Phase::kDecode).value();
    const auto rest = reserve_ids(*pool, 2);
    for (const BlockId block : taken.blocks()) EXPECT_EQ(std::count(rest.begin(), rest.end(), block.value), 0);
    EXPECT_FALSE(pool->reserve(SequenceId{3}, 3, Phase::kDecode).ok());
  }
  EXPECT_EQ(reserve_ids(*other, 8).size(), 8U);  // what the one forgot the other finds
  expect_exact(ledger, *pool, 0);
}

TEST(Ledger, finds_every_block_when_more_come_free_than_a_holder_remembers) {
  constexpr std::uint32_t kMany = 10'000;
  const TestLedger ledger(MemoryKind::kHeap, kMany);
  const auto pool = ledger.open(LaneId{1});
  for (int round = 0; round < 3; ++round) {
    auto ids = reserve_ids(*pool, kMany);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()) - ids.begin(), kMany);
  }
  expect_exact(ledger, *pool, 0);
}

TEST(Ledger, says_so_when_it_was_damaged_rather_than_search_for_ever) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  const auto pool = ledger.open();
  const KvLease held = pool->reserve(SequenceId{1}, 2, Phase::kDecode).value();
  auto* words = reinterpret_cast<std::uint64_t*>(ledger.bytes().data() + sizeof(LedgerHeader));
  words[2] = words[3] = words[0];  // scribbled over: nothing is free, the budget says two are
  EXPECT_EQ(pool->reserve(SequenceId{2}, 2, Phase::kDecode).status().code(), absl::StatusCode::kDataLoss);
}

// ---- what an owner of another version left, or a stray write
// ----------------------------------------------------------

LedgerHeader& header_of(const TestLedger& ledger) { return *reinterpret_cast<LedgerHeader*>(ledger.bytes().data()); }

std::string text(const absl::Status& status) { return std::string(message(status)); }

TEST(Ledger, refuses_another_format_by_name) {
  for (const std::uint32_t format : {LedgerHeader::kFormat - 1, LedgerHeader::kFormat + 1}) {
    const TestLedger ledger(MemoryKind::kHeap, 4);
    header_of(ledger).format = format;
    const absl::Status status = Ledger::open(ledger.bytes()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(
        text(status).find(fmt::format("has format {} and this tandem uses format {}", format, LedgerHeader::kFormat)),
        std::string::npos)
        << status;
    EXPECT_NE(text(status).find("another version of tandem; restart the owner"), std::string::npos) << status;
  }
}

TEST(Ledger, refuses_memory_that_no_ledger_was_made_in) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  header_of(ledger).magic ^= 1;
  const absl::Status status = Ledger::open(ledger.bytes()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(text(status).find("no tandem made it; restart the owner"), std::string::npos) << status;
}

TEST(Ledger, refuses_a_number_of_blocks_that_cannot_be_and_takes_the_last_one_that_can) {
  const TestLedger ledger(MemoryKind::kHeap, 4);
  const auto code = [&](std::uint32_t num_blocks) {
    header_of(ledger).num_blocks = num_blocks;
    return Ledger::open(ledger.bytes()).status().code();
  };
  EXPECT_EQ(code(0), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(1), absl::StatusCode::kOk);
  EXPECT_EQ(code(4), absl::StatusCode::kOk);
  EXPECT_EQ(code(5), absl::StatusCode::kDataLoss) << "more than the region has words";
  EXPECT_EQ(code(kMaxBlocks + 1), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(UINT32_MAX), absl::StatusCode::kDataLoss);

  // As large as a ledger can be, of which only the first page is touched, and one block more.
  for (const std::uint32_t num_blocks : {kMaxBlocks, kMaxBlocks + 1}) {
    const FileDescriptor file = create_memfd("ledger", Ledger::bytes(num_blocks)).value();
    const Mapping memory = Mapping::map(file, Ledger::bytes(num_blocks), Access::kReadWrite).value();
    header_of(ledger).num_blocks = num_blocks;
    std::memcpy(memory.data(), ledger.bytes().data(), sizeof(LedgerHeader));
    EXPECT_EQ(Ledger::open(memory.bytes()).ok(), num_blocks == kMaxBlocks) << num_blocks;
  }
}

TEST(Ledger, is_made_with_one_block_to_sixteen_million) {
  const TestMemory memory(MemoryKind::kHeap, Ledger::bytes(1));
  EXPECT_TRUE(Ledger::init(memory.bytes(), 1).ok());
  EXPECT_EQ(Ledger::open(memory.bytes())->num_blocks(), 1U);
  EXPECT_NE(text(Ledger::init(memory.bytes(), 0)).find("has 1 to 16777215 blocks, not 0"), std::string::npos);
  EXPECT_NE(text(Ledger::init(memory.bytes(), kMaxBlocks + 1)).find("not 16777216"), std::string::npos);
  EXPECT_NE(text(Ledger::init(memory.bytes(), kMaxBlocks)).find("needs"), std::string::npos)
      << "only the memory is too small";
}

TEST(Ledger, needs_all_of_its_memory_and_that_aligned) {
  const TestMemory memory(MemoryKind::kHeap, Ledger::bytes(4) + 64);
  const std::size_t bytes = Ledger::bytes(4);
  EXPECT_FALSE(Ledger::init(memory.bytes().first(bytes - 1), 4).ok());
  EXPECT_FALSE(Ledger::init(memory.bytes().subspan(8), 4).ok());
  ASSERT_TRUE(Ledger::init(memory.bytes().first(bytes), 4).ok());
  EXPECT_TRUE(Ledger::open(memory.bytes().first(bytes)).ok());
  EXPECT_FALSE(Ledger::open(memory.bytes().first(bytes - 1)).ok());
  EXPECT_EQ(Ledger::open(memory.bytes().first(sizeof(LedgerHeader) - 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ledger::open(memory.bytes().subspan(8)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Ledger, writes_nothing_behind_its_last_word) {
  const TestMemory memory(MemoryKind::kHeap, Ledger::bytes(5) + 64);
  const std::span<std::byte> behind = memory.bytes().subspan(Ledger::bytes(5));
  std::ranges::fill(memory.bytes(), std::byte{0xa5});
  ASSERT_TRUE(Ledger::init(memory.bytes().first(Ledger::bytes(5)), 5).ok());
  EXPECT_TRUE(std::ranges::all_of(behind, [](std::byte byte) { return byte == std::byte{0xa5}; }));
  const Ledger ledger = Ledger::open(memory.bytes().first(Ledger::bytes(5))).value();
  for (std::uint32_t block = 0; block < 5; ++block) EXPECT_EQ(ledger.word(block).state, BlockState::kFree);
  EXPECT_EQ(ledger.budget(), 5U);
}

}  // namespace
}  // namespace tandem
