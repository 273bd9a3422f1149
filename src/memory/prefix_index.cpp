#include "memory/prefix_index.h"

#include "base/status.h"

namespace tandem {

PrefixIndex::PrefixIndex(std::span<PrefixKey> table) : table_(table), entries_(table.size()) {}

std::optional<BlockId> PrefixIndex::find(const PrefixKey& key) const {
  const auto at = by_key_.find(key);
  if (at == by_key_.end()) return std::nullopt;
  return BlockId{at->second};
}

void PrefixIndex::insert(BlockId block, const PrefixKey& key) {
  Entry& entry = entries_[block.value];
  TANDEM_CHECK(!entry.named && entry.pins == 0, "a block is published once");
  table_[block.value] = key;
  TANDEM_CHECK(by_key_.emplace(key, block.value).second, "no two blocks have one name");
  entry.named = true;
  entry.pins = 1;
  ++num_blocks_;
}

bool PrefixIndex::restore(BlockId block) {
  const PrefixKey& key = table_[block.value];
  if (key == PrefixKey{} || !by_key_.emplace(key, block.value).second) return false;
  entries_[block.value].named = true;
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
  if (--entry.pins > 0) return false;
  if (entry.named) {
    append(block.value);
    return false;
  }
  --num_blocks_;
  return true;
}

std::optional<std::uint64_t> PrefixIndex::first_unpinned() const {
  return oldest_ == kNone ? std::nullopt : std::optional(entries_[oldest_].unpinned);
}

std::optional<BlockId> PrefixIndex::evict() {
  if (oldest_ == kNone) return std::nullopt;
  const std::uint32_t block = oldest_;
  unlink(block);
  by_key_.erase(table_[block]);
  entries_[block].named = false;
  --num_blocks_;
  return BlockId{block};
}

std::vector<BlockId> PrefixIndex::clear() {
  std::vector<BlockId> unpinned;
  while (const auto block = evict()) unpinned.push_back(*block);
  for (const auto& [key, block] : by_key_) {
    entries_[block].named = false;
    table_[block] = PrefixKey{};  // not to come back with restore()
  }
  by_key_.clear();
  return unpinned;
}

void PrefixIndex::append(std::uint32_t block) {
  entries_[block].older = newest_;
  entries_[block].newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = block;
  newest_ = block;
  ++num_unpinned_;
  entries_[block].unpinned = ++last_unpinned_;
}

void PrefixIndex::unlink(std::uint32_t block) {
  const Entry& entry = entries_[block];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  --num_unpinned_;
}

}  // namespace tandem
