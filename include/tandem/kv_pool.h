// The fused KV pool: one ledger of 64-bit words, one per block, in a region that every process maps.
// reserve() is one atomic operation, callable from any of them; see memory/kv_pool.cpp for the protocol.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/types.h"

namespace tandem {

class KvPool;

// A sequence's hold on blocks, in order of position. Move-only; dropping it retires the blocks: they are
// reused only when every lane that could still read them has completed a later step.
class KvLease final {
 public:
  KvLease() = default;
  KvLease(KvLease&& other) noexcept;
  KvLease& operator=(KvLease&& other) noexcept;
  ~KvLease();

  std::span<const BlockId> blocks() const { return blocks_; }
  // Takes n more blocks or, with ResourceExhausted, changes nothing.
  absl::Status grow(std::uint32_t n, Phase phase);

 private:
  friend class KvPool;
  KvPool* pool_ = nullptr;
  SequenceId sequence_;
  std::vector<BlockId> blocks_;
};

struct KvPoolUsage {
  std::uint32_t total = 0;
  std::uint32_t held = 0;
  std::uint32_t retiring = 0;
  std::uint32_t free = 0;
};

// One process's handle on the ledger. The handle is owned and used by one thread (the scheduler's); the ledger
// words are shared by all.
class KvPool {
 public:
  virtual ~KvPool() = default;
  // All n blocks or none. `phase` decides what may be taken: prefill leaves the decode reserve alone.
  virtual absl::StatusOr<KvLease> reserve(SequenceId sequence, std::uint32_t n, Phase phase) = 0;
  // Moves retired blocks whose stamps every lane has passed back to free.
  virtual void reclaim() = 0;
  virtual KvPoolUsage usage() const = 0;

 protected:
  friend class KvLease;
  virtual absl::Status take(SequenceId sequence, std::uint32_t n, Phase phase, std::vector<BlockId>& into) = 0;
  virtual void retire(std::span<const BlockId> blocks) = 0;
  static KvLease make_lease(KvPool& pool, SequenceId sequence, std::vector<BlockId> blocks);
};

}  // namespace tandem
