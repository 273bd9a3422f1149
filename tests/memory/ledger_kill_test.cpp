// The ledger under kill -9: four processes reserve and retire, one after the other is killed at a random moment,
// another one takes up what it left, and the rest never stop.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <random>
#include <thread>

#include "memory/pool_support.h"

namespace tandem {
namespace {

constexpr std::uint32_t kProcesses = 4;
constexpr std::uint32_t kBlocks = 40;
constexpr std::uint32_t kMostHeld = 9;  // by one process, so that a reservation never has to fail
constexpr int kRounds = 10'000;
constexpr std::chrono::seconds kMostTime{50};

// Shared by the processes: whose lease names a block (1 + the holder), and what they found wrong.
struct Marks {
  std::atomic<std::uint32_t> holder[kBlocks];
  std::atomic<std::uint32_t> doubled;
  std::atomic<std::uint32_t> failed;  // calls that should not have
  std::atomic<std::uint64_t> reserved;
  std::atomic<std::uint32_t> recoverer;  // 1 + who is asked to recover `recovered`; 0: nobody, or it is done
  std::atomic<std::uint32_t> recovered;
};

class Worker final {
 public:
  Worker(const TestLedger& ledger, Marks& marks, LaneId id, std::uint64_t seed)
      : lane_(ledger.control().lanes[id.value]), marks_(marks), id_(id), random_(seed), pool_(ledger.open(id)) {}

  // For ever: it is killed.
  [[noreturn]] void run() {
    for (;;) {
      if (marks_.recoverer == id_.value + 1) {
        if (!pool_->recover_holder(LaneId{marks_.recovered}).ok()) ++marks_.failed;
        marks_.recoverer = 0;
      }
      switch (random_() % 8) {
        case 0: lane_.issued_step.fetch_add(1); break;  // what retires from now on waits for it
        case 1: lane_.completed_step.store(lane_.issued_step.load()); break;
        case 2: pool_->reclaim(); break;
        default: random_() % 2 == 0 || leases_.empty() ? reserve() : drop(); break;
      }
    }
  }

 private:
  void reserve() {
    const auto n = static_cast<std::uint32_t>(1 + random_() % 4);
    if (held_ + n > kMostHeld) return drop();
    auto lease = pool_->reserve(SequenceId{random_()}, n, Phase::kDecode);
    if (!lease.ok()) {  // too much is retiring
      if (!absl::IsResourceExhausted(lease.status())) ++marks_.failed;
      return;
    }
    mark(*lease, 0, id_.value + 1);
    held_ += n;
    leases_.push_back(*std::move(lease));
    marks_.reserved.fetch_add(1, std::memory_order_relaxed);
  }
  void drop() {
    std::swap(leases_[random_() % leases_.size()], leases_.back());
    mark(leases_.back(), id_.value + 1, 0);
    held_ -= static_cast<std::uint32_t>(leases_.back().blocks().size());
    leases_.pop_back();
  }
  void mark(const KvLease& lease, std::uint32_t from, std::uint32_t to) {
    for (const BlockId block : lease.blocks()) {
      if (marks_.holder[block.value].exchange(to) != from) ++marks_.doubled;
    }
  }

  LaneCounters& lane_;
  Marks& marks_;
  const LaneId id_;
  std::mt19937_64 random_;
  std::unique_ptr<LedgerPool> pool_;
  std::vector<KvLease> leases_;
  std::uint32_t held_ = 0;
};

// The supervisor's part, with a handle and a lease of its own.
class Killer final {
 public:
  Killer() {
    for (std::uint32_t i = 0; i < kProcesses; ++i) start(i);
  }
  // Kills one process, and sometimes the one that recovers it too. Returns how many it killed.
  int kill_one() {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1'000));
    const auto victim = static_cast<std::uint32_t>(random_() % kProcesses);
    kill(victim);
    switch (random_() % 3) {
      case 0: break;  // its next life takes up what it left
      case 1: recover(victim); break;
      case 2: {
        const auto other = static_cast<std::uint32_t>((victim + 1 + random_() % (kProcesses - 1)) % kProcesses);
        marks_.recovered = victim;
        marks_.recoverer = other + 1;
        if (random_() % 4 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random_() % 2'000));
          kill(other);
          marks_.recoverer = 0;
          recover(other);  // and, with it, the one it was recovering
          recover(victim);
          start(other);
          start(victim);
          return 2;
        }
        wait_until([&] { return marks_.recoverer == 0 && ledger_driver(victim) == 0; });
        break;
      }
    }
    start(victim);
    return 1;
  }
  // Everybody dies at once.
  void expect_all_there() {
    for (std::uint32_t i = 0; i < kProcesses; ++i) kill(i);
    for (std::uint32_t i = 0; i < kProcesses; ++i) recover(i);
    EXPECT_EQ(marks_.doubled, 0U) << "blocks were in the leases of two processes";
    EXPECT_EQ(marks_.failed, 0U);
    expect_exact(ledger_, *pool_, static_cast<std::uint32_t>(lease_.blocks().size()));
    for (std::uint32_t i = 0; i < kProcesses; ++i) start(i);
  }
  std::uint64_t num_reserved() const { return marks_.reserved; }

 private:
  void start(std::uint32_t id) {
    children_[id].emplace([&, id, seed = random_()] {
      static_cast<void>(::nice(10));  // the killer comes first, or it would wait for their time slices
      Worker(ledger_, marks_, LaneId{id}, seed).run();
      return 0;
    });
  }
  void kill(std::uint32_t id) {
    ::kill(children_[id]->pid(), SIGKILL);
    EXPECT_EQ(children_[id]->join(), 128 + SIGKILL) << "it ended by itself";
    for (auto& holder : marks_.holder) {
      std::uint32_t dead = id + 1;
      holder.compare_exchange_strong(dead, 0);
    }
    LaneCounters& lane = ledger_.control().lanes[id];
    lane.completed_step = lane.issued_step.load();
  }
  void recover(std::uint32_t id) {
    ASSERT_TRUE(pool_->recover_holder(LaneId{id}).ok());
    wait_until([&] {
      pool_->reclaim();
      return ledger_driver(id) == 0;
    });
  }
  std::uint32_t ledger_driver(std::uint32_t id) { return Ledger::open(ledger_.bytes())->driver(LaneId{id}).load(); }
  template <class Condition>
  void wait_until(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "stuck";
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  const TestLedger ledger_{MemoryKind::kShared, kBlocks};
  const TestMemory marks_memory_{MemoryKind::kShared, sizeof(Marks)};
  Marks& marks_ = *new (marks_memory_.bytes().data()) Marks{};
  std::mt19937_64 random_{20241130};
  const std::unique_ptr<LedgerPool> pool_ = ledger_.open();
  const KvLease lease_ = pool_->reserve(SequenceId{1}, 3, Phase::kDecode).value();
  std::array<std::optional<ChildProcess>, kProcesses> children_;
};

TEST(LedgerKill, loses_and_doubles_nothing_in_ten_thousand_deaths) {
  const auto deadline = std::chrono::steady_clock::now() + kMostTime;
  Killer killer;
  int kills = 0;
  while (kills < kRounds && std::chrono::steady_clock::now() < deadline && !HasFailure()) {
    const int before = kills;
    kills += killer.kill_one();
    if (kills / 250 != before / 250) killer.expect_all_there();
  }
  killer.expect_all_there();
  RecordProperty("kills", kills);
  std::printf("%d kills, %lu reservations\n", kills, static_cast<unsigned long>(killer.num_reserved()));
  EXPECT_GE(kills, 300) << "this machine is too slow for the test to say anything";
  EXPECT_GT(killer.num_reserved(), 10'000U);
}

}  // namespace
}  // namespace tandem
