#include "ipc/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as FUTEX_WAIT_BITSET counts

constexpr std::chrono::microseconds kLongestWait = std::chrono::hours(24);

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Without FUTEX_PRIVATE_FLAG, since the word may be shared between processes.
long futex(std::atomic<std::uint32_t>* word, int op, std::uint32_t value, const timespec* deadline) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), op, value, deadline, nullptr,
                   FUTEX_BITSET_MATCH_ANY);
}

timespec to_timespec(Clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  return {.tv_sec = since / 1'000'000'000, .tv_nsec = since % 1'000'000'000};
}

}  // namespace

void Doorbell::ring() {
  std::uint32_t old = word_.load(std::memory_order_relaxed);
  while (!word_.compare_exchange_weak(old, (old & ~kSleeper) + 2, std::memory_order_seq_cst)) {
  }
  if ((old & kSleeper) != 0) futex(&word_, FUTEX_WAKE_BITSET, INT_MAX, nullptr);
}

bool Doorbell::wait(std::uint32_t seen, std::chrono::microseconds timeout, std::chrono::microseconds spin) {
  const auto start = Clock::now();
  const auto deadline = start + std::clamp(timeout, std::chrono::microseconds(0), kLongestWait);
  const auto spin_end = std::min(start + std::clamp(spin, std::chrono::microseconds(0), kLongestWait), deadline);
  do {
    if (this->seen() != seen) return true;
    pause_core();
  } while (Clock::now() < spin_end);

  const timespec limit = to_timespec(deadline);
  while (true) {
    std::uint32_t word = word_.load(std::memory_order_seq_cst);
    if ((word & ~kSleeper) != seen) return true;
    if (Clock::now() >= deadline) return false;
    // The kernel sleeps only while the word still is `seen` with the sleeper noted: a ring after this line
    // either finds the note or makes the futex call return at once.
    if ((word & kSleeper) == 0 && !word_.compare_exchange_strong(word, word | kSleeper)) continue;
    futex(&word_, FUTEX_WAIT_BITSET, seen | kSleeper, &limit);
  }
}

}  // namespace tandem
