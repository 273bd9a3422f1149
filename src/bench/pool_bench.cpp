#include "bench/pool_bench.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "base/handles.h"
#include "base/status.h"
#include "fmt/core.h"
#include "memory/kv_pool.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRun{30};
constexpr int kCyclesPerLook = 64;  // between two looks at the clock or at the task
constexpr LaneId kTenant{7};        // the holder of the leases that stay

enum class Kind : int { kNone, kLedger, kMutex };

// What a pool without a ledger would be: any process takes ids from the end of the list and puts them back there. A
// holder that dies inside leaves a list that nobody can vouch for; here the next one goes on with it.
struct MutexPool {
  pthread_mutex_t mutex;
  std::uint32_t num_free;
  std::uint32_t free[1];  // as many as there are blocks
};

class MutexLock final {
 public:
  explicit MutexLock(pthread_mutex_t& mutex) : mutex_(mutex) {
    if (::pthread_mutex_lock(&mutex_) == EOWNERDEAD) ::pthread_mutex_consistent(&mutex_);
  }
  ~MutexLock() { ::pthread_mutex_unlock(&mutex_); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

// What the contending process is to do and does.
struct Task {
  alignas(64) std::atomic<Kind> wanted{Kind::kNone};
  alignas(64) std::atomic<Kind> running{Kind::kNone};
  std::atomic<std::uint32_t> lease_blocks{1};
};

// One process' part: reserves a lease, gives it back while a step of its lane is in flight, ends the step, reclaims.
class Client final {
 public:
  Client(std::unique_ptr<KvPool> pool, MutexPool& mutex_pool, LaneId lane)
      : pool_(std::move(pool)), mutex_pool_(mutex_pool), lane_(lane) {}

  void cycle(Kind kind, std::uint32_t n) { kind == Kind::kLedger ? ledger_cycle(n) : mutex_cycle(n); }
  void drain() { pool_->reclaim(); }

 private:
  void ledger_cycle(std::uint32_t n) {
    auto lease = pool_->reserve(SequenceId{1}, n, Phase::kDecode);
    const std::uint64_t step = pool_->steps().issue(lane_);
    if (lease.ok()) pool_->give_back(*std::move(lease), {lane_, step});
    pool_->steps().complete(lane_, step);
    pool_->reclaim();
  }
  void mutex_cycle(std::uint32_t n) {
    std::vector<std::uint32_t> lease(n);  // as a lease has its list of blocks
    {
      const MutexLock lock(mutex_pool_.mutex);
      if (mutex_pool_.num_free < n) return;
      for (std::uint32_t& block : lease) block = mutex_pool_.free[--mutex_pool_.num_free];
    }
    retiring_.insert(retiring_.end(), lease.begin(), lease.end());
    {
      const MutexLock lock(mutex_pool_.mutex);
      for (const std::uint32_t block : retiring_) mutex_pool_.free[mutex_pool_.num_free++] = block;
    }
    retiring_.clear();
  }

  std::unique_ptr<KvPool> pool_;
  MutexPool& mutex_pool_;
  LaneId lane_;
  std::vector<std::uint32_t> retiring_;
};

// Both pools in shared memory, filled alike, and the contending process.
class Rig final {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> create(std::uint32_t num_blocks, std::uint32_t percent_used) {
    std::unique_ptr<Rig> rig(new Rig);
    TANDEM_TRY(rig->start(num_blocks, percent_used));
    return rig;
  }
  ~Rig() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  double ns_per_block(Kind kind, std::uint32_t lease_blocks, std::uint32_t processes) {
    if (processes > 1) direct(kind, lease_blocks);
    for (int i = 0; i < kCyclesPerLook; ++i) client_->cycle(kind, lease_blocks);
    std::uint64_t cycles = 0;
    const Clock::time_point start = Clock::now();
    Clock::duration elapsed{};
    do {
      for (int i = 0; i < kCyclesPerLook; ++i) client_->cycle(kind, lease_blocks);
      cycles += kCyclesPerLook;
      elapsed = Clock::now() - start;
    } while (elapsed < kRun);
    if (processes > 1) direct(Kind::kNone, lease_blocks);
    client_->drain();
    return std::chrono::duration<double, std::nano>(elapsed).count() / static_cast<double>(cycles * lease_blocks);
  }

 private:
  Rig() = default;
  absl::Status start(std::uint32_t num_blocks, std::uint32_t percent_used);
  absl::Status fill(std::uint32_t num_blocks, std::uint32_t percent_used);
  void init_mutex_pool();
  absl::StatusOr<std::unique_ptr<Client>> make_client(std::uint32_t lane);
  [[noreturn]] void contend();
  // Returns once the contending process does so.
  void direct(Kind kind, std::uint32_t lease_blocks) {
    task_->lease_blocks = lease_blocks;
    task_->wanted = kind;
    while (task_->running != kind) std::this_thread::yield();
  }

  Mapping ledger_memory_, mutex_memory_, task_memory_;
  MutexPool* mutex_pool_ = nullptr;
  Task* task_ = nullptr;
  std::unique_ptr<KvPool> tenant_;
  std::vector<KvLease> staying_;
  std::unique_ptr<Client> client_;
  pid_t child_ = -1;
};

absl::StatusOr<Mapping> make_shared_memory(std::size_t bytes) {
  TANDEM_ASSIGN(const FileDescriptor file, create_memfd("bench", bytes));
  return Mapping::map(file, bytes, Access::kReadWrite);
}

absl::Status Rig::start(std::uint32_t num_blocks, std::uint32_t percent_used) {
  TANDEM_ASSIGN(ledger_memory_, make_shared_memory(Ledger::bytes(num_blocks)));
  TANDEM_ASSIGN(mutex_memory_, make_shared_memory(sizeof(MutexPool) + num_blocks * sizeof(std::uint32_t)));
  TANDEM_ASSIGN(task_memory_, make_shared_memory(sizeof(Task)));
  TANDEM_TRY(Ledger::init({ledger_memory_.data(), ledger_memory_.size()}, num_blocks));
  task_ = new (task_memory_.data()) Task{};
  mutex_pool_ = new (mutex_memory_.data()) MutexPool{};
  init_mutex_pool();
  TANDEM_TRY(fill(num_blocks, percent_used));
  child_ = ::fork();
  if (child_ < 0) return absl::ResourceExhaustedError("no second process could be started");
  if (child_ == 0) contend();
  TANDEM_ASSIGN(client_, make_client(0));
  return absl::OkStatus();
}

void Rig::init_mutex_pool() {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&mutex_pool_->mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
}

// Leases of one block over the whole pool, of which random ones end: what stays is as scattered as it can be.
absl::Status Rig::fill(std::uint32_t num_blocks, std::uint32_t percent_used) {
  TANDEM_ASSIGN(tenant_, KvPool::create(ledger_memory_.bytes(), {.holder = kTenant}));
  for (std::uint32_t i = 0; i < num_blocks; ++i) {
    TANDEM_ASSIGN(KvLease lease, tenant_->reserve(SequenceId{i}, 1, Phase::kDecode));
    staying_.push_back(std::move(lease));
  }
  std::shuffle(staying_.begin(), staying_.end(), std::mt19937(1));
  const std::size_t num_staying = std::size_t{num_blocks} * percent_used / 100;
  for (std::size_t i = num_staying; i < staying_.size(); ++i) {
    mutex_pool_->free[mutex_pool_->num_free++] = staying_[i].blocks().front().value;
  }
  staying_.resize(num_staying);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Client>> Rig::make_client(std::uint32_t lane) {
  TANDEM_ASSIGN(auto pool, KvPool::create(ledger_memory_.bytes(), {.holder = LaneId{lane}}));
  return std::make_unique<Client>(std::move(pool), *mutex_pool_, LaneId{lane});
}

void Rig::contend() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto client = make_client(1);
  if (!client.ok()) ::_exit(1);
  for (;;) {
    const Kind kind = task_->wanted;
    if (kind == Kind::kNone) {
      (*client)->drain();
      task_->running = kind;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    const std::uint32_t n = task_->lease_blocks;
    for (int i = 0; i < kCyclesPerLook; ++i) (*client)->cycle(kind, n);
    task_->running = kind;
  }
}

}  // namespace

absl::Status run_pool_bench(const PoolBenchOptions& options,
                            const std::function<void(const PoolBenchResult&)>& report) {
  for (const std::uint32_t percent : options.percent_used) {
    const std::uint64_t num_free = options.num_blocks - std::uint64_t{options.num_blocks} * percent / 100;
    for (const std::uint32_t n : options.lease_blocks) {
      if (num_free >= std::uint64_t{n} * 4) continue;  // two processes, each with as many retiring as in its lease
      return absl::InvalidArgumentError(
          fmt::format("{} blocks of which {} % are in use leave too few for leases of {}; ask for more blocks",
                      options.num_blocks, percent, n));
    }
    TANDEM_ASSIGN(const auto rig, Rig::create(options.num_blocks, percent));
    for (const std::uint32_t processes : options.processes) {
      for (const std::uint32_t n : options.lease_blocks) {
        std::vector<double> ledger;
        std::vector<double> mutex;
        for (std::uint32_t i = 0; i < options.repeat; ++i) {
          ledger.push_back(rig->ns_per_block(Kind::kLedger, n, processes));
          mutex.push_back(rig->ns_per_block(Kind::kMutex, n, processes));
        }
        report({processes, n, percent, spread_of(std::move(ledger)), spread_of(std::move(mutex))});
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::bench
