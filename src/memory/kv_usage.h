// What the blocks of a pool are doing, in numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace tandem {

struct KvPoolUsage {
  std::uint32_t total = 0;
  std::uint32_t held = 0;
  std::uint32_t published = 0;  // in the prefix cache
  std::uint32_t evictable = 0;  // of these, named by no lease: as good as free
  std::uint32_t retiring = 0;
  std::uint32_t free = 0;
};

// Fragmentation: runs of free blocks that lie side by side.
struct KvFreeRuns {
  std::uint32_t num_runs = 0;
  std::uint32_t longest = 0;
};

// What the words of a ledger say now; a snapshot for metrics that any process may take. Both read every word.
absl::StatusOr<KvPoolUsage> read_kv_usage(std::span<const std::byte> ledger);
absl::StatusOr<KvFreeRuns> read_free_runs(std::span<const std::byte> ledger);

}  // namespace tandem
