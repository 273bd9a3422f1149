// Spreads independent rows over a team, or keeps them on the caller when waking the team would cost more.
#pragma once

#include <cstdint>

#include "kernels/cpu/team.h"

namespace tandem::cpu {

// About what one thread does (elements touched) while another wakes.
inline constexpr std::int64_t kWorthWaking = 16384;

// Calls body(begin, end) on disjoint ranges that cover [0, rows). `work` is the number of elements of one row.
template <class Body>
void for_rows(Team& team, std::int64_t rows, std::int64_t work, const Body& body) {
  if (rows <= 1 || rows * work < kWorthWaking || team.active() == 1) {
    if (rows > 0) body(std::int64_t{0}, rows);
    return;
  }
  team.run([&](int worker, int num_workers) {
    const std::int64_t begin = rows * worker / num_workers;
    const std::int64_t end = rows * (worker + 1) / num_workers;
    if (begin < end) body(begin, end);
  });
}

}  // namespace tandem::cpu
