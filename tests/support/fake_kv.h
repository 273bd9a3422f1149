// The memory and the "model" of fake lanes: a pool whose keys and values are the tokens themselves, and the token that
// follows a sequence as a hash of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

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
struct FakeKv {
  FakeKv(std::uint32_t num_blocks, std::uint32_t tokens_per_block)
      : block_tokens(tokens_per_block), tokens(std::size_t{num_blocks} * tokens_per_block) {}
  std::uint32_t block_tokens;
  std::vector<std::atomic<TokenId>> tokens;
  std::atomic<TokenId>& at(BlockId block, std::uint32_t offset) {
    return tokens[std::size_t{block.value} * block_tokens + offset];
  }
};

}  // namespace tandem::test
