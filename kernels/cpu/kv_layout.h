// Where a head's rows of keys or values lie in KV memory, as element offsets (KvLayout: block-major).
#pragma once

#include <cstdint>

#include "tandem/backend.h"

namespace tandem::cpu {

enum class KvPlane : std::uint8_t { kKey = 0, kValue = 1 };

// Offset of the first token of `block` for one head of one layer.
inline std::int64_t kv_offset(const KvLayout& layout, BlockId block, std::int32_t layer, KvPlane plane,
                              std::int32_t kv_head) {
  return block.value * layout.block_elements() +
         (2 * std::int64_t{layer} + static_cast<int>(plane)) * layout.plane_elements() +
         kv_head * layout.head_elements();
}

}  // namespace tandem::cpu
