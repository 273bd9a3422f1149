// The merge loop of byte-pair encoding over token ids: the pair of lowest rank first, the leftmost of equals.
// Immutable after construction and shared by all threads; scratch space belongs to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tandem/types.h"

namespace tandem {

struct Merge {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t rank = kNone;
  TokenId result = 0;
};

class Merges final {
 public:
  // Working memory that a caller keeps between calls, so that pieces do not each allocate.
  struct Scratch {
    struct Symbol {
      TokenId id = 0;
      std::uint32_t previous = 0;
      std::uint32_t next = 0;
      Merge with_next;  // rank kNone: none, or this symbol is gone
    };
    std::vector<Merge> short_merges;
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;
  };

  void reserve(std::size_t num_merges) { by_pair_.reserve(num_merges); }
  // A pair given twice has its last rank.
  void add(TokenId left, TokenId right, Merge merge) { by_pair_[key(left, right)] = merge; }

  // Merges `ids` as far as they go, in place. At most 2^31 ids. O(n log n).
  void apply(std::vector<TokenId>& ids, Scratch& scratch) const;

 private:
  static std::uint64_t key(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
  }
  Merge find(TokenId left, TokenId right) const {
    const auto it = by_pair_.find(key(left, right));
    return it == by_pair_.end() ? Merge{} : it->second;
  }
  void apply_short(std::vector<TokenId>& ids, std::vector<Merge>& merges) const;
  void apply_long(std::vector<TokenId>& ids, Scratch& scratch) const;

  absl::flat_hash_map<std::uint64_t, Merge> by_pair_;
};

}  // namespace tandem
