// kv_write over vectors: rounds or quantises the key and value heads of a row to KV memory. Parallel over rows; per
// row reads 8 bytes and writes 2 elements for each of num_kv_heads * head_dim.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/octet.h"
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

// q8_0: the scale is the largest magnitude / 127 rounded to f16, and a quant is x divided by the scale as rounded. A
// block with a NaN in it, or with a scale beyond f16, holds no finite value.
template <class V>
void round_head(const float* from, Q8Row to, int dim) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256 most = _mm256_set1_ps(127.0F);
  const __m256 least = _mm256_set1_ps(-127.0F);
  for (int first = 0; first < dim; first += kQ8Block) {
    const int end = std::min(first + kQ8Block, dim);
    __m256i by8 = _mm256_setzero_si256();  // magnitudes ordered by their bits: NaN is the largest
    for (int i = first; i < end; i += 8) {
      by8 = _mm256_max_epi32(by8, _mm256_and_si256(_mm256_castps_si256(Octet::load(from + i).v), magnitude));
    }
    __m128i largest = _mm_max_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
    largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0x4E));
    largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0xB1));
    const Half scale = Octet::to_half(_mm_cvtss_f32(_mm_castsi128_ps(largest)) / 127.0F);
    to.scales[first / kQ8Block] = scale;
    const __m256 step = _mm256_set1_ps(Octet::to_float(scale));
    const __m256 usable = _mm256_cmp_ps(step, _mm256_setzero_ps(), _CMP_GT_OQ);
    for (int i = first; i < end; i += 8) {
      const __m256 quant = _mm256_and_ps(_mm256_div_ps(Octet::load(from + i).v, step), usable);
      Octet::store(to.quants + i, {_mm256_max_ps(least, _mm256_min_ps(most, quant))});
    }
  }
}

template <class V, class Row>
void write_kv_row(const KvWriteArgs& args, std::int64_t row, BlockId block, std::int32_t token) {
  const KvLayout& layout = args.kv.layout;
  const auto to = [&](KvPlane plane, std::int32_t head) {
    return kv_row<Row>(layout, kv_head(args.kv, block, args.layer, plane, head), token);
  };
  const float* key = args.qkv.f32(row) + std::int64_t{args.num_heads} * layout.head_dim;
  const float* value = key + std::int64_t{layout.num_kv_heads} * layout.head_dim;
  for (std::int32_t h = 0; h < layout.num_kv_heads; ++h, key += layout.head_dim, value += layout.head_dim) {
    round_head<V>(key, to(KvPlane::kKey, h), layout.head_dim);
    round_head<V>(value, to(KvPlane::kValue, h), layout.head_dim);
  }
}

// Rows [begin, end) of the batch.
template <class V, class Row>
void write_kv_range(const KvWriteArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int32_t block_tokens = args.kv.layout.block_tokens;
  for (const SequenceRows& sequence : args.sequences) {
    const std::int64_t first = std::max<std::int64_t>(begin, sequence.first_row);
    const std::int64_t last = std::min<std::int64_t>(end, std::int64_t{sequence.first_row} + sequence.num_rows);
    for (std::int64_t row = first; row < last; ++row) {
      const std::int32_t position = sequence.position + static_cast<std::int32_t>(row - sequence.first_row);
      const BlockId block = args.blocks[static_cast<std::size_t>(sequence.first_block + position / block_tokens)];
      write_kv_row<V, Row>(args, row, block, position % block_tokens);
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
      case DType::kF16: return write_kv_range<V, Half*>(args, begin, end);
      case DType::kBF16: return write_kv_range<V, BFloat*>(args, begin, end);
      case DType::kF32: return write_kv_range<V, float*>(args, begin, end);
      case DType::kQ8_0: return write_kv_range<V, Q8Row>(args, begin, end);
      default: TANDEM_CHECK(false, "KV memory holds f32, f16, bf16 or q8_0");
    }
  });
}

}  // namespace tandem::cpu
