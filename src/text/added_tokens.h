// Finds control and user-defined tokens in a text: leftmost, then longest, as Hugging Face's added tokens are.
// A byte trie, immutable after construction and shared by all threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tandem/tokenizer.h"

namespace tandem {

struct AddedMatch {
  std::size_t begin = 0;
  std::size_t end = 0;
  TokenId id = 0;
};

class AddedTokens final {
 public:
  // Takes the tokens of those two kinds; empty ones are never matched. `kinds` is as long as `tokens`.
  AddedTokens(std::span<const std::string> tokens, std::span<const TokenKind> kinds);

  // Matches in order, disjoint. Control tokens only where they overlap none of `user_spans` (sorted, disjoint):
  // where one does, a shorter or later token may still match.
  std::vector<AddedMatch> find_all(std::string_view text, std::span<const TextSpan> user_spans) const;

 private:
  using NodeIdx = std::uint32_t;
  struct Node {
    TokenId id = -1;  // of the token that ends here; -1: none
    bool control = false;
  };

  // Key: node << 8 | next byte.
  absl::flat_hash_map<std::uint64_t, NodeIdx> edges_;
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};  // bytes that begin a token
};

}  // namespace tandem
