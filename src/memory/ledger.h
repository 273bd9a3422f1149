// The shared ledger behind memory/kv_pool.h: one 64-bit word per block, a budget word, and a journal per holder.
// To take n blocks a holder first takes n from the budget, in one compare-and-swap that also decides (this is the
// atomic reserve: all or nothing), then claims any n free words. A word is made free before its budget is given back,
// so budget + budget taken but not yet claimed <= free words always, and a claim finds its words.
// A holder may be killed between any two stores. Its journal says how much budget it had before and after its last
// budget operation, and whether that operation happened can be told: the budget word carries the number of the last
// one, and whoever replaces it first confirms it in the journal. So resume() restores the exact budget while others go
// on. Operation numbers and block generations make stale compare-and-swaps fail (ABA). Each holder tries first those
// words that it freed last, and then from a shared hint on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/types.h"

namespace tandem {

inline constexpr std::uint32_t kNumHolders = kMaxLanes + 1;
inline constexpr std::uint32_t kMaxBlocks = (1U << 24) - 1;

enum class BlockState : std::uint8_t { kFree, kHeld, kRetiring, kPublished };

// Fields of a block's word: state 2 bits, holder 6, generation 24 (counts claims), sequence 32 (its low bits).
struct BlockWord {
  BlockState state = BlockState::kFree;
  std::uint32_t holder = 0;
  std::uint32_t generation = 0;
  std::uint32_t sequence = 0;
};

struct alignas(64) HolderJournal {
  std::atomic<std::uint64_t> operation{0};  // number of the last budget operation begun; writer: the holder
  std::atomic<std::uint32_t> before[2]{};   // budget in hand around operation k, in slot k % 2
  std::atomic<std::uint32_t> after[2]{};
  std::atomic<std::uint32_t> driver{0};  // 1 + the holder whose handle acts for this one; 0: none
  // Highest number known to have happened; writers: the others. On a line that the holder does not touch.
  alignas(64) std::atomic<std::uint64_t> confirmed{0};
};

struct LedgerHeader {
  static constexpr std::uint64_t kMagic = 0x54444d4c45444731;
  static constexpr std::uint32_t kFormat = 2;  // one more with each change of what lies in a ledger
  std::uint64_t magic = 0;
  std::uint32_t format = 0;
  std::uint32_t num_blocks = 0;
  alignas(64) std::atomic<std::uint64_t> budget{0};  // blocks 24 bits, holder 4, operation number 36
  alignas(64) std::atomic<std::uint32_t> hint{0};  // where the next claim starts to look
  HolderJournal journals[kNumHolders];
};

// A checked view of a ledger in shared memory. open() fails with FailedPrecondition where there is no ledger, or one of
// another format, and with DataLoss where its numbers cannot be.
class Ledger final {
 public:
  static std::size_t bytes(std::uint32_t num_blocks);
  static absl::Status init(std::span<std::byte> memory, std::uint32_t num_blocks);
  static absl::StatusOr<Ledger> open(std::span<std::byte> memory);

  std::uint32_t num_blocks() const { return num_blocks_; }
  std::uint32_t budget() const;
  BlockWord word(std::uint32_t block) const;
  std::atomic<std::uint32_t>& driver(LaneId holder) const { return header_->journals[holder.value].driver; }

 private:
  friend class LedgerHolder;
  Ledger(LedgerHeader& header, std::atomic<std::uint64_t>* words, std::uint32_t num_blocks)
      : header_(&header), words_(words), num_blocks_(num_blocks) {}

  LedgerHeader* header_;
  std::atomic<std::uint64_t>* words_;
  std::uint32_t num_blocks_;  // a private copy, checked against the span
};

// Acts for one holder; one thread, and no other object for the same holder in any process.
class LedgerHolder final {
 public:
  // Takes up where the holder's earlier process ended: its words become retiring and are listed in `retiring`, except
  // that published ones are listed in `published` if that is given. Its budget is made to match. DataLoss: it cannot.
  static absl::StatusOr<LedgerHolder> resume(const Ledger& ledger, LaneId holder, std::vector<BlockId>& retiring,
                                             std::vector<BlockId>* published = nullptr);

  // Fills `out` and leaves at least `floor` in the budget, or changes nothing and returns ResourceExhausted. First come
  // the blocks it released last, in that order, unless somebody took them; then others, ascending except for one wrap.
  absl::Status take(SequenceId sequence, std::uint32_t floor, std::span<BlockId> out);
  void mark_retiring(std::span<const BlockId> blocks) { mark(blocks, BlockState::kRetiring); }
  // The block's name is written already.
  void mark_published(BlockId block) { mark({&block, 1}, BlockState::kPublished); }
  void release(std::span<const BlockId> blocks);

 private:
  static constexpr std::uint32_t kMaxRecent = 4096;  // a power of two

  LedgerHolder(const Ledger& ledger, LaneId holder) : ledger_(ledger), holder_(holder.value), recent_(kMaxRecent) {}
  bool spend(std::uint32_t n, std::uint32_t floor);
  void refund(std::uint32_t n);
  void begin(std::uint32_t in_hand_after);
  void confirm(std::uint64_t budget_word);
  std::uint32_t claim(SequenceId sequence, std::span<BlockId> out);
  std::uint32_t claim_anywhere(SequenceId sequence, std::span<BlockId> out);
  bool claim_one(SequenceId sequence, std::uint32_t block);
  void mark(std::span<const BlockId> blocks, BlockState state);

  Ledger ledger_;
  std::uint32_t holder_;
  std::uint64_t operation_ = 0;
  std::uint32_t in_hand_ = 0;  // budget taken and not given back
  // What it released and has not tried since, a ring. Only a hint: the words say what is free.
  std::vector<std::uint32_t> recent_;
  std::uint32_t recent_end_ = 0;
  std::uint32_t num_recent_ = 0;
};

}  // namespace tandem
