// A wake-up word in shared memory: a futex that processes or threads ring and wait on. It lies in a region or on
// the heap, is valid when zero, and belongs to nobody: any thread may ring, any thread may wait.
// It carries no data. The pattern is: seen = bell.seen(); test the condition; if it does not hold, bell.wait(seen).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem {

class Doorbell final {
 public:
  static constexpr std::chrono::microseconds kDefaultSpin{20};

  std::uint32_t seen() const { return word_.load(std::memory_order_acquire) & ~kSleeper; }
  // Wakes every waiter; no system call when nobody sleeps.
  void ring();
  // True as soon as the bell has rung since `seen` was read, false after `timeout`. Spins for `spin` before it
  // sleeps: pass 0 where the core has better things to do.
  bool wait(std::uint32_t seen, std::chrono::microseconds timeout, std::chrono::microseconds spin = kDefaultSpin);

 private:
  static constexpr std::uint32_t kSleeper = 1;

  // Twice the number of rings, plus kSleeper while somebody may sleep. One word holds both, so that ringing and
  // taking note of a sleeper cannot be torn apart by a late ringer.
  std::atomic<std::uint32_t> word_{0};
};
static_assert(sizeof(Doorbell) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace tandem
