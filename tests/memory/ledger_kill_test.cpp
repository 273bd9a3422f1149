// The ledger under kill -9: four processes reserve and retire, one or two at a time are killed at a random moment,
// another one takes up what they left, and the rest never stop. A timer sends each of them to sleep for a moment, often
// and at any instruction: so they interleave on few cores too, and nobody waits long for a time slice, to die either.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/time.h>

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
constexpr int kKillsPerCount = 4;  // about so many between two looks at all words, for which everybody dies
constexpr double kMostSeconds = 120;
constexpr int kTurnUs = 50;
constexpr int kNapUs = 50;  // and what the system adds

// Shared by the processes: whose lease names a block (1 + the holder), the last step of each lane that may use the
// block, and what they found wrong. Each process sends steps to a lane of its own, and only its own pool knows of them.
struct Marks {
  std::atomic<std::uint32_t> holder[kBlocks];
  std::atomic<std::uint64_t> last_use[kBlocks][kProcesses];
  std::atomic<std::uint64_t> sent[kProcesses];  // steps of each lane
  std::atomic<std::uint64_t> completed[kProcesses];
  std::atomic<std::uint32_t> doubled;
  std::atomic<std::uint32_t> early;  // blocks given to somebody while a step might still use them
  std::atomic<std::uint32_t> failed;  // calls that should not have
  std::atomic<std::uint64_t> reserved;
  std::atomic<std::uint32_t> recoverer;  // 1 + who is asked to recover `recovered`; 0: nobody, or it is done
  std::atomic<std::uint32_t> recovered;
};

class Worker final {
 public:
  Worker(const TestLedger& ledger, Marks& marks, LaneId id, std::uint64_t seed)
      : ledger_(Ledger::open(ledger.bytes()).value()), marks_(marks), id_(id), random_(seed), pool_(ledger.open(id)) {
    pool_->steps().resume(id_, marks_.completed[id_.value]);
  }

  // For ever: it is killed.
  [[noreturn]] void run() {
    for (;;) {
      if (marks_.recoverer == id_.value + 1) {
        recover(marks_.recovered);
        marks_.recoverer = 0;
      }
      switch (random_() % 8) {
        case 0: marks_.sent[id_.value] = pool_->steps().issue(id_); break;  // what retires from now on waits for it
        case 1:
          marks_.completed[id_.value] = pool_->steps().issued(id_);
          pool_->steps().complete_all(id_);
          break;
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
    for (const BlockId block : lease->blocks()) {
      for (std::uint32_t i = 0; i < kProcesses; ++i) {
        if (marks_.completed[i] < marks_.last_use[block.value][i]) ++marks_.early;
      }
    }
    mark(*lease, 0, id_.value + 1);
    held_ += n;
    leases_.push_back(*std::move(lease));
    marks_.reserved.fetch_add(1, std::memory_order_relaxed);
  }
  void drop() {
    std::swap(leases_[random_() % leases_.size()], leases_.back());
    for (const BlockId block : leases_.back().blocks()) note_use(block.value);
    mark(leases_.back(), id_.value + 1, 0);
    held_ -= static_cast<std::uint32_t>(leases_.back().blocks().size());
    if (random_() % 2 == 0) pool_->give_back(std::move(leases_.back()), {id_, pool_->steps().issued(id_)});
    leases_.pop_back();
  }
  // What the dead holder left may be used by all steps that run now.
  void recover(std::uint32_t holder) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      const BlockWord word = ledger_.word(block);
      if (word.state != BlockState::kFree && word.holder == holder) note_use(block);
    }
    if (!pool_->recover_holder(LaneId{holder}).ok()) ++marks_.failed;
  }
  void note_use(std::uint32_t block) { marks_.last_use[block][id_.value] = pool_->steps().issued(id_); }
  void mark(const KvLease& lease, std::uint32_t from, std::uint32_t to) {
    for (const BlockId block : lease.blocks()) {
      if (marks_.holder[block.value].exchange(to) != from) ++marks_.doubled;
    }
  }

  const Ledger ledger_;
  Marks& marks_;
  const LaneId id_;
  std::mt19937_64 random_;
  std::unique_ptr<KvPool> pool_;
  std::vector<KvLease> leases_;
  std::uint32_t held_ = 0;
};

// Has the process nap every so often, at whatever instruction that is.
void take_turn() {
  const itimerval timer{.it_interval = {}, .it_value = {0, kTurnUs}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}
void nap_often() {
  std::signal(SIGALRM, [](int) {
    std::this_thread::sleep_for(std::chrono::microseconds(kNapUs));
    take_turn();
  });
  take_turn();
}

// The supervisor's part, with a handle and a lease of its own.
class Killer final {
 public:
  Killer() {
    for (std::uint32_t i = 0; i < kProcesses; ++i) start(i);
  }
  // Kills one process or two. Returns how many.
  int kill_some() {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1'000));
    const auto victim = static_cast<std::uint32_t>(random_() % kProcesses);
    const auto other = static_cast<std::uint32_t>((victim + 1 + random_() % (kProcesses - 1)) % kProcesses);
    switch (random_() % 8) {
      case 0:
      case 1: kill(victim); break;  // its next life takes up what it left
      case 2:
      case 3:
        kill(victim);
        recover(victim);
        break;
      case 4:
      case 5: return kill_beside(victim, other);
      default:  // both at once
        strike(victim);
        strike(other);
        bury(victim);
        bury(other);
        recover(victim);
        recover(other);
        start(other);
        start(victim);
        return 2;
    }
    start(victim);
    return 1;
  }
  // Everybody dies at once: who had just replaced another's last operation cannot write that down any more.
  void expect_all_there() {
    for (std::uint32_t i = 0; i < kProcesses; ++i) strike(i);
    for (std::uint32_t i = 0; i < kProcesses; ++i) bury(i);
    for (std::uint32_t i = 0; i < kProcesses; ++i) recover(i);
    EXPECT_EQ(marks_.doubled, 0U) << "blocks were in the leases of two processes";
    EXPECT_EQ(marks_.early, 0U) << "blocks were given away while a step might use them";
    EXPECT_EQ(marks_.failed, 0U);
    expect_exact(ledger_, *pool_, static_cast<std::uint32_t>(lease_.blocks().size()));
    for (std::uint32_t i = 0; i < kProcesses; ++i) start(i);
  }
  std::uint64_t num_reserved() const { return marks_.reserved; }

 private:
  // The other one recovers the victim, and sometimes dies of it.
  int kill_beside(std::uint32_t victim, std::uint32_t other) {
    kill(victim);
    marks_.recovered = victim;
    marks_.recoverer = other + 1;
    if (random_() % 3 == 0) {
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
    start(victim);
    return 1;
  }
  void start(std::uint32_t id) {
    children_[id].emplace([&, id, seed = random_()] {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed check ends the killer too
      nap_often();
      Worker(ledger_, marks_, LaneId{id}, seed).run();
      return 0;
    });
  }
  void kill(std::uint32_t id) {
    strike(id);
    bury(id);
  }
  void strike(std::uint32_t id) { ::kill(children_[id]->pid(), SIGKILL); }
  void bury(std::uint32_t id) {
    EXPECT_EQ(children_[id]->join(), 128 + SIGKILL) << "it ended by itself";
    marks_.completed[id] = marks_.sent[id].load();
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      if (marks_.holder[block] == id + 1) marks_.holder[block] = 0;
    }
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
  const std::unique_ptr<KvPool> pool_ = ledger_.open();
  const KvLease lease_ = pool_->reserve(SequenceId{1}, 3, Phase::kDecode).value();
  std::array<std::optional<ChildProcess>, kProcesses> children_;
};

TEST(LedgerKill, loses_and_doubles_nothing_in_ten_thousand_deaths) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Killer killer;
  int kills = 0;
  for (int next_count = kKillsPerCount; kills < kRounds && seconds() < kMostSeconds && !HasFailure();) {
    kills += killer.kill_some();
    if (kills < next_count) continue;
    killer.expect_all_there();
    next_count = kills + kKillsPerCount;
  }
  killer.expect_all_there();
  RecordProperty("kills", kills);  // but for those of the counts
  std::printf("%d kills, %lu reservations, %.1f s\n", kills, static_cast<unsigned long>(killer.num_reserved()),
              seconds());
  const bool in_time = seconds() < kMostSeconds;
  EXPECT_TRUE(kills >= kRounds || !in_time) << kills << " kills of " << kRounds;
  EXPECT_GE(kills, 300) << "this machine is too slow for the test to say anything";
  EXPECT_GT(killer.num_reserved(), 10'000U);
}

}  // namespace
}  // namespace tandem
