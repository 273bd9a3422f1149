// One tile of keys against a few of many queries, from the tile's transposed keys and widened values: lanes are keys
// for the scores and dimensions for the values, so nothing is added up across a register. Blocks of R queries x 4
// registers have 12 chains of fma or more under way, and load less often than they multiply.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_values.h"
#include "kernels/cpu/attention_wide_values.h"

namespace tandem::cpu {

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
