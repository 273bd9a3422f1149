// Where a head's rows of keys or values lie in KV memory (KvLayout).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/elements.h"
#include "tandem/backend.h"

namespace tandem::cpu {

enum class KvPlane : std::uint8_t { kKey = 0, kValue = 1 };

// The part of `block` that holds one head of one layer.
inline std::byte* kv_head(const KvView& kv, BlockId block, std::int32_t layer, KvPlane plane, std::int32_t head) {
  const KvLayout& layout = kv.layout;
  return kv.base + block.value * layout.block_bytes() +
         (2 * std::int64_t{layer} + static_cast<int>(plane)) * layout.plane_bytes() + head * layout.head_bytes();
}

// A token's row in that part. Row is a pointer to elements, or Q8Row.
template <class Row>
Row kv_row(const KvLayout& layout, std::byte* head, std::int32_t token) {
  const std::int64_t first = std::int64_t{token} * layout.head_dim;
  if constexpr (std::is_same_v<Row, Q8Row>) {
    auto* scales = reinterpret_cast<Half*>(head + std::int64_t{layout.block_tokens} * layout.head_dim);
    return {reinterpret_cast<std::int8_t*>(head) + first, scales + std::int64_t{token} * layout.scales_per_row()};
  } else {
    return reinterpret_cast<Row>(head) + first;
  }
}

}  // namespace tandem::cpu
