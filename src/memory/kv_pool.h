// The KV pool of both phases and of the prefix cache: one process's handle on the ledger (memory/ledger.h) that all
// processes may map. It hands blocks out as leases and takes them back. Owned and used, with its leases, by one thread.
//
// A block is reused only when no step reads or writes it any more. Every block that is given back gets a mark of the
// step clock, and is reused when that mark has passed:
// - A lease's own blocks wait for the lease's last use: the newest step that names them. A sequence has steps on one
//   lane at a time, so all its steps are over then. These blocks are `retiring` meanwhile.
// - A cached block was named by several leases, each with a last use of its own. All cached blocks wait in one line, in
//   the order in which leases gave them back. When a block's newest place in the line has passed, all its leases' steps
//   are over: the block is idle. It stays cached until its memory is needed; only idle blocks are evicted.
// - What was given back without a last use waits for every step that any lane had at that time.
// Whoever gives a block back names it in no later plan.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "memory/kv_lease.h"
#include "memory/kv_usage.h"
#include "memory/ledger.h"
#include "memory/prefix_index.h"
#include "memory/step_clock.h"
#include "tandem/types.h"

namespace tandem {

// Holders are the lanes and the scheduler. Each has one live handle at most.
inline constexpr LaneId kSchedulerHolder{kMaxLanes};

struct KvPoolOptions {
  LaneId holder = kSchedulerHolder;
  std::uint32_t decode_reserve_blocks = 0;  // prefill leaves at least these free
  // Shared memory for a name per block, zero when new; it outlives the pool. Empty: nothing is cached. A cache that an
  // earlier process of the holder left is kept.
  std::span<PrefixKey> prefix_table = {};
};

class KvPool final {
 public:
  // Opens the holder's handle. What an earlier process of the holder left is taken back first, so that process must be
  // over, and all steps that it sent. FailedPrecondition: not a ledger, or another handle is still recovering the
  // holder.
  static absl::StatusOr<std::unique_ptr<KvPool>> create(std::span<std::byte> ledger, const KvPoolOptions& options);
  ~KvPool();  // its leases are gone by then

  // The scheduler keeps it up.
  StepClock& steps() { return steps_; }

  // A lease of n blocks or, with ResourceExhausted, no change at all. Its first blocks are the cached ones whose names
  // begin `keys`. `phase` decides what may be taken: prefill leaves the decode reserve alone.
  absl::StatusOr<KvLease> reserve(SequenceId sequence, std::uint32_t n, Phase phase,
                                  std::span<const PrefixKey> keys = {});
  // n more blocks for the lease or, with ResourceExhausted, no change at all.
  absl::Status grow(KvLease& lease, std::uint32_t n, Phase phase);

  // How many blocks reserve() would find cached. Changes nothing, so a prompt that waits may ask at any time.
  std::uint32_t num_cached(std::span<const PrefixKey> keys) const;
  // Gives the lease's first keys.size() blocks to the cache under these names. No step that writes to them runs or
  // will. Where a name is taken, the lease goes on with the block that has it and gives its own back.
  void publish(KvLease& lease, std::span<const PrefixKey> keys);
  // Empties the cache. Running sequences keep the blocks they read.
  void flush_cache();

  // The end of a lease: cached blocks stay in the cache, the others become free.
  void give_back(KvLease lease, LastUse last_use);
  void give_back_idle(KvLease lease);  // no step under way names its blocks
  void give_back(KvLease lease);  // any step under way may name its blocks

  // Makes blocks free, or idle, whose marks have passed.
  void reclaim();
  // No scan: `free` is what may be reserved now; blocks that another handle is retiring count as held.
  KvPoolUsage usage() const;

  // Takes back all that a dead holder had and repairs what it left half-done; its blocks become free through this
  // handle's reclaim(). Other holders may work meanwhile; `holder` itself must have stopped: its process is reaped, and
  // the steps of its lane are complete. Until its last block is free the holder cannot open a handle of its own.
  absl::Status recover_holder(LaneId holder);

 private:
  struct Account;  // a holder's entry in the ledger, with its blocks that retire through this handle

  KvPool(Ledger ledger, const KvPoolOptions& options);
  std::uint32_t floor_for(Phase phase) const { return phase == Phase::kPrefill ? options_.decode_reserve_blocks : 0; }
  // Whether take() will do, where `keep` is not evicted.
  absl::Status check_room(SequenceId sequence, std::uint32_t n, std::uint32_t floor, std::span<const BlockId> keep);
  absl::Status take(KvLease& lease, std::uint32_t n, std::uint32_t floor);
  void end(KvLease lease, const StepMark& mark);
  void retire(std::span<const BlockId> blocks, const StepMark& mark);
  // Acts for `holder` from now on, if nobody but itself or `from`, who is dead, does.
  absl::Status adopt(LaneId holder, LaneId from);

  Ledger ledger_;
  KvPoolOptions options_;
  StepClock steps_;
  PrefixIndex cache_;
  StepLine given_back_;  // cached blocks, once for each lease that named them
  std::vector<std::unique_ptr<Account>> accounts_;  // [0] this handle's own, then recovered ones
};

}  // namespace tandem
