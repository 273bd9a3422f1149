// The scores of one tile of keys against a few queries; the rest of the tile is attention_values.h.
// A score is the sum over 16 lanes of dimensions, each a chain of fma in ascending order, added up by the tree of
// sum_lanes; scores_by_dim has the lanes in a register and scores_by_key in 16 sums of their own, with equal bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/vec_math.h"

namespace tandem::cpu {

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

// The sum over lanes l, l + kStep, l + 2 kStep, ... of R queries and K registers of keys, depth first.
template <class N, int R, int K, int kStep>
[[gnu::always_inline]] inline void lane_tree(const HeadShape& head, const float* q, const float* keys, int lane,
                                             N (*out)[K]) {
  if constexpr (kStep == 16) {
    for (int r = 0; r < R; ++r) {
      for (int k = 0; k < K; ++k) out[r][k] = N::zero();
    }
    for (std::int64_t d = lane; d < head.padded; d += 16) {
      N x[K];
      for (int k = 0; k < K; ++k) x[k] = N::load(keys + d * kTileKeys + k * N::kLanes);
      for (int r = 0; r < R; ++r) {
        const N y = N::set(q[r * head.padded + d]);
        for (int k = 0; k < K; ++k) out[r][k] = N::fma(y, x[k], out[r][k]);
      }
    }
  } else {
    N other[R][K];
    lane_tree<N, R, K, 2 * kStep>(head, q, keys, lane, out);
    lane_tree<N, R, K, 2 * kStep>(head, q, keys, lane + kStep, other);
    for (int r = 0; r < R; ++r) {
      for (int k = 0; k < K; ++k) out[r][k] = out[r][k] + other[r][k];
    }
  }
}

// The same scores from transposed keys [padded dim][kTileKeys].
template <class N, int R>
void scores_by_key(const HeadShape& head, const float* q, const float* keys, float* s) {
  constexpr int K = 2;  // registers of keys that share a query's broadcast
  for (int first = 0; first < kTileKeys; first += K * N::kLanes) {
    N sums[R][K];
    lane_tree<N, R, K, 1>(head, q, keys + first, 0, sums);
    for (int r = 0; r < R; ++r) {
      for (int k = 0; k < K; ++k) N::store(s + r * kTileKeys + first + k * N::kLanes, sums[r][k]);
    }
  }
}

}  // namespace tandem::cpu
