// The fused KV pool: one ledger of 64-bit words, one per block, in a region that every process maps.
// reserve() is one atomic operation, callable from any of them; see memory/kv_pool.cpp for the protocol.
// Whole blocks of sequences that are over stay as a cache of prefixes, until their memory is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/types.h"

namespace tandem {

class KvPool;

// A name for the tokens from a sequence's first to a block's last one, and for all else that the block's keys and
// values depend on: equal names, equal bits. memory/prefix_key.h makes them.
struct PrefixKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr bool operator==(const PrefixKey&, const PrefixKey&) = default;
};

// Whether a step that is under way may still use the blocks of a lease that ends.
enum class LeaseEnd : std::uint8_t { kInUse, kOutOfUse };

// A sequence's hold on blocks, in order of position. Move-only; dropping it retires the blocks: they are
// reused only when every lane that could still read them has completed a later step.
class KvLease final {
 public:
  KvLease() = default;
  KvLease(KvLease&& other) noexcept;
  KvLease& operator=(KvLease&& other) noexcept;
  ~KvLease();

  std::span<const BlockId> blocks() const { return blocks_; }
  // So many of the first blocks are the cache's: other leases may name them too and nobody writes to them.
  std::uint32_t num_cached() const { return num_cached_; }
  // Takes n more blocks or, with ResourceExhausted, changes nothing.
  absl::Status grow(std::uint32_t n, Phase phase);
  // Drops it when no step under way names its blocks: those that are not the cache's are free at once.
  void end();

 private:
  friend class KvPool;
  KvPool* pool_ = nullptr;
  SequenceId sequence_;
  std::vector<BlockId> blocks_;
  std::uint32_t num_cached_ = 0;
};

struct KvPoolUsage {
  std::uint32_t total = 0;
  std::uint32_t held = 0;
  std::uint32_t published = 0;  // in the prefix cache
  std::uint32_t evictable = 0;  // of these, named by no lease: as good as free
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
  // A lease on the longest run of cached blocks whose names begin `keys`; of no block when nothing is cached.
  virtual KvLease match(SequenceId sequence, std::span<const PrefixKey> keys) = 0;
  // Gives the first keys.size() blocks of the lease to the cache under these names. No step that writes to them runs or
  // will. Where a name is taken the lease goes on with the block that has it, and its own is retired.
  virtual void publish(KvLease& lease, std::span<const PrefixKey> keys) = 0;
  // Empties the cache. Running sequences keep the blocks they read.
  virtual void flush_cache() = 0;
  // Moves retired blocks whose stamps every lane has passed back to free.
  virtual void reclaim() = 0;
  virtual KvPoolUsage usage() const = 0;

 protected:
  friend class KvLease;
  virtual absl::Status take(SequenceId sequence, std::uint32_t n, Phase phase, std::vector<BlockId>& into) = 0;
  // The end of a lease: its first num_cached blocks stay with the cache, the others are retired or, out of use, free.
  virtual void give_back(std::span<const BlockId> blocks, std::uint32_t num_cached, LeaseEnd end) = 0;
  static KvLease make_lease(KvPool& pool, SequenceId sequence, std::vector<BlockId> blocks,
                            std::uint32_t num_cached = 0);
  // What publish() changes.
  static BlockId& block_of(KvLease& lease, std::uint32_t index) { return lease.blocks_[index]; }
  static void set_num_cached(KvLease& lease, std::uint32_t num_cached) { lease.num_cached_ = num_cached; }
};

}  // namespace tandem
