// The memory and the "model" of fake lanes: a pool whose keys and values are the tokens themselves, and the token that
// follows a sequence as a hash of it. Each place remembers who wrote it and as which position, and each block who uses
// it now, so that a block with two writers, or one given away while a step still reads it, is a failure even where the
// tokens happen to be the right ones. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tandem/types.h"

namespace tandem::test {

inline constexpr TokenId kFakeVocab = 120;  // ASCII to a tokenizer of bytes

// The token that follows `tokens`.
inline TokenId fake_next(const std::vector<TokenId>& tokens) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const TokenId token : tokens) hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x100000001B3ULL;
  return static_cast<TokenId>((hash >> 20U) % kFakeVocab);
}

// What all lanes share: the pool's memory.
class FakeKv {
 public:
  enum class Use : std::uint32_t { kRead = 1, kWrite = 1U << 16U };

  FakeKv(std::uint32_t num_blocks, std::uint32_t tokens_per_block)
      : block_tokens(tokens_per_block),
        entries_(std::size_t{num_blocks} * tokens_per_block),
        uses_(num_blocks),
        work_(kCountedSequences) {}

  // From the start of a step to its end. A block that is written is nobody else's meanwhile.
  void begin_use(SequenceId sequence, BlockId block, Use use) {
    const std::uint32_t before = uses_[block.value].fetch_add(static_cast<std::uint32_t>(use));
    const bool alone = use == Use::kWrite ? before == 0 : before < static_cast<std::uint32_t>(Use::kWrite);
    check(alone, "uses a block that another step or item writes, or writes one that another uses", sequence, block);
  }
  void end_use(BlockId block, Use use) { uses_[block.value].fetch_sub(static_cast<std::uint32_t>(use)); }

  void write(SequenceId sequence, BlockId block, std::uint32_t position, TokenId token) {
    const std::uint32_t offset = position % block_tokens;
    // Blocks are shared whole only, so that a sequence that writes into one has written all of it.
    if (offset > 0) {
      const Entry before = at(block, offset - 1).load();
      check(before.sequence == low(sequence) && before.position == position - 1,
            "goes on in a block whose beginning is not its own", sequence, block);
    }
    at(block, offset) = {low(sequence), position, static_cast<std::uint32_t>(token)};
    if (low(sequence) < kCountedSequences) ++work_[low(sequence)];
  }
  TokenId read(SequenceId sequence, BlockId block, std::uint32_t position) {
    const Entry entry = at(block, position % block_tokens).load();
    check(entry.position == position, "finds another position than it looks for", sequence, block);
    check(entry.sequence == at(block, 0).load().sequence, "reads a block of two writers", sequence, block);
    return static_cast<TokenId>(entry.token);
  }
  // Tokens computed for a sequence so far, all its lives together. Of the first 1,024 ids.
  std::uint32_t work(std::uint64_t sequence) const { return work_.at(sequence); }

  const std::uint32_t block_tokens;

 private:
  static constexpr std::size_t kCountedSequences = 1024;
  struct Entry {
    std::uint32_t sequence = 0;
    std::uint32_t position : 24 = 0;
    std::uint32_t token : 8 = 0;
  };
  static_assert(kFakeVocab <= 256 && std::atomic<Entry>::is_always_lock_free);

  static std::uint32_t low(SequenceId sequence) { return static_cast<std::uint32_t>(sequence.value); }
  std::atomic<Entry>& at(BlockId block, std::uint32_t offset) {
    return entries_[std::size_t{block.value} * block_tokens + offset];
  }
  void check(bool good, const char* fault, SequenceId sequence, BlockId block) {
    constexpr std::uint32_t kReported = 5;  // one fault brings many
    if (!good && faults_++ < kReported) {
      ADD_FAILURE() << "sequence " << sequence.value << " " << fault << ": block " << block.value;
    }
  }

  std::vector<std::atomic<Entry>> entries_;
  std::vector<std::atomic<std::uint32_t>> uses_, work_;
  std::atomic<std::uint32_t> faults_{0};
};

}  // namespace tandem::test
