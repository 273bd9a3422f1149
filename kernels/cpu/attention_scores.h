// The scores of one tile of keys against a few queries; the rest of the tile is attention_values.h.
// A score is the sum over 16 lanes of dimensions, each a chain of fma in ascending order, added up by the tree of
// sum_lanes; scores_by_dim has the lanes in a register and scores_by_key (attention_wide.h) in 16 sums of their own,
// with equal bits.
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

}  // namespace tandem::cpu
