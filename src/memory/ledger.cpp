#include "memory/ledger.h"

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr int kOperationBits = 36;
constexpr std::uint64_t kOperationMask = (std::uint64_t{1} << kOperationBits) - 1;
constexpr std::uint32_t kNoHolder = 15;
static_assert(kNumHolders <= kNoHolder);

// When the budget promised blocks that are not there, the ledger is damaged. A search takes that for certain after so
// many passes over all words in vain and so much time: other holders race for a few words in far less of either. Both
// count, since a small ledger is passed over in no time and a stopped process loses time without looking.
constexpr std::uint64_t kHopelessPasses = 20;
constexpr std::int64_t kHopelessNs = 250'000'000;

constexpr std::uint64_t budget_word(std::uint32_t blocks, std::uint32_t holder, std::uint64_t operation) {
  return std::uint64_t{blocks} << 40 | std::uint64_t{holder} << kOperationBits | (operation & kOperationMask);
}
constexpr std::uint32_t budget_blocks(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 40); }
constexpr std::uint32_t budget_holder(std::uint64_t word) { return (word >> kOperationBits) & 15; }

// Operation numbers are compared on their ring of 2^36, which no stale writer can lag half of.
constexpr bool newer(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t distance = (a - b) & kOperationMask;
  return distance != 0 && distance < (kOperationMask >> 1);
}

constexpr int kStateShift = 62;
constexpr int kHolderShift = 56;
constexpr std::uint64_t kStateMask = std::uint64_t{3} << kStateShift;

constexpr std::uint64_t pack(const BlockWord& word) {
  return std::uint64_t{static_cast<std::uint8_t>(word.state)} << kStateShift |
         std::uint64_t{word.holder & 63} << kHolderShift | std::uint64_t{word.generation & 0xffffff} << 32 |
         word.sequence;
}
constexpr BlockWord unpack(std::uint64_t word) {
  return {.state = static_cast<BlockState>(word >> kStateShift),
          .holder = static_cast<std::uint32_t>(word >> kHolderShift) & 63,
          .generation = static_cast<std::uint32_t>(word >> 32) & 0xffffff,
          .sequence = static_cast<std::uint32_t>(word)};
}

}  // namespace

std::size_t Ledger::bytes(std::uint32_t num_blocks) {
  return sizeof(LedgerHeader) + std::size_t{num_blocks} * sizeof(std::atomic<std::uint64_t>);
}

absl::Status Ledger::init(std::span<std::byte> memory, std::uint32_t num_blocks) {
  if (num_blocks == 0 || num_blocks > kMaxBlocks) {
    return absl::InvalidArgumentError(fmt::format("a KV pool has 1 to {} blocks, not {}", kMaxBlocks, num_blocks));
  }
  if (memory.size() < bytes(num_blocks) ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(LedgerHeader) != 0) {
    return absl::InvalidArgumentError(fmt::format("a ledger of {} blocks needs {} bytes aligned to {}, got {}",
                                                  num_blocks, bytes(num_blocks), alignof(LedgerHeader), memory.size()));
  }
  auto* header = new (memory.data()) LedgerHeader{};
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data() + sizeof(LedgerHeader));
  for (std::uint32_t i = 0; i < num_blocks; ++i) new (words + i) std::atomic<std::uint64_t>(0);
  header->num_blocks = num_blocks;
  header->budget.store(budget_word(num_blocks, kNoHolder, 0), std::memory_order_relaxed);
  header->format = LedgerHeader::kFormat;
  header->magic = LedgerHeader::kMagic;
  return absl::OkStatus();
}

absl::StatusOr<Ledger> Ledger::open(std::span<std::byte> memory) {
  if (memory.size() < sizeof(LedgerHeader) ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(LedgerHeader) != 0) {
    return absl::InvalidArgumentError(fmt::format("a ledger needs at least {} bytes aligned to {}, got {}",
                                                  sizeof(LedgerHeader), alignof(LedgerHeader), memory.size()));
  }
  auto* header = std::launder(reinterpret_cast<LedgerHeader*>(memory.data()));
  if (header->magic != LedgerHeader::kMagic) {
    return absl::FailedPreconditionError(
        fmt::format("the region that should hold the KV pool's ledger begins with {:#x} instead of {:#x}: no tandem "
                    "made it; restart the owner",
                    header->magic, LedgerHeader::kMagic));
  }
  if (header->format != LedgerHeader::kFormat) {
    return absl::FailedPreconditionError(
        fmt::format("the KV pool's ledger has format {} and this tandem uses format {}: it was made by another version "
                    "of tandem; restart the owner",
                    header->format, LedgerHeader::kFormat));
  }
  const std::uint32_t num_blocks = header->num_blocks;
  if (num_blocks == 0 || num_blocks > kMaxBlocks || memory.size() < bytes(num_blocks)) {
    return absl::DataLossError(
        fmt::format("ledger of {} bytes claims {} blocks; restart the owner", memory.size(), num_blocks));
  }
  auto* words = std::launder(reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data() + sizeof(LedgerHeader)));
  return Ledger(*header, words, num_blocks);
}

std::uint32_t Ledger::budget() const { return budget_blocks(header_->budget.load(std::memory_order_acquire)); }

BlockWord Ledger::word(std::uint32_t block) const { return unpack(words_[block].load(std::memory_order_acquire)); }

absl::StatusOr<LedgerHolder> LedgerHolder::resume(const Ledger& ledger, LaneId holder, std::vector<BlockId>& retiring,
                                                  std::vector<BlockId>* published) {
  TANDEM_CHECK(holder.value < kNumHolders, "a holder is a lane or the scheduler");
  LedgerHolder self(ledger, holder);
  const HolderJournal& journal = ledger.header_->journals[holder.value];

  // The budget word first: if the last operation is not on it any more, its confirmation was stored before.
  const std::uint64_t budget = ledger.header_->budget.load(std::memory_order_acquire);
  self.operation_ = journal.operation.load(std::memory_order_acquire);
  const std::uint64_t last = self.operation_ & kOperationMask;
  const bool on_word = budget_holder(budget) == holder.value && (budget & kOperationMask) == last;
  const bool happened = on_word || journal.confirmed.load(std::memory_order_acquire) == last;
  const auto& in_hand = happened ? journal.after : journal.before;
  self.in_hand_ = in_hand[last & 1].load(std::memory_order_relaxed);

  const std::size_t first = retiring.size();
  std::size_t found = 0;
  for (std::uint32_t i = 0; i < ledger.num_blocks(); ++i) {
    const BlockWord word = ledger.word(i);
    if (word.state == BlockState::kFree || word.holder != holder.value) continue;
    (published != nullptr && word.state == BlockState::kPublished ? *published : retiring).push_back({i});
    ++found;
  }
  if (found > self.in_hand_) {
    return absl::DataLossError(fmt::format("ledger: holder {} has {} blocks but reserved {}; restart the owner",
                                           holder.value, found, self.in_hand_));
  }
  self.mark_retiring(std::span(retiring).subspan(first));
  // What it had reserved and not claimed, or freed and not given back.
  self.refund(self.in_hand_ - static_cast<std::uint32_t>(found));
  return self;
}

absl::Status LedgerHolder::take(SequenceId sequence, std::uint32_t floor, std::span<BlockId> out) {
  const auto n = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), kMaxBlocks));
  if (out.size() > ledger_.num_blocks() || !spend(n, floor)) {
    return absl::ResourceExhaustedError(
        fmt::format("reserve {} KV blocks for sequence {}: {} of {} are free, {} of them kept for decode", out.size(),
                    sequence.value, ledger_.budget(), ledger_.num_blocks(), floor));
  }
  const std::uint32_t claimed = claim(sequence, out);
  if (claimed == n) return absl::OkStatus();
  release(out.first(claimed));  // the rest of the budget stays spent: the blocks it stood for do not exist
  return absl::DataLossError(
      fmt::format("ledger: {} blocks were reserved but only {} are free; restart the owner", n, claimed));
}

void LedgerHolder::begin(std::uint32_t in_hand_after) {
  HolderJournal& journal = ledger_.header_->journals[holder_];
  ++operation_;
  // The other slot still describes the operation before, until this one's number is out.
  journal.before[operation_ & 1].store(in_hand_, std::memory_order_relaxed);
  journal.after[operation_ & 1].store(in_hand_after, std::memory_order_relaxed);
  journal.operation.store(operation_, std::memory_order_release);
}

void LedgerHolder::confirm(std::uint64_t budget) {
  const std::uint32_t holder = budget_holder(budget);
  if (holder >= kNumHolders || holder == holder_) return;  // one's own last operation is in `before` of the next
  std::atomic<std::uint64_t>& confirmed = ledger_.header_->journals[holder].confirmed;
  const std::uint64_t operation = budget & kOperationMask;
  std::uint64_t seen = confirmed.load(std::memory_order_acquire);
  while (newer(operation, seen) && !confirmed.compare_exchange_weak(seen, operation, std::memory_order_acq_rel)) {
  }
}

bool LedgerHolder::spend(std::uint32_t n, std::uint32_t floor) {
  std::atomic<std::uint64_t>& budget = ledger_.header_->budget;
  std::uint64_t word = budget.load(std::memory_order_acquire);
  if (n == 0) return true;
  if (budget_blocks(word) < std::uint64_t{n} + floor) return false;
  begin(in_hand_ + n);
  do {
    if (budget_blocks(word) < std::uint64_t{n} + floor) return false;  // the operation begun stays one that never was
    confirm(word);
  } while (!budget.compare_exchange_weak(word, budget_word(budget_blocks(word) - n, holder_, operation_),
                                         std::memory_order_acq_rel, std::memory_order_acquire));
  in_hand_ += n;
  return true;
}

void LedgerHolder::refund(std::uint32_t n) {
  if (n == 0) return;
  std::atomic<std::uint64_t>& budget = ledger_.header_->budget;
  std::uint64_t word = budget.load(std::memory_order_acquire);
  begin(in_hand_ - n);
  do {
    TANDEM_CHECK(budget_blocks(word) + n <= ledger_.num_blocks(), "no more blocks come free than there are");
    confirm(word);
  } while (!budget.compare_exchange_weak(word, budget_word(budget_blocks(word) + n, holder_, operation_),
                                         std::memory_order_acq_rel, std::memory_order_acquire));
  in_hand_ -= n;
}

bool LedgerHolder::claim_one(SequenceId sequence, std::uint32_t block) {
  std::uint64_t seen = ledger_.words_[block].load(std::memory_order_relaxed);
  if ((seen & kStateMask) != 0) return false;
  const std::uint64_t mine = pack({.state = BlockState::kHeld,
                                   .holder = holder_,
                                   .generation = unpack(seen).generation + 1,
                                   .sequence = static_cast<std::uint32_t>(sequence.value)});
  return ledger_.words_[block].compare_exchange_strong(seen, mine, std::memory_order_acq_rel);
}

std::uint32_t LedgerHolder::claim(SequenceId sequence, std::span<BlockId> out) {
  std::uint32_t claimed = 0;
  while (claimed < out.size() && num_recent_ > 0) {
    const std::uint32_t block = recent_[--recent_end_ % kMaxRecent];
    --num_recent_;
    if (claim_one(sequence, block)) out[claimed++] = BlockId{block};
  }
  return claimed == out.size() ? claimed : claimed + claim_anywhere(sequence, out.subspan(claimed));
}

std::uint32_t LedgerHolder::claim_anywhere(SequenceId sequence, std::span<BlockId> out) {
  const std::uint32_t num_blocks = ledger_.num_blocks();
  std::uint32_t at = ledger_.header_->hint.load(std::memory_order_relaxed) % num_blocks;
  std::uint32_t claimed = 0;
  std::uint64_t in_vain = 0;  // words since the last block that was found
  std::int64_t in_vain_since_ns = 0;
  while (claimed < out.size()) {
    if (claim_one(sequence, at)) {
      out[claimed++] = BlockId{at};
      in_vain = 0;
    } else if (++in_vain == num_blocks) {
      in_vain_since_ns = steady_now_ns();
    } else if (in_vain >= kHopelessPasses * num_blocks && in_vain % num_blocks == 0 &&
               steady_now_ns() - in_vain_since_ns > kHopelessNs) {
      break;
    }
    at = at + 1 == num_blocks ? 0 : at + 1;
  }
  ledger_.header_->hint.store(at, std::memory_order_relaxed);
  return claimed;
}

void LedgerHolder::mark(std::span<const BlockId> blocks, BlockState state) {
  std::atomic<std::uint64_t>* const words = ledger_.words_;
  const std::uint64_t state_bits = std::uint64_t{static_cast<std::uint8_t>(state)} << kStateShift;
  for (const BlockId block : blocks) {
    const std::uint64_t word = words[block.value].load(std::memory_order_relaxed);  // nobody else writes it
    TANDEM_CHECK((word & kStateMask) != 0 && (word >> kHolderShift & 63) == holder_,
                 "a lease names blocks its holder holds");
    words[block.value].store((word & ~kStateMask) | state_bits, std::memory_order_release);
  }
}

void LedgerHolder::release(std::span<const BlockId> blocks) {
  mark(blocks, BlockState::kFree);
  refund(static_cast<std::uint32_t>(blocks.size()));
  const std::span<const BlockId> kept = blocks.first(std::min<std::size_t>(blocks.size(), kMaxRecent));
  for (std::size_t i = kept.size(); i-- > 0;) recent_[recent_end_++ % kMaxRecent] = kept[i].value;
  num_recent_ = std::min(num_recent_ + static_cast<std::uint32_t>(kept.size()), kMaxRecent);
}

}  // namespace tandem
