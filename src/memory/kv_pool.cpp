#include "memory/kv_pool.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {

struct KvPool::Account {
  // Blocks with marks of one lane pass in their own line, so that no lane waits for another's steps.
  struct Line {
    std::deque<BlockId> blocks;
    StepLine waits;
  };

  Line& line(const StepMark& mark) {
    const auto is_set = [](std::uint64_t step) { return step != 0; };
    if (std::ranges::count_if(mark, is_set) != 1) return lines.back();
    return lines[static_cast<std::size_t>(std::ranges::find_if(mark, is_set) - mark.begin())];
  }
  void retire(std::span<const BlockId> blocks, const StepMark& mark) {
    Line& waiting = line(mark);
    waiting.blocks.insert(waiting.blocks.end(), blocks.begin(), blocks.end());
    waiting.waits.push(blocks.size(), mark);
    num_retiring += static_cast<std::uint32_t>(blocks.size());
  }
  void reclaim(const StepClock& steps) {
    for (Line& waiting : lines) {
      const auto end = waiting.blocks.begin() + static_cast<std::ptrdiff_t>(waiting.waits.pop(steps));
      if (end == waiting.blocks.begin()) continue;
      passed.assign(waiting.blocks.begin(), end);
      waiting.blocks.erase(waiting.blocks.begin(), end);
      num_retiring -= static_cast<std::uint32_t>(passed.size());
      books.release(passed);
    }
  }

  LaneId id;
  LedgerHolder books;
  std::uint32_t num_retiring = 0;
  std::array<Line, kMaxLanes + 1> lines;  // the last one for marks of several lanes
  std::vector<BlockId> passed;            // what leaves a line now; kept for its memory
};

// ---- the handle ----------------------------------------------------------------------------------

KvPool::KvPool(Ledger ledger, const KvPoolOptions& options)
    : ledger_(ledger), options_(options), cache_(options.prefix_table) {}

KvPool::~KvPool() { reclaim(); }

absl::StatusOr<std::unique_ptr<KvPool>> KvPool::create(std::span<std::byte> ledger, const KvPoolOptions& options) {
  TANDEM_ASSIGN(const Ledger view, Ledger::open(ledger));
  if (options.decode_reserve_blocks >= view.num_blocks()) {
    return absl::InvalidArgumentError(
        fmt::format("a decode reserve of {} blocks leaves prefill nothing of {}; lower it or enlarge the KV pool",
                    options.decode_reserve_blocks, view.num_blocks()));
  }
  if (!options.prefix_table.empty() && options.prefix_table.size() != view.num_blocks()) {
    return absl::InvalidArgumentError(fmt::format("a prefix table of {} names serves no pool of {} blocks",
                                                  options.prefix_table.size(), view.num_blocks()));
  }
  std::unique_ptr<KvPool> pool(new KvPool(view, options));
  TANDEM_TRY(pool->adopt(options.holder, options.holder));
  pool->reclaim();
  return pool;
}

absl::Status KvPool::recover_holder(LaneId holder) {
  if (holder == options_.holder) return absl::InvalidArgumentError("a live holder cannot recover itself");
  TANDEM_TRY(adopt(holder, holder));
  reclaim();
  return absl::OkStatus();
}

absl::Status KvPool::adopt(LaneId holder, LaneId from) {
  if (holder.value >= kNumHolders) {
    return absl::InvalidArgumentError(
        fmt::format("KV pool holder {} does not exist; they are 0 to {}", holder.value, kNumHolders - 1));
  }
  const auto same = [&](const auto& account) { return account->id == holder; };
  if (std::any_of(accounts_.begin(), accounts_.end(), same)) return absl::OkStatus();  // under way

  const std::uint32_t me = options_.holder.value + 1;
  std::atomic<std::uint32_t>& driver = ledger_.driver(holder);
  std::uint32_t current = driver.load();
  do {
    if (current != 0 && current != me && current != holder.value + 1 && current != from.value + 1) {
      return absl::FailedPreconditionError(
          fmt::format("KV pool holder {} is still being recovered by holder {}; try again once its blocks are free",
                      holder.value, current - 1));
    }
  } while (!driver.compare_exchange_weak(current, me));

  std::vector<BlockId> blocks;
  std::vector<BlockId> published;
  const bool keeps_cache = holder == options_.holder && !options_.prefix_table.empty();
  TANDEM_ASSIGN(LedgerHolder books, LedgerHolder::resume(ledger_, holder, blocks, keeps_cache ? &published : nullptr));
  for (const BlockId block : published) {
    if (cache_.restore(block)) {
      given_back_.push(1, steps_.now());
    } else {
      books.mark_retiring({&block, 1});
      blocks.push_back(block);
    }
  }
  accounts_.push_back(
      std::make_unique<Account>(Account{.id = holder, .books = std::move(books), .lines = {}, .passed = {}}));
  accounts_.back()->retire(blocks, steps_.now());

  // Those whose recovery it had not finished when it died.
  for (std::uint32_t i = 0; i < kNumHolders; ++i) {
    if (i != holder.value && i != options_.holder.value && ledger_.driver(LaneId{i}).load() == holder.value + 1) {
      TANDEM_TRY(adopt(LaneId{i}, holder));
    }
  }
  return absl::OkStatus();
}

// ---- taking blocks -------------------------------------------------------------------------------

absl::StatusOr<KvLease> KvPool::reserve(SequenceId sequence, std::uint32_t n, Phase phase,
                                        std::span<const PrefixKey> keys) {
  std::vector<BlockId> cached;
  for (const PrefixKey& key : keys.first(std::min<std::size_t>(keys.size(), n))) {
    const auto block = cache_.find(key);
    if (!block) break;
    cached.push_back(*block);
  }
  const std::uint32_t own = n - static_cast<std::uint32_t>(cached.size());
  TANDEM_TRY(check_room(sequence, own, floor_for(phase), cached));
  KvLease lease;
  lease.pool_ = this;
  lease.sequence_ = sequence;
  lease.blocks_ = std::move(cached);
  lease.num_cached_ = n - own;
  for (const BlockId block : lease.blocks_) cache_.pin(block);
  TANDEM_TRY(take(lease, own, floor_for(phase)));
  return lease;
}

absl::Status KvPool::grow(KvLease& lease, std::uint32_t n, Phase phase) {
  if (lease.pool_ != this) {
    return absl::FailedPreconditionError("only a lease of this pool can grow; reserve one");
  }
  TANDEM_TRY(check_room(lease.sequence_, n, floor_for(phase), {}));
  return take(lease, n, floor_for(phase));
}

// A reservation that fails leaves the cache alone: nothing is evicted for it, nor moved in the order of eviction.
absl::Status KvPool::check_room(SequenceId sequence, std::uint32_t n, std::uint32_t floor,
                                std::span<const BlockId> keep) {
  const std::uint64_t needed = std::uint64_t{n} + floor;
  if (n == 0 || ledger_.budget() >= needed) return absl::OkStatus();
  reclaim();
  const auto kept = std::ranges::count_if(keep, [&](BlockId block) { return cache_.is_idle(block); });
  const std::uint64_t evictable = cache_.num_idle() - static_cast<std::uint64_t>(kept);
  if (ledger_.budget() + evictable >= needed) return absl::OkStatus();
  const KvPoolUsage now = usage();
  return absl::ResourceExhaustedError(fmt::format(
      "reserve {} KV blocks for sequence {}: of {}, {} are free and {} can be evicted, {} of them kept for decode; {} "
      "more follow when the steps under way are over",
      n, sequence.value, now.total, now.free, evictable, floor, now.retiring + now.evictable - evictable));
}

absl::Status KvPool::take(KvLease& lease, std::uint32_t n, std::uint32_t floor) {
  LedgerHolder& books = accounts_.front()->books;
  std::vector<BlockId> evicted;
  for (std::uint64_t free = ledger_.budget(); n > 0 && free < std::uint64_t{n} + floor && cache_.num_idle() > 0;
       ++free) {
    evicted.push_back(*cache_.evict());
  }
  books.release(evicted);
  const std::size_t old = lease.blocks_.size();
  lease.blocks_.resize(old + n);
  absl::Status status = books.take(lease.sequence_, floor, std::span(lease.blocks_).subspan(old));
  if (!status.ok()) lease.blocks_.resize(old);
  return status;
}

// ---- the prefix cache ----------------------------------------------------------------------------

std::uint32_t KvPool::num_cached(std::span<const PrefixKey> keys) const {
  const auto first_missing = std::ranges::find_if(keys, [&](const PrefixKey& key) { return !cache_.find(key); });
  return static_cast<std::uint32_t>(first_missing - keys.begin());
}

void KvPool::publish(KvLease& lease, std::span<const PrefixKey> keys) {
  if (options_.prefix_table.empty()) return;
  TANDEM_CHECK(keys.size() <= lease.blocks_.size(), "only blocks of the lease are published");
  for (; lease.num_cached_ < keys.size(); ++lease.num_cached_) {
    BlockId& block = lease.blocks_[lease.num_cached_];
    const PrefixKey& key = keys[lease.num_cached_];
    if (const auto taken = cache_.find(key)) {
      cache_.pin(*taken);
      retire({&block, 1}, steps_.now());
      block = *taken;
    } else {
      cache_.insert(block, key);
      accounts_.front()->books.mark_published(block);
    }
  }
}

void KvPool::flush_cache() { retire(cache_.clear(), steps_.now()); }

// ---- giving blocks back --------------------------------------------------------------------------

void KvPool::give_back(KvLease lease, LastUse last_use) { end(std::move(lease), steps_.mark(last_use)); }
void KvPool::give_back_idle(KvLease lease) { end(std::move(lease), {}); }
void KvPool::give_back(KvLease lease) { end(std::move(lease), steps_.now()); }

void KvPool::end(KvLease lease, const StepMark& mark) {
  if (lease.pool_ == nullptr) return;
  const std::vector<BlockId> blocks = std::exchange(lease.blocks_, {});
  lease.pool_ = nullptr;
  // The last block first: when memory is short, the ends of a prefix go before its beginning, which others may share.
  for (std::size_t i = lease.num_cached_; i-- > 0;) {
    // Where the cache was flushed meanwhile, other leases that named the block may have ended at any time.
    if (cache_.unpin(blocks[i])) retire({&blocks[i], 1}, steps_.now());
  }
  given_back_.push(lease.num_cached_, mark);
  retire(std::span(blocks).subspan(lease.num_cached_), mark);
}

void KvPool::retire(std::span<const BlockId> blocks, const StepMark& mark) {
  if (blocks.empty()) return;
  Account& own = *accounts_.front();
  if (steps_.passed(mark)) return own.books.release(blocks);
  own.books.mark_retiring(blocks);
  own.retire(blocks, mark);
}

void KvPool::reclaim() {
  cache_.set_idle(given_back_.pop(steps_));
  for (const auto& account : accounts_) account->reclaim(steps_);
  // A recovered holder whose last block is free may open its own handle again.
  for (std::size_t i = accounts_.size(); i-- > 1;) {
    if (accounts_[i]->num_retiring > 0) continue;
    ledger_.driver(accounts_[i]->id).store(0);
    accounts_.erase(accounts_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

KvPoolUsage KvPool::usage() const {
  KvPoolUsage usage{.total = ledger_.num_blocks()};
  usage.free = ledger_.budget();
  for (const auto& account : accounts_) usage.retiring += account->num_retiring;
  usage.published = cache_.num_blocks();
  usage.evictable = cache_.num_unpinned();
  usage.held = usage.total - std::min(usage.total, usage.free + usage.retiring + usage.published);
  return usage;
}

}  // namespace tandem
