// Clocks as plain integers. Use steady time (microseconds since an arbitrary start) for durations, deadlines and
// order of events; use Unix time (seconds) only in what clients are told. Thread-safe free functions.
#pragma once

#include <chrono>
#include <cstdint>

namespace tandem {

inline std::int64_t steady_now_ns() {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

inline std::int64_t steady_now_us() { return steady_now_ns() / 1000; }

inline std::int64_t unix_now_s() {
  using std::chrono::duration_cast, std::chrono::seconds, std::chrono::system_clock;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace tandem
