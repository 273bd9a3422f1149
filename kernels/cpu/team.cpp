#include "kernels/cpu/team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the gap between two ops of a step, short beside a scheduler tick.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerClockRead = 16;

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// Waits until done(word's value), first spinning, then sleeping on the word. The other side changes the word and then
// reads `asleep`; here `asleep` is set and then the word is read. All four are sequentially consistent, so one side
// sees the other. The waiter alone writes `asleep`: if the waking side cleared it, a waker that is late could clear the
// flag of the next sleep, and the wake-up after it would be left out (tests/memory/spin/team.pml checks every
// interleaving). A wake-up that comes too late only makes the waiter spin again.
template <class Done>
std::uint32_t await(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& asleep, Done done) {
  std::uint32_t value = word.load(std::memory_order_acquire);
  if (done(value)) return value;
  while (true) {
    const Clock::time_point deadline = Clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        _mm_pause();
        value = word.load(std::memory_order_acquire);
        if (done(value)) return value;
      }
    } while (Clock::now() < deadline);
    asleep.store(1, std::memory_order_seq_cst);
    value = word.load(std::memory_order_seq_cst);
    if (!done(value)) {
      futex_wait(word, value);
      value = word.load(std::memory_order_acquire);
    }
    asleep.store(0, std::memory_order_relaxed);
    if (done(value)) return value;
  }
}

void wake(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& asleep) {
  if (asleep.load(std::memory_order_seq_cst) != 0) futex_wake(word);
}

bool is_posted(std::uint32_t ticket) { return ticket % 2 == 1; }

// A refusal leaves the thread where the system puts it: slower, not wrong.
void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::pthread_setaffinity_np(thread, sizeof(set), &set);
}

// To a power of two, so that a size that follows the context grows a few times, not with every step.
std::byte* grow(std::vector<CacheLine>& area, std::size_t bytes) {
  const std::size_t lines = std::bit_ceil(bytes / sizeof(CacheLine) + 1);
  if (area.size() < lines) {
    area = {};
    area.resize(lines);
  }
  return area.data()->bytes;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

struct Team::State {
  // The thread of unit first + 1 + its index. It never moves: the caller takes the place of a share's first unit.
  struct alignas(64) Helper {
    std::atomic<std::uint32_t> ticket{0};  // odd: a part is posted; even: someone has claimed it
    std::atomic<std::uint32_t> asleep{0};
    std::thread thread;
  };

  Share whole;
  Share share;  // the active part of `whole`
  int num_threads = 1;  // of the active part, the caller included
  std::vector<int> cpus;
  pthread_t caller = ::pthread_self();
  cpu_set_t caller_affinity;

  // One run's work, published by the tickets.
  Erased body = nullptr;
  const void* context = nullptr;
  bool stop = false;

  alignas(64) std::atomic<std::uint32_t> pending{0};  // posted parts that are not done
  std::atomic<std::uint32_t> caller_asleep{0};
  alignas(64) std::atomic<int> next_spare{0};  // part of a unit without a thread

  std::vector<std::unique_ptr<Helper>> helpers;
  std::vector<std::vector<CacheLine>> worker_areas;
  std::vector<CacheLine> shared_area;

  ~State();
  void work(Helper& helper, int unit);
  void work_spares();
  void post(Helper& helper);
  static bool claim(Helper& helper, std::uint32_t ticket) {
    return helper.ticket.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel);
  }
  // A unit past the cores has no thread.
  int threads_of(const Share& part) const {
    return std::clamp(static_cast<int>(cpus.size()) - part.first, 1, static_cast<int>(part.count));
  }
  void pin_unit(pthread_t thread, int unit) const {
    if (static_cast<std::size_t>(unit) < cpus.size()) pin(thread, cpus[static_cast<std::size_t>(unit)]);
  }
  Helper& helper_of(int unit) const { return *helpers[static_cast<std::size_t>(unit - whole.first - 1)]; }
};

void Team::State::work(Helper& helper, int unit) {
  while (true) {
    const std::uint32_t ticket = await(helper.ticket, helper.asleep, is_posted);
    if (!claim(helper, ticket)) continue;  // the caller was faster
    if (stop) return;
    body(context, unit - share.first, share.count);
    work_spares();
    if (pending.fetch_sub(1, std::memory_order_seq_cst) == 1) wake(pending, caller_asleep);
  }
}

void Team::State::work_spares() {
  if (num_threads == share.count) return;
  for (int part = 0; (part = next_spare.fetch_add(1, std::memory_order_relaxed)) < share.count;) {
    body(context, part, share.count);
  }
}

void Team::State::post(Helper& helper) {
  helper.ticket.fetch_add(1, std::memory_order_seq_cst);
  wake(helper.ticket, helper.asleep);
}

Team::State::~State() {
  stop = true;
  for (const auto& helper : helpers) {
    if (!helper->thread.joinable()) continue;
    post(*helper);
    helper->thread.join();
  }
  if (::pthread_equal(::pthread_self(), caller) != 0) {
    ::pthread_setaffinity_np(caller, sizeof(caller_affinity), &caller_affinity);
  }
}

Team::Team(std::unique_ptr<State> state) : state_(std::move(state)) {}
Team::~Team() = default;

absl::StatusOr<std::unique_ptr<Team>> Team::create(Share share, std::span<const int> cpus) {
  auto state = std::make_unique<State>();
  CPU_ZERO(&state->caller_affinity);
  ::pthread_getaffinity_np(state->caller, sizeof(state->caller_affinity), &state->caller_affinity);
  state->cpus.assign(cpus.begin(), cpus.end());
  if (cpus.empty()) state->cpus = allowed_cpus();
  if (share.count == 0) {
    const std::size_t count = std::max<std::size_t>(state->cpus.size(), 1);
    share = Share{0, static_cast<std::uint16_t>(count)};
  }
  state->whole = share;
  state->share = share;
  state->num_threads = state->threads_of(share);
  state->worker_areas.resize(share.count);
  try {
    for (int unit = share.first + 1; unit < share.first + state->num_threads; ++unit) {
      State& s = *state;
      State::Helper& helper = *s.helpers.emplace_back(std::make_unique<State::Helper>());
      helper.thread = std::thread([&s, &helper, unit] { s.work(helper, unit); });
      s.pin_unit(helper.thread.native_handle(), unit);
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        fmt::format("start {} threads for one stream: {}; raise the thread limit or ask for fewer threads", share.count,
                    error.what()));
  }
  state->pin_unit(state->caller, share.first);
  return std::make_unique<Team>(std::move(state));
}

absl::Status Team::set_share(Share share) {
  State& s = *state_;
  if (share.count == 0) share = s.whole;
  const int end = share.first + share.count;
  if (share.first < s.whole.first || end > s.whole.first + s.whole.count) {
    return absl::InvalidArgumentError(fmt::format("share of units [{}, {}) lies outside the stream's [{}, {})",
                                                  share.first, end, s.whole.first, s.whole.first + s.whole.count));
  }
  if (share == s.share) return absl::OkStatus();
  if (share.first != s.share.first) s.pin_unit(s.caller, share.first);
  s.share = share;
  s.num_threads = s.threads_of(share);
  return absl::OkStatus();
}

int Team::active() const { return state_->share.count; }

void Team::run_erased(Erased body, const void* context) {
  State& s = *state_;
  const int num_workers = s.share.count;
  if (num_workers == 1) {
    body(context, 0, 1);
    return;
  }
  s.body = body;
  s.context = context;
  s.next_spare.store(s.num_threads, std::memory_order_relaxed);
  s.pending.store(static_cast<std::uint32_t>(s.num_threads - 1), std::memory_order_relaxed);
  for (int i = 1; i < s.num_threads; ++i) s.post(s.helper_of(s.share.first + i));
  body(context, 0, num_workers);
  s.work_spares();
  // A helper that has not begun is asleep or without its core: do not wait for it.
  for (int i = 1; i < s.num_threads; ++i) {
    State::Helper& helper = s.helper_of(s.share.first + i);
    const std::uint32_t ticket = helper.ticket.load(std::memory_order_relaxed);
    if (!is_posted(ticket) || !State::claim(helper, ticket)) continue;
    body(context, i, num_workers);
    s.pending.fetch_sub(1, std::memory_order_acq_rel);
  }
  await(s.pending, s.caller_asleep, [](std::uint32_t pending) { return pending == 0; });
}

std::byte* Team::worker_scratch(int worker, std::size_t bytes) {
  return grow(state_->worker_areas[static_cast<std::size_t>(worker)], bytes);
}

std::byte* Team::shared_scratch(std::size_t bytes) { return grow(state_->shared_area, bytes); }

}  // namespace tandem::cpu
