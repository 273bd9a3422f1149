// A sequence's hold on blocks of the KV pool, in order of position. A plain handle: KvPool hands it out, changes it and
// takes it back. Owned by the sequence and used on the pool's thread; the pool outlives it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/types.h"

namespace tandem {

class KvPool;

class KvLease final {
 public:
  KvLease() = default;
  KvLease(KvLease&& other) noexcept { swap(other); }
  KvLease& operator=(KvLease&& other) noexcept;
  // A lease that is merely dropped is given back as one that any running step of any lane may still use: who forgets to
  // say more waits longer, and no block is reused too early.
  ~KvLease();

  std::span<const BlockId> blocks() const { return blocks_; }
  // The first blocks are the prefix cache's: other leases may name them too, and nobody writes to them.
  std::uint32_t num_cached() const { return num_cached_; }

 private:
  friend class KvPool;
  void swap(KvLease& other) noexcept;

  KvPool* pool_ = nullptr;
  SequenceId sequence_;
  std::vector<BlockId> blocks_;
  std::uint32_t num_cached_ = 0;
};

}  // namespace tandem
