#include "memory/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace tandem {

PrefixIndex::PrefixIndex(std::span<PrefixKey> table)
    : table_(table), entries_(table.size()), slots_(std::bit_ceil(2 * table.size() + 1), kNone) {}

std::size_t PrefixIndex::slot_of(const PrefixKey& key) const {
  std::size_t slot = home_of(key);
  while (slots_[slot] != kNone && table_[slots_[slot]] != key) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

// Closes the gap: a name that was put further on because its place was taken moves up, so that slot_of() finds it.
void PrefixIndex::erase_slot(std::size_t slot) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = (slot + 1) & mask; slots_[at] != kNone; at = (at + 1) & mask) {
    const std::size_t from_home = (at - home_of(table_[slots_[at]])) & mask;
    if (from_home < ((at - slot) & mask)) continue;
    slots_[slot] = slots_[at];
    slot = at;
  }
  slots_[slot] = kNone;
}

std::optional<BlockId> PrefixIndex::find(const PrefixKey& key) const {
  const std::uint32_t block = slots_[slot_of(key)];
  return block == kNone ? std::nullopt : std::optional(BlockId{block});
}

void PrefixIndex::insert(BlockId block, const PrefixKey& key) {
  Entry& entry = entries_[block.value];
  TANDEM_CHECK(!entry.named && entry.pins == 0, "a block is published once");
  const std::size_t slot = slot_of(key);
  TANDEM_CHECK(slots_[slot] == kNone, "no two blocks have one name");
  table_[block.value] = key;
  slots_[slot] = block.value;
  entry.named = true;
  entry.pins = 1;
  ++num_blocks_;
}

bool PrefixIndex::restore(BlockId block) {
  const PrefixKey& key = table_[block.value];
  const std::size_t slot = slot_of(key);
  if (key == PrefixKey{} || slots_[slot] != kNone) return false;
  slots_[slot] = block.value;
  entries_[block.value].named = true;
  entries_[block.value].last_call = ++num_calls_;
  ++num_blocks_;
  append(block.value);
  return true;
}

void PrefixIndex::pin(BlockId block) {
  if (entries_[block.value].pins++ == 0) unlink(block.value);
}

bool PrefixIndex::unpin(BlockId block) {
  Entry& entry = entries_[block.value];
  TANDEM_CHECK(entry.pins > 0, "only pinned blocks are unpinned");
  entry.last_call = ++num_calls_;
  if (--entry.pins > 0) return false;
  if (entry.named) {
    append(block.value);
    return false;
  }
  --num_blocks_;
  return true;
}

void PrefixIndex::set_idle(std::uint64_t count) {
  num_idle_calls_ += count;
  TANDEM_CHECK(num_idle_calls_ <= num_calls_, "steps are over only of leases that were given back");
  for (; oldest_busy_ != kNone && entries_[oldest_busy_].last_call <= num_idle_calls_; ++num_idle_) {
    oldest_busy_ = entries_[oldest_busy_].newer;
  }
}

bool PrefixIndex::is_idle(BlockId block) const {
  const Entry& entry = entries_[block.value];
  return entry.pins == 0 && entry.named && entry.last_call <= num_idle_calls_;
}

std::optional<BlockId> PrefixIndex::evict() {
  if (oldest_ == kNone) return std::nullopt;
  const std::uint32_t block = oldest_;
  unlink(block);
  const std::size_t slot = slot_of(table_[block]);
  TANDEM_CHECK(slots_[slot] == block, "only the index changes the names of cached blocks");
  erase_slot(slot);
  entries_[block].named = false;
  --num_blocks_;
  return BlockId{block};
}

// In the order of the blocks' memory, not of their unpinning: a pool has millions.
std::vector<BlockId> PrefixIndex::clear() {
  std::vector<BlockId> unpinned;
  unpinned.reserve(num_unpinned_);
  for (std::uint32_t block = 0; block < entries_.size(); ++block) {
    if (!entries_[block].named) continue;
    entries_[block].named = false;
    table_[block] = PrefixKey{};  // not to come back with restore()
    if (entries_[block].pins == 0) unpinned.push_back(BlockId{block});
  }
  std::ranges::fill(slots_, kNone);
  num_blocks_ -= static_cast<std::uint32_t>(unpinned.size());
  num_unpinned_ = num_idle_ = 0;
  oldest_ = newest_ = oldest_busy_ = kNone;
  return unpinned;
}

void PrefixIndex::append(std::uint32_t block) {
  entries_[block].older = newest_;
  entries_[block].newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = block;
  newest_ = block;
  if (oldest_busy_ == kNone) oldest_busy_ = block;
  ++num_unpinned_;
}

void PrefixIndex::unlink(std::uint32_t block) {
  const Entry& entry = entries_[block];
  if (entry.last_call <= num_idle_calls_) --num_idle_;
  if (oldest_busy_ == block) oldest_busy_ = entry.newer;
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  --num_unpinned_;
}

}  // namespace tandem
