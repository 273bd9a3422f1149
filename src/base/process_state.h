// What /proc says about another process on this machine: whether it is stopped, and whether a debugger traces it.
// Supervision uses this to tell a stopped worker from a slow one.
#pragma once

#include <cstdint>

namespace tandem {

// Stopped by a signal or by a debugger, at this moment. False also when nothing is known: the process has ended, /proc
// is missing or of another pid namespace.
bool is_stopped(int pid);
// By a debugger: somebody is looking at it.
bool is_traced(int pid);

// Tells a process that stays stopped from one that was for a moment. Counts looks, not time: a process that was itself
// stopped meanwhile, as when Ctrl-Z stops a whole group, has seen nothing and would judge by its own absence.
class StopDetector final {
 public:
  static constexpr std::int64_t kPollEveryUs = 100'000;  // how often to look: one read of /proc each
  static constexpr std::uint32_t kLooks = 6;             // in a row: stopped for half a second

  // True from the look on that makes it certain until the process goes on.
  bool poll(int pid) {
    looks_ = is_stopped(pid) ? looks_ + 1 : 0;
    return looks_ >= kLooks;
  }

 private:
  std::uint32_t looks_ = 0;
};

}  // namespace tandem
