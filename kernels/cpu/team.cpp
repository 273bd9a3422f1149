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

// Waits until done(word's value), first spinning, then sleeping. `asleep` tells the other side to wake: it changes
// the word and then reads `asleep`, here `asleep` is set and then the word read, all sequentially consistent, so
// one of the two sees the other.
template <class Done>
std::uint32_t await(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& asleep, bool spin, Done done) {
  std::uint32_t value = word.load(std::memory_order_acquire);
  if (done(value)) return value;
  if (spin) {
    const Clock::time_point deadline = Clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        _mm_pause();
        value = word.load(std::memory_order_acquire);
        if (done(value)) return value;
      }
    } while (Clock::now() < deadline);
  }
  asleep.store(1, std::memory_order_seq_cst);
  for (value = word.load(std::memory_order_seq_cst); !done(value); value = word.load(std::memory_order_seq_cst)) {
    futex_wait(word, value);
  }
  asleep.store(0, std::memory_order_relaxed);
  return value;
}

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
    std::atomic<std::uint32_t> ticket{0};  // changes once per run it takes part in
    std::atomic<std::uint32_t> asleep{0};
    std::thread thread;
  };

  Share whole;
  Share share;  // the active part of `whole`
  std::vector<int> cpus;
  bool spin = true;
  pthread_t caller = ::pthread_self();
  cpu_set_t caller_affinity;

  // One run's work, published by the tickets.
  Erased body = nullptr;
  const void* context = nullptr;
  bool stop = false;

  alignas(64) std::atomic<std::uint32_t> pending{0};  // helpers that have not finished this run
  std::atomic<std::uint32_t> caller_asleep{0};

  std::vector<std::unique_ptr<Helper>> helpers;
  std::vector<std::vector<CacheLine>> worker_areas;
  std::vector<CacheLine> shared_area;

  ~State();
  void work(Helper& helper, int unit);
  void call(Helper& helper);
  void pin_unit(pthread_t thread, int unit) const {
    if (static_cast<std::size_t>(unit) < cpus.size()) pin(thread, cpus[static_cast<std::size_t>(unit)]);
  }
  Helper& helper_of(int unit) const { return *helpers[static_cast<std::size_t>(unit - whole.first - 1)]; }
};

void Team::State::work(Helper& helper, int unit) {
  std::uint32_t seen = 0;
  while (true) {
    seen = await(helper.ticket, helper.asleep, spin, [seen](std::uint32_t ticket) { return ticket != seen; });
    if (stop) return;
    body(context, unit - share.first, share.count);
    if (pending.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_asleep.load(std::memory_order_seq_cst) != 0) {
      futex_wake(pending);
    }
  }
}

void Team::State::call(Helper& helper) {
  helper.ticket.fetch_add(1, std::memory_order_seq_cst);
  if (helper.asleep.load(std::memory_order_seq_cst) != 0) futex_wake(helper.ticket);
}

Team::State::~State() {
  stop = true;
  for (const auto& helper : helpers) {
    if (!helper->thread.joinable()) continue;
    call(*helper);
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
  // More threads than cores: whoever spins keeps another from working.
  state->spin = std::size_t{share.first} + share.count <= state->cpus.size();
  state->worker_areas.resize(share.count);
  try {
    for (int unit = share.first + 1; unit < share.first + share.count; ++unit) {
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
  s.pending.store(static_cast<std::uint32_t>(num_workers - 1), std::memory_order_relaxed);
  for (int i = 1; i < num_workers; ++i) s.call(s.helper_of(s.share.first + i));
  body(context, 0, num_workers);
  await(s.pending, s.caller_asleep, s.spin, [](std::uint32_t pending) { return pending == 0; });
}

std::byte* Team::worker_scratch(int worker, std::size_t bytes) {
  return grow(state_->worker_areas[static_cast<std::size_t>(worker)], bytes);
}

std::byte* Team::shared_scratch(std::size_t bytes) { return grow(state_->shared_area, bytes); }

}  // namespace tandem::cpu
