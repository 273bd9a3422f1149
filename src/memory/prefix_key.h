// Names of cached blocks: 128 bits of a SHA-256 chain over all that a block's keys and values depend on. Two blocks of
// one name hold the same bits, and nobody can make another tenant's name without that tenant's salt.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tandem/types.h"

namespace tandem {

// A name for the tokens from a sequence's first to a block's last one, and for all else that the block's keys and
// values depend on: equal names, equal bits.
struct PrefixKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr bool operator==(const PrefixKey&, const PrefixKey&) = default;
};

// What chains start from: the model as this pool stores it (weights, KV type) and the tenant's salt.
PrefixKey prefix_root(std::string_view model, std::string_view salt);

// The name of the block that holds `tokens` after the blocks that `parent` stands for.
PrefixKey prefix_key(const PrefixKey& parent, std::span<const TokenId> tokens);

}  // namespace tandem
