// kv_write over vectors: rounds the key and value heads of a row to KV memory. Parallel over rows; per row reads
// 8 bytes and writes 2 elements for each of num_kv_heads * head_dim.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"
#include "tandem/backend.h"

namespace tandem::cpu {

template <class V, class T>
void round_head(const float* from, T* to, int dim) {
  int i = 0;
  for (; i + 16 <= dim; i += 16) V::store(to + i, V::load(from + i));
  if (i < dim) V::store8(to + i, V::load8(from + i));
}

template <class V, class T>
void write_kv_row(const KvWriteArgs& args, std::int64_t row, BlockId block, std::int32_t token) {
  const KvLayout& layout = args.kv.layout;
  T* base = reinterpret_cast<T*>(args.kv.base) + std::int64_t{token} * layout.head_dim;
  const float* key = args.qkv.f32(row) + std::int64_t{args.num_heads} * layout.head_dim;
  const float* value = key + std::int64_t{layout.num_kv_heads} * layout.head_dim;
  for (std::int32_t h = 0; h < layout.num_kv_heads; ++h, key += layout.head_dim, value += layout.head_dim) {
    round_head<V>(key, base + kv_offset(layout, block, args.layer, KvPlane::kKey, h), layout.head_dim);
    round_head<V>(value, base + kv_offset(layout, block, args.layer, KvPlane::kValue, h), layout.head_dim);
  }
}

// Rows [begin, end) of the batch.
template <class V, class T>
void write_kv_range(const KvWriteArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int32_t block_tokens = args.kv.layout.block_tokens;
  for (const SequenceRows& sequence : args.sequences) {
    const std::int64_t first = std::max<std::int64_t>(begin, sequence.first_row);
    const std::int64_t last = std::min<std::int64_t>(end, std::int64_t{sequence.first_row} + sequence.num_rows);
    for (std::int64_t row = first; row < last; ++row) {
      const std::int32_t position = sequence.position + static_cast<std::int32_t>(row - sequence.first_row);
      const BlockId block = args.blocks[static_cast<std::size_t>(sequence.first_block + position / block_tokens)];
      write_kv_row<V, T>(args, row, block, position % block_tokens);
    }
  }
}

template <class V>
void write_kv_rows(const KvWriteArgs& args, Team& team) {
  const KvLayout& layout = args.kv.layout;
  TANDEM_CHECK(layout.head_dim % 8 == 0, "KV heads are written eight elements at a time");
  const std::int64_t work = std::int64_t{2} * layout.num_kv_heads * layout.head_dim;
  for_rows(team, args.qkv.rows, work, [&args, &layout](std::int64_t begin, std::int64_t end) {
    switch (layout.dtype) {
      case DType::kF16: return write_kv_range<V, Half>(args, begin, end);
      case DType::kBF16: return write_kv_range<V, BFloat>(args, begin, end);
      case DType::kF32: return write_kv_range<V, float>(args, begin, end);
      default: TANDEM_CHECK(false, "KV memory holds f32, f16 or bf16");
    }
  });
}

}  // namespace tandem::cpu
