// The weighted sum of a tile's widened values for a few of many queries; lanes are dimensions.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"

namespace tandem::cpu {

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

}  // namespace tandem::cpu
