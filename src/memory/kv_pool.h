// The KvPool contract over a ledger in shared memory. The protocol is in memory/ledger.h; this adds leases, and the
// retire stamps: a retired block is free only once every lane has completed the last step that was issued to it
// before the block was retired. Whoever retires a block names it in no later plan.
// A pool handle, with its leases, belongs to one thread; the ledger is shared by processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ipc/control_page.h"
#include "memory/ledger.h"
#include "memory/prefix_index.h"
#include "tandem/kv_pool.h"

namespace tandem {

// Holders are the lanes and the scheduler. Each has one live handle at most.
inline constexpr LaneId kSchedulerHolder{kMaxLanes};

struct KvPoolOptions {
  LaneId holder = kSchedulerHolder;
  std::uint32_t decode_reserve_blocks = 0;  // prefill leaves at least these free
  // Shared memory for a name per block, zero when new; it outlives the pool. Empty: nothing is cached. Where an earlier
  // life of the holder left a cache, it goes on.
  std::span<PrefixKey> prefix_table = {};
};

std::size_t ledger_bytes(std::uint32_t num_blocks);
// A fresh ledger, every block free, in `ledger` (64-byte aligned). Nobody else uses it yet.
absl::Status init_ledger(std::span<std::byte> ledger, std::uint32_t num_blocks);
// What the words say now; a snapshot for metrics that any process may take. Reads every word.
absl::StatusOr<KvPoolUsage> read_kv_usage(std::span<const std::byte> ledger);
// Fragmentation, in the same way: runs of free blocks that lie side by side.
struct KvFreeRuns {
  std::uint32_t num_runs = 0;
  std::uint32_t longest = 0;
};
absl::StatusOr<KvFreeRuns> read_free_runs(std::span<const std::byte> ledger);

class LedgerPool final : public KvPool {
  struct Key {};  // makes the constructor create_kv_pool's alone

 public:
  LedgerPool(Key, Ledger ledger, ControlPage& control, const KvPoolOptions& options);
  ~LedgerPool() override;  // its leases are gone by then

  absl::StatusOr<KvLease> reserve(SequenceId sequence, std::uint32_t n, Phase phase) override;
  KvLease match(SequenceId sequence, std::span<const PrefixKey> keys) override;
  void publish(KvLease& lease, std::span<const PrefixKey> keys) override;
  void flush_cache() override;
  void reclaim() override;
  // No scan: `free` is what may be reserved now; blocks that another handle is retiring count as held.
  KvPoolUsage usage() const override;

  // Retires all that a dead holder had and repairs what it left half-done; its blocks come free through this
  // handle's reclaim(), under the stamps of now. Other holders may work meanwhile; `holder` itself must have
  // stopped: its process reaped, and its lane's completed_step set to issued_step. Until its last block is
  // free the holder cannot open a handle of its own.
  absl::Status recover_holder(LaneId holder);

 private:
  // The last step issued to each lane at some moment.
  using Stamp = std::array<std::uint64_t, kMaxLanes>;
  // Cached blocks that were unpinned before `settled` are read by no step under way: evicted, they are free at once.
  // Those before `next` come to that when `stamp` has passed.
  struct Settling {
    std::uint64_t settled = 0;
    std::uint64_t next = 0;
    Stamp stamp{};
  };

  friend absl::StatusOr<std::unique_ptr<LedgerPool>> create_kv_pool(std::span<std::byte> ledger, ControlPage& control,
                                                                    const KvPoolOptions& options);
  struct Account;  // a holder's entry in the ledger with the blocks that retire through this handle

  absl::Status take(SequenceId sequence, std::uint32_t n, Phase phase, std::vector<BlockId>& into) override;
  void give_back(std::span<const BlockId> blocks, std::uint32_t num_cached, LeaseEnd end) override;
  void retire(std::span<const BlockId> blocks);
  void make_room(std::uint64_t budget);
  void settle();
  // Acts for `holder` from now on, if nobody but itself or `from`, who is dead, does.
  absl::Status adopt(LaneId holder, LaneId from);
  void reclaim_account(Account& account);

  Ledger ledger_;
  ControlPage& control_;
  KvPoolOptions options_;
  PrefixIndex cache_;
  Settling settling_;
  std::vector<std::unique_ptr<Account>> accounts_;  // [0] this handle's own, then recovered ones
};

// Opens the holder's handle. What an earlier life of the holder left (a killed front end) is retired first, so
// the caller makes sure that life is over. FailedPrecondition: not a ledger, or another handle is still recovering
// this holder.
absl::StatusOr<std::unique_ptr<LedgerPool>> create_kv_pool(std::span<std::byte> ledger, ControlPage& control,
                                                           const KvPoolOptions& options);

}  // namespace tandem
