// One tile of attention over a Vec: a few keys and values, read as they lie in KV memory, against the queries of one
// item. Holds the loading of rows, the scores, the softmax update and the weighted sum of values, each for a few
// queries and for many. Compiled once per instruction set by the attention_<isa>.cpp files; see kernels/cpu/README.md,
// "Instruction sets".
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/octet.h"
#include "kernels/cpu/vec_math.h"
#include "tandem/backend.h"

namespace tandem::cpu {

// ---- the rows of a tile -------------------------------------------------------------------------

// The rows of keys and values that one tile of attention reads: where they lie, and their wide copies.

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

// ---- scores -------------------------------------------------------------------------------------

// The scores of one tile of keys against a few queries.
// A score is the sum over 16 lanes of dimensions, each a chain of fma in ascending order, added up by the tree of
// sum_lanes; scores_by_dim has the lanes in a register and scores_by_key in 16 sums of their own,
// with equal bits.

// Scores of R queries and n keys as they lie in KV memory: s[r * kTileKeys + key]. Meanwhile fetches the tile
// `ahead` (or null): blocks lie anywhere, so the processor does not foresee them.
template <class V, class Row, int R>
void scores_by_dim(const HeadShape& head, const float* q, const Row* keys, int n, const TileRows<Row>* ahead,
                   float* s) {
  for (int first = 0; first < n; first += 8) {
    __m256 sums[R][8];
    for (int k = 0; k < 8; ++k) {
      V acc[R];
      for (int r = 0; r < R; ++r) acc[r] = V::zero();
      const Row key = keys[first + k < n ? first + k : n - 1];  // past the end a repeat, whose score is masked
      if (ahead != nullptr && first + k < ahead->n) {
        prefetch<V>(ahead->keys[first + k], head.dim);
        prefetch<V>(ahead->values[first + k], head.dim);
      }
      for (int c = 0; c < head.full; ++c) {
        const V x = load_row<V>(key, 16 * c);
        for (int r = 0; r < R; ++r) acc[r] = V::fma(V::load(q + r * head.padded + 16 * c), x, acc[r]);
      }
      if (head.half_tail) {
        const V x = load_row8<V>(key, 16 * head.full);
        for (int r = 0; r < R; ++r) acc[r] = V::fma(V::load(q + r * head.padded + 16 * head.full), x, acc[r]);
      }
      for (int r = 0; r < R; ++r) sums[r][k] = V::fold(acc[r]);
    }
    for (int r = 0; r < R; ++r) sum_lanes_of_8<V>(sums[r], s + r * kTileKeys + first);
  }
}

// ---- values -------------------------------------------------------------------------------------

// What a tile's scores become: a softmax update and a weighted sum of values, and the merge of two such states.

// Turns the first `valid` scores into weights (0 for the others) relative to the new maximum, and returns what
// the old sums must be multiplied by: exactly 1 when the maximum stays.
template <class V>
float softmax_update(float* s, int valid, float* sum, float* maximum) {
  static_assert(kTileKeys == 32);
  const V lowest = V::set(std::numeric_limits<float>::lowest());
  const V a = V::keep_first(V::load(s), valid, lowest);
  const V b = V::keep_first(V::load(s + 16), valid - 16, lowest);
  const V old = V::load(maximum);
  const V largest = V::set(max_lanes(V::max(V::max(a, b), old)));
  const V wa = V::keep_first(exp(a - largest), valid, V::zero());
  const V wb = V::keep_first(exp(b - largest), valid - 16, V::zero());
  V::store(s, wa);
  V::store(s + 16, wb);
  if (V::equal(old, largest) != 0) {  // the usual case: a factor of 1, to the bit
    V::store(sum, V::load(sum) + (wa + wb));
    return 1.0F;
  }
  const V correction = exp(old - largest);
  V::store(maximum, largest);
  V::store(sum, V::fma(V::load(sum), correction, wa + wb));
  alignas(64) float factor[16];
  V::store(factor, correction);
  return factor[0];
}

// out[r] = out[r] * factor[r] + the sum of weight * value over the first n keys, in order, for C vectors of
// dimensions from `dim` on (one of 8 when kTail).
template <class V, class Row, int R, int C, bool kTail>
void add_values(const float* weights, int n, const Row* values, int dim, std::int64_t state, float* out,
                const float* factor) {
  V acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = V::load(out + r * state + dim + 16 * c) * V::set(factor[r]);
  }
  for (int k = 0; k < n; ++k) {
    V x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      if constexpr (kTail) {
        x[c] = load_row8<V>(values[k], dim + 16 * c);
      } else {
        x[c] = load_row<V>(values[k], dim + 16 * c);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V w = V::set(weights[r * kTileKeys + k]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = V::fma(w, x[c], acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) V::store(out + r * state + dim + 16 * c, acc[r][c]);
  }
}

// The same over all dimensions. Query r has valid[r] keys, ascending in r, and reads no value past them.
template <class V, class Row, int R>
void add_values(const HeadShape& head, const float* weights, const int* valid, const Row* values, std::int64_t state,
                float* out, const float* factor) {
  constexpr int kBlock = V::kRegisters >= 32 || R == 1 ? 4 : 1;  // vectors of dimensions whose sums stay in registers
  int dim = 0;
  for (; dim + 16 * kBlock <= 16 * head.full; dim += 16 * kBlock) {
    add_values<V, Row, R, kBlock, false>(weights, valid[0], values, dim, state, out, factor);
  }
  for (; dim < 16 * head.full; dim += 16) {
    add_values<V, Row, R, 1, false>(weights, valid[0], values, dim, state, out, factor);
  }
  if (head.half_tail) add_values<V, Row, R, 1, true>(weights, valid[0], values, dim, state, out, factor);
  if constexpr (R > 1) {
    constexpr float kSame = 1.0F;
    for (int r = 1; r < R; ++r) {
      const int rest = valid[r] - valid[0];
      if (rest == 0) continue;
      add_values<V, Row, 1>(head, weights + r * kTileKeys + valid[0], &rest, values + valid[0], state, out + r * state,
                            &kSame);
    }
  }
}

// total := total and part, of the chunks before and the next one.
template <class V>
void merge_state(const HeadShape& head, const float* part, float* total) {
  const std::int64_t maximum = head.padded + 16;
  const V largest = V::max(V::load(total + maximum), V::load(part + maximum));
  const V keep = exp(V::load(total + maximum) - largest);
  const V take = exp(V::load(part + maximum) - largest);
  for (std::int64_t i = 0; i < maximum; i += 16) {
    V::store(total + i, V::fma(V::load(part + i), take, V::load(total + i) * keep));
  }
  V::store(total + maximum, largest);
}

// ---- values for many queries --------------------------------------------------------------------

// The weighted sum of a tile's widened values for a few of many queries; lanes are dimensions.

// out[r] = out[r] * factor[r] + the sum of weight * value over n keys, in order, for C registers of dimensions.
template <class N, int R, int C>
[[gnu::always_inline]] inline void add_wide_values(std::int64_t padded, const float* weights, int n,
                                                   const float* values, std::int64_t state, float* out,
                                                   const float* factor) {
  N sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = N::load(out + r * state + c * N::kLanes) * N::set(factor[r]);
  }
  for (int k = 0; k < n; ++k, values += padded) {
    N weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) weight[r] = N::set(weights[r * kTileKeys + k]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const N value = N::load(values + c * N::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][c] = N::fma(weight[r], value, sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) N::store(out + r * state + c * N::kLanes, sums[r][c]);
  }
}

// The same over all dimensions, from values [n, padded].
template <class N, int R>
[[gnu::noinline]] void add_wide_values(const HeadShape& head, const float* weights, int n, const float* values,
                                       std::int64_t state, float* out, const float* factor) {
  constexpr int kBlock = 4 * N::kLanes;
  constexpr int kRest = 16 / N::kLanes;
  std::int64_t dim = 0;
  for (; dim + kBlock <= head.padded; dim += kBlock) {
    add_wide_values<N, R, 4>(head.padded, weights, n, values + dim, state, out + dim, factor);
  }
  for (; dim < head.padded; dim += 16) {
    add_wide_values<N, R, kRest>(head.padded, weights, n, values + dim, state, out + dim, factor);
  }
}

// ---- scores and values for many queries ---------------------------------------------------------

// One tile of keys against a few of many queries, from the tile's transposed keys and widened values: lanes are keys
// for the scores and dimensions for the values, so nothing is added up across a register. Blocks of R queries x 4
// registers have 12 chains of fma or more under way, and load less often than they multiply.

// Queries whose sums stay in registers.
template <class V>
inline constexpr int kWideBlock = V::kRegisters >= 32 ? 6 : 3;

// sums = the sum over dimensions lane, lane + 16, ... of R queries and K registers of keys.
template <class N, int R, int K>
[[gnu::always_inline]] inline void sum_lane(std::int64_t padded, const float* q, const float* keys, int lane,
                                            N (&sums)[R][K]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sums[r][k] = N::zero();
  }
  const float* x = keys + lane * kTileKeys;
  const float* const end = keys + padded * kTileKeys;
  for (const float* y = q + lane; x < end; x += 16 * kTileKeys, y += 16) {
    N query[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) query[r] = N::set(y[r * padded]);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      const N key = N::load(x + k * N::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][k] = N::fma(query[r], key, sums[r][k]);
    }
  }
}

template <class N, int R, int K>
[[gnu::always_inline]] inline void add_sums(N (&to)[R][K], const N (&other)[R][K]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) to[r][k] = to[r][k] + other[r][k];
  }
}

// The scores of scores_by_dim from transposed keys [padded dim][kTileKeys].
template <class N, int R>
[[gnu::noinline]] void scores_by_key(const HeadShape& head, const float* q, const float* keys, float* s) {
  constexpr int K = N::kLanes >= 16 ? 2 : 4;  // registers of keys that share a query's broadcast
  static_assert(kTileKeys % (K * N::kLanes) == 0);
  for (int first = 0; first < kTileKeys; first += K * N::kLanes, keys += K * N::kLanes) {
    N four[4][R][K];  // lanes i, i + 8, i + 4, i + 12
    for (int i = 0; i < 4; ++i) {
      N other[R][K];
      N odd[R][K];
      sum_lane<N, R, K>(head.padded, q, keys, i, four[i]);
      sum_lane<N, R, K>(head.padded, q, keys, i + 8, other);
      add_sums<N, R, K>(four[i], other);
      sum_lane<N, R, K>(head.padded, q, keys, i + 4, odd);
      sum_lane<N, R, K>(head.padded, q, keys, i + 12, other);
      add_sums<N, R, K>(odd, other);
      add_sums<N, R, K>(four[i], odd);
    }
    for (int r = 0; r < R; ++r) {
      for (int k = 0; k < K; ++k) {
        N::store(s + r * kTileKeys + first + k * N::kLanes,
                 (four[0][r][k] + four[2][r][k]) + (four[1][r][k] + four[3][r][k]));
      }
    }
  }
}

// One tile of keys [padded][kTileKeys] and values [n, padded] for R queries: query r has valid[r] keys, ascending in
// r, and reads no value past them.
template <class V, int R>
void attend_wide(const HeadShape& head, const float* q, const float* keys, const float* values, const int* valid,
                 float* states) {
  using N = typename V::Native;
  const std::int64_t state = state_floats(head.dim);
  alignas(64) float scores[R * kTileKeys];
  float factor[R];
  scores_by_key<N, R>(head, q, keys, scores);
  for (int r = 0; r < R; ++r) {
    float* sum = states + r * state + head.padded;
    factor[r] = softmax_update<V>(scores + r * kTileKeys, valid[r], sum, sum + 16);
  }
  add_wide_values<N, R>(head, scores, valid[0], values, state, states, factor);
  constexpr float kSame = 1.0F;
  for (int r = 1; r < R; ++r) {
    const int rest = valid[r] - valid[0];
    if (rest == 0) continue;
    add_wide_values<N, 1>(head, scores + r * kTileKeys + valid[0], rest, values + valid[0] * head.padded, state,
                          states + r * state, &kSame);
  }
}

}  // namespace tandem::cpu
