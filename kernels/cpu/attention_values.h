// What a tile's scores become: a softmax update and a weighted sum of values, and the merge of two such states.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/vec_math.h"

namespace tandem::cpu {

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

}  // namespace tandem::cpu
