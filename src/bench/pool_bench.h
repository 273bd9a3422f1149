// Measures the nanoseconds per block to reserve KV blocks and to retire them, alone and against a second process. The
// yardstick is a free list under a process-shared robust mutex, measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "bench/spread.h"

namespace tandem::bench {

struct PoolBenchOptions {
  std::uint32_t num_blocks = 20'000;
  std::vector<std::uint32_t> lease_blocks{1, 32};
  std::vector<std::uint32_t> percent_used{10, 90, 99};  // of the blocks, by leases that stay, scattered over the pool
  std::vector<std::uint32_t> processes{1, 2};
  std::uint32_t repeat = 7;  // measured runs, the two kinds in turn
};

struct PoolBenchResult {
  std::uint32_t processes = 1;
  std::uint32_t lease_blocks = 1;
  std::uint32_t percent_used = 0;
  Spread ledger_ns;  // per block: reserved, retired and free again
  Spread mutex_ns;
};

// Runs every test and tells `report` of each as it ends.
absl::Status run_pool_bench(const PoolBenchOptions& options, const std::function<void(const PoolBenchResult&)>& report);

}  // namespace tandem::bench
