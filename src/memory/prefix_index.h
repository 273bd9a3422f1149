// Which blocks the prefix cache holds, under which names, how many leases pin each, and which was unpinned longest ago.
// The names lie in a table in shared memory, one per block, so that they outlive the process; all else is rebuilt from
// it. Owned by the pool and used by its thread. It changes no block's state: the pool does.
// Everything has its final size from the start: a block is inserted, found or evicted in constant time, always.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/prefix_key.h"
#include "tandem/types.h"

namespace tandem {

class PrefixIndex final {
 public:
  // `table` has a name's place per block of the pool, and outlives the index.
  explicit PrefixIndex(std::span<PrefixKey> table);

  std::optional<BlockId> find(const PrefixKey& key) const;
  // Takes the block in under a name that no other block has, pinned once.
  void insert(BlockId block, const PrefixKey& key);
  // Takes in a block that was published in an earlier life, unpinned. False: its name was taken away, or is taken.
  bool restore(BlockId block);
  void pin(BlockId block);
  // True: no lease names the block any more and it has no name, so it is the caller's.
  bool unpin(BlockId block);
  // Takes out the unpinned block that was unpinned first.
  std::optional<BlockId> evict();
  // Takes all names away. Returns the blocks that are unpinned, ascending; a pinned one is returned by its last
  // unpin().
  std::vector<BlockId> clear();

  // Calls of unpin() and restore() are counted. The steps of the next `count` of them are over: a block is idle when it
  // is unpinned and the last call that named it is among those.
  void set_idle(std::uint64_t count);
  bool is_idle(BlockId block) const;

  std::uint32_t num_blocks() const { return num_blocks_; }
  std::uint32_t num_unpinned() const { return num_unpinned_; }
  std::uint32_t num_idle() const { return num_idle_; }  // evict() takes these first

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Entry {
    std::uint32_t pins = 0;
    bool named = false;
    std::uint64_t last_call = 0;  // the number of the last unpin() or restore()
    std::uint32_t older = kNone;  // neighbours in the order of unpinning
    std::uint32_t newer = kNone;
  };

  // A place in slots_: where the block of that name is, or an empty one where it would be put.
  std::size_t slot_of(const PrefixKey& key) const;
  std::size_t home_of(const PrefixKey& key) const { return key.low & (slots_.size() - 1); }  // names are hashes
  void erase_slot(std::size_t slot);
  void append(std::uint32_t block);
  void unlink(std::uint32_t block);

  std::span<PrefixKey> table_;
  std::vector<Entry> entries_;
  // Blocks by name: an open-addressing table with linear probing, at most half full.
  std::vector<std::uint32_t> slots_;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::uint32_t oldest_busy_ = kNone;  // the oldest that is not idle
  std::uint32_t num_blocks_ = 0;
  std::uint32_t num_unpinned_ = 0;
  std::uint32_t num_idle_ = 0;
  std::uint64_t num_calls_ = 0;
  std::uint64_t num_idle_calls_ = 0;
};

}  // namespace tandem
