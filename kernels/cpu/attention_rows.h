// The rows of keys and values that one tile of attention reads: where they lie, and their wide copies.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/octet.h"
#include "kernels/cpu/vec_math.h"
#include "tandem/backend.h"

namespace tandem::cpu {

// (Templates over V even where nothing depends on it: one compiled for AVX-512 must not pass for the other.)

// Where the rows of a tile's n keys and values lie.
template <class Row, int kCapacity = kTileKeys>
struct TileRows {
  int n = 0;
  Row keys[kCapacity];
  Row values[kCapacity];
};

template <class V, class T>
[[gnu::always_inline]] inline void prefetch(const T* row, int dim) {
  constexpr int kLine = 64 / static_cast<int>(sizeof(T));
  for (int i = 0; i < dim; i += kLine) _mm_prefetch(reinterpret_cast<const char*>(row + i), _MM_HINT_T0);
}
template <class V>
[[gnu::always_inline]] inline void prefetch(Q8Row row, int dim) {
  prefetch<V>(row.quants, dim);
  _mm_prefetch(reinterpret_cast<const char*>(row.scales), _MM_HINT_T0);
}

// As many lanes of a row as V has, or 8, from element i on, a multiple of as many.
template <class V, class T>
[[gnu::always_inline]] inline V load_row(const T* row, int i) {
  return V::load(row + i);
}
template <class V>
[[gnu::always_inline]] inline V load_row(Q8Row row, int i) {
  return V::load(row.quants + i) * V::set(Octet::to_float(row.scales[i / kQ8Block]));
}
template <class V, class T>
[[gnu::always_inline]] inline V load_row8(const T* row, int i) {
  return V::load8(row + i);
}
template <class V>
[[gnu::always_inline]] inline V load_row8(Q8Row row, int i) {
  return V::load8(row.quants + i) * V::set(Octet::to_float(row.scales[i / kQ8Block]));
}

// Finds the rows at positions from `start` on that the item attends to, a tile of them at most.
template <class V, class Row, int kCapacity>
void locate(const AttentionArgs& args, const AttentionItem& item, int start, TileRows<Row, kCapacity>& tile) {
  const KvLayout& layout = args.kv.layout;
  const SequenceRows& sequence = args.sequences[static_cast<std::size_t>(item.sequence)];
  const int n = std::clamp(sequence.position + item.first_row + item.num_rows - start, 0, kCapacity);
  int token = start % layout.block_tokens;
  auto block = static_cast<std::size_t>(sequence.first_block + start / layout.block_tokens);
  tile.n = n;
  for (int i = 0; i < n; ++block, token = 0) {
    std::byte* const keys = kv_head(args.kv, args.blocks[block], args.layer, KvPlane::kKey, item.kv_head);
    std::byte* const values = kv_head(args.kv, args.blocks[block], args.layer, KvPlane::kValue, item.kv_head);
    for (; token < layout.block_tokens && i < n; ++token, ++i) {
      tile.keys[i] = kv_row<Row>(layout, keys, token);
      tile.values[i] = kv_row<Row>(layout, values, token);
    }
  }
}

// Finds the rows to fetch while the item's tile at `start` is worked on: its next ones, else the first of `next`.
template <class V, class Row, int kCapacity>
void locate_ahead(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, int start,
                  TileRows<Row, kCapacity>& tile) {
  tile.n = 0;
  start += kCapacity;
  if (item.partial < 0 || start < (item.chunk + 1) * kChunkKeys) locate<V>(args, item, start, tile);
  if (tile.n == 0 && next != nullptr) locate<V>(args, *next, next->chunk * kChunkKeys, tile);
}

// Transposes a tile's keys to [padded, kTileKeys] and widens its values to [n, padded].
// Past n the keys are repeats: their scores are masked.
template <class V, class Row>
void widen(const HeadShape& head, const TileRows<Row>& tile, float* keys, float* values) {
  for (int k = 0; k < tile.n; ++k, values += head.padded) {
    for (int c = 0; c < head.full; ++c) V::store(values + 16 * c, load_row<V>(tile.values[k], 16 * c));
    if (head.half_tail) V::store(values + 16 * head.full, load_row8<V>(tile.values[k], 16 * head.full));
  }
  for (int first = 0; first < kTileKeys; first += 8) {
    for (int d = 0; d < head.padded; d += 8) {
      __m256 eight[8];
      for (int k = 0; k < 8; ++k) {
        const Row key = tile.keys[std::min(first + k, tile.n - 1)];
        eight[k] = d < head.dim ? load_row<Octet>(key, d).v : Octet::zero().v;
      }
      transpose_8<V>(eight, keys + d * kTileKeys + first, kTileKeys);
    }
  }
}

}  // namespace tandem::cpu
