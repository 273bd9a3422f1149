#include "memory/kv_usage.h"

#include <algorithm>

#include "base/status.h"
#include "memory/ledger.h"

namespace tandem {
namespace {

// Nothing here writes, so that a read-only mapping serves.
absl::StatusOr<Ledger> open_to_read(std::span<const std::byte> ledger) {
  return Ledger::open({const_cast<std::byte*>(ledger.data()), ledger.size()});
}

}  // namespace

absl::StatusOr<KvPoolUsage> read_kv_usage(std::span<const std::byte> ledger) {
  TANDEM_ASSIGN(const Ledger view, open_to_read(ledger));
  KvPoolUsage usage{.total = view.num_blocks()};
  for (std::uint32_t i = 0; i < view.num_blocks(); ++i) {
    switch (view.word(i).state) {
      case BlockState::kFree: ++usage.free; break;
      case BlockState::kHeld: ++usage.held; break;
      case BlockState::kRetiring: ++usage.retiring; break;
      case BlockState::kPublished: ++usage.published; break;
    }
  }
  return usage;
}

absl::StatusOr<KvFreeRuns> read_free_runs(std::span<const std::byte> ledger) {
  TANDEM_ASSIGN(const Ledger view, open_to_read(ledger));
  KvFreeRuns runs;
  std::uint32_t length = 0;
  for (std::uint32_t i = 0; i < view.num_blocks(); ++i) {
    length = view.word(i).state == BlockState::kFree ? length + 1 : 0;
    if (length == 1) ++runs.num_runs;
    runs.longest = std::max(runs.longest, length);
  }
  return runs;
}

}  // namespace tandem
