#include "memory/kv_pool.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

std::array<std::uint64_t, kMaxLanes> stamp_now(const ControlPage& control) {
  std::array<std::uint64_t, kMaxLanes> stamp;
  for (std::size_t i = 0; i < kMaxLanes; ++i) stamp[i] = control.lanes[i].issued_step.load(std::memory_order_acquire);
  return stamp;
}

bool passed(const std::array<std::uint64_t, kMaxLanes>& stamp, const ControlPage& control) {
  for (std::size_t i = 0; i < kMaxLanes; ++i) {
    if (control.lanes[i].completed_step.load(std::memory_order_acquire) < stamp[i]) return false;
  }
  return true;
}

}  // namespace

// ---- leases ------------------------------------------------------------------------------------

KvLease::KvLease(KvLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      sequence_(other.sequence_),
      blocks_(std::exchange(other.blocks_, {})),
      num_cached_(std::exchange(other.num_cached_, 0)) {}

KvLease& KvLease::operator=(KvLease&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr) pool_->give_back(blocks_, num_cached_, LeaseEnd::kInUse);
    pool_ = std::exchange(other.pool_, nullptr);
    sequence_ = other.sequence_;
    blocks_ = std::exchange(other.blocks_, {});
    num_cached_ = std::exchange(other.num_cached_, 0);
  }
  return *this;
}

KvLease::~KvLease() {
  if (pool_ != nullptr) pool_->give_back(blocks_, num_cached_, LeaseEnd::kInUse);
}

void KvLease::end() {
  if (KvPool* const pool = std::exchange(pool_, nullptr)) pool->give_back(blocks_, num_cached_, LeaseEnd::kOutOfUse);
  blocks_.clear();
  num_cached_ = 0;
}

absl::Status KvLease::grow(std::uint32_t n, Phase phase) {
  if (pool_ == nullptr) return absl::FailedPreconditionError("an empty lease cannot grow; reserve one from a pool");
  return pool_->take(sequence_, n, phase, blocks_);
}

KvLease KvPool::make_lease(KvPool& pool, SequenceId sequence, std::vector<BlockId> blocks, std::uint32_t num_cached) {
  KvLease lease;
  lease.pool_ = &pool;
  lease.sequence_ = sequence;
  lease.blocks_ = std::move(blocks);
  lease.num_cached_ = num_cached;
  return lease;
}

// ---- the ledger as a whole -----------------------------------------------------------------------

std::size_t ledger_bytes(std::uint32_t num_blocks) { return Ledger::bytes(num_blocks); }

absl::Status init_ledger(std::span<std::byte> ledger, std::uint32_t num_blocks) {
  return Ledger::init(ledger, num_blocks);
}

absl::StatusOr<KvPoolUsage> read_kv_usage(std::span<const std::byte> ledger) {
  // Nothing below writes, so that a read-only mapping serves.
  TANDEM_ASSIGN(const Ledger view, Ledger::open({const_cast<std::byte*>(ledger.data()), ledger.size()}));
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
  TANDEM_ASSIGN(const Ledger view, Ledger::open({const_cast<std::byte*>(ledger.data()), ledger.size()}));
  KvFreeRuns runs;
  std::uint32_t length = 0;
  for (std::uint32_t i = 0; i < view.num_blocks(); ++i) {
    length = view.word(i).state == BlockState::kFree ? length + 1 : 0;
    if (length == 1) ++runs.num_runs;
    runs.longest = std::max(runs.longest, length);
  }
  return runs;
}

// ---- the pool ------------------------------------------------------------------------------------

struct LedgerPool::Account {
  struct Batch {
    Stamp stamp;
    std::size_t num_blocks = 0;
  };
  LaneId id;
  LedgerHolder holder;
  // First in, first out: steps only count upwards, so a later stamp never passes before an earlier one.
  std::vector<BlockId> retiring;
  std::vector<Batch> batches;
};

LedgerPool::LedgerPool(Key /*key*/, Ledger ledger, ControlPage& control, const KvPoolOptions& options)
    : ledger_(ledger), control_(control), options_(options), cache_(options.prefix_table) {}

LedgerPool::~LedgerPool() { reclaim(); }

absl::StatusOr<std::unique_ptr<LedgerPool>> create_kv_pool(std::span<std::byte> ledger, ControlPage& control,
                                                           const KvPoolOptions& options) {
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
  auto pool = std::make_unique<LedgerPool>(LedgerPool::Key{}, view, control, options);
  TANDEM_TRY(pool->adopt(options.holder, options.holder));
  pool->reclaim();
  return pool;
}

absl::Status LedgerPool::recover_holder(LaneId holder) {
  if (holder == options_.holder) return absl::InvalidArgumentError("a live holder cannot recover itself");
  TANDEM_TRY(adopt(holder, holder));
  reclaim();
  return absl::OkStatus();
}

absl::Status LedgerPool::adopt(LaneId holder, LaneId from) {
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
    if (cache_.restore(block)) continue;
    books.mark_retiring({&block, 1});
    blocks.push_back(block);
  }
  auto account = std::make_unique<Account>(Account{.id = holder, .holder = books, .retiring = {}, .batches = {}});
  if (!blocks.empty()) {
    account->batches.push_back({.stamp = stamp_now(control_), .num_blocks = blocks.size()});
    account->retiring = std::move(blocks);
  }
  accounts_.push_back(std::move(account));

  // Those whose recovery it had not finished when it died.
  for (std::uint32_t i = 0; i < kNumHolders; ++i) {
    if (i != holder.value && i != options_.holder.value && ledger_.driver(LaneId{i}).load() == holder.value + 1) {
      TANDEM_TRY(adopt(LaneId{i}, holder));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<KvLease> LedgerPool::reserve(SequenceId sequence, std::uint32_t n, Phase phase) {
  std::vector<BlockId> blocks;
  TANDEM_TRY(take(sequence, n, phase, blocks));
  return make_lease(*this, sequence, std::move(blocks));
}

absl::Status LedgerPool::take(SequenceId sequence, std::uint32_t n, Phase phase, std::vector<BlockId>& into) {
  const std::uint32_t floor = phase == Phase::kPrefill ? options_.decode_reserve_blocks : 0;
  if (ledger_.budget() < std::uint64_t{n} + floor) {
    reclaim();
    make_room(std::uint64_t{n} + floor);
  }
  if (n > ledger_.num_blocks()) {
    return absl::ResourceExhaustedError(fmt::format("reserve {} KV blocks for sequence {}: the pool has {} in all", n,
                                                    sequence.value, ledger_.num_blocks()));
  }
  const std::size_t old = into.size();
  into.resize(old + n);
  absl::Status status = accounts_.front()->holder.take(sequence, floor, std::span(into).subspan(old));
  if (!status.ok()) into.resize(old);
  return status;
}

// Evicts until `budget` blocks are free or, where the steps that run now may read them, on their way to be.
void LedgerPool::make_room(std::uint64_t budget) {
  std::vector<BlockId> unused;
  std::vector<BlockId> retired;
  std::uint64_t free = ledger_.budget();
  std::uint64_t coming = free + accounts_.front()->retiring.size();
  for (auto unpinned = cache_.first_unpinned(); unpinned && free < budget; unpinned = cache_.first_unpinned()) {
    const bool settled = *unpinned <= settling_.settled;
    if (!settled && coming >= budget) break;
    (settled ? unused : retired).push_back(*cache_.evict());
    free += settled ? 1 : 0;
    ++coming;
  }
  if (!unused.empty()) accounts_.front()->holder.release(unused);
  retire(retired);
}

// What was unpinned longest ago is evicted first, so one moment to wait for at a time is enough.
void LedgerPool::settle() {
  if (settling_.settled == settling_.next) settling_ = {settling_.settled, cache_.last_unpinned(), stamp_now(control_)};
  if (passed(settling_.stamp, control_)) settling_.settled = settling_.next;
}

KvLease LedgerPool::match(SequenceId sequence, std::span<const PrefixKey> keys) {
  std::vector<BlockId> blocks;
  for (const PrefixKey& key : keys) {
    const auto block = cache_.find(key);
    if (!block) break;
    cache_.pin(*block);
    blocks.push_back(*block);
  }
  const auto num_cached = static_cast<std::uint32_t>(blocks.size());
  return make_lease(*this, sequence, std::move(blocks), num_cached);
}

void LedgerPool::publish(KvLease& lease, std::span<const PrefixKey> keys) {
  if (options_.prefix_table.empty()) return;
  TANDEM_CHECK(keys.size() <= lease.blocks().size(), "only blocks of the lease are published");
  for (auto index = lease.num_cached(); index < keys.size(); ++index) {
    BlockId& block = block_of(lease, index);
    if (const auto taken = cache_.find(keys[index])) {
      cache_.pin(*taken);
      retire({&block, 1});
      block = *taken;
    } else {
      cache_.insert(block, keys[index]);
      accounts_.front()->holder.mark_published(block);
    }
    set_num_cached(lease, index + 1);
  }
}

void LedgerPool::flush_cache() { retire(cache_.clear()); }

// The last block first: when memory is short, the ends of a prefix go before its beginning, which others may share.
void LedgerPool::give_back(std::span<const BlockId> blocks, std::uint32_t num_cached, LeaseEnd end) {
  for (std::size_t i = num_cached; i-- > 0;) {
    if (cache_.unpin(blocks[i])) retire(blocks.subspan(i, 1));
  }
  const auto own = blocks.subspan(num_cached);
  if (end == LeaseEnd::kInUse) {
    retire(own);
  } else if (!own.empty()) {
    accounts_.front()->holder.release(own);
  }
}

void LedgerPool::retire(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  Account& own = *accounts_.front();
  const Stamp stamp = stamp_now(control_);
  if (passed(stamp, control_)) return own.holder.release(blocks);  // nothing is in flight
  own.holder.mark_retiring(blocks);
  own.retiring.insert(own.retiring.end(), blocks.begin(), blocks.end());
  if (own.batches.empty() || own.batches.back().stamp != stamp) own.batches.push_back({.stamp = stamp});
  own.batches.back().num_blocks += blocks.size();
}

void LedgerPool::reclaim() {
  settle();
  for (const auto& account : accounts_) reclaim_account(*account);
  // A recovered holder whose last block is free may open its own handle again.
  for (std::size_t i = accounts_.size(); i-- > 1;) {
    if (!accounts_[i]->retiring.empty()) continue;
    ledger_.driver(accounts_[i]->id).store(0);
    accounts_.erase(accounts_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void LedgerPool::reclaim_account(Account& account) {
  std::size_t num_batches = 0;
  std::size_t num_blocks = 0;
  while (num_batches < account.batches.size() && passed(account.batches[num_batches].stamp, control_)) {
    num_blocks += account.batches[num_batches++].num_blocks;
  }
  if (num_blocks == 0) return;
  account.holder.release(std::span(account.retiring).first(num_blocks));
  account.retiring.erase(account.retiring.begin(), account.retiring.begin() + static_cast<std::ptrdiff_t>(num_blocks));
  account.batches.erase(account.batches.begin(), account.batches.begin() + static_cast<std::ptrdiff_t>(num_batches));
}

KvPoolUsage LedgerPool::usage() const {
  KvPoolUsage usage{.total = ledger_.num_blocks()};
  usage.free = ledger_.budget();
  for (const auto& account : accounts_) usage.retiring += static_cast<std::uint32_t>(account->retiring.size());
  usage.published = cache_.num_blocks();
  usage.evictable = cache_.num_unpinned();
  usage.held = usage.total - std::min(usage.total, usage.free + usage.retiring + usage.published);
  return usage;
}

}  // namespace tandem
