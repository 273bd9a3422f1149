// rms_norm over vectors. Parallel over rows; moves 4 bytes x width x (reads hidden, delta, weight; writes hidden, out).
// The sum of squares has four accumulators of 16 lanes, so that its order is a function of the width alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"
#include "tandem/backend.h"

namespace tandem::cpu {

template <class V>
void add_row(float* hidden, const float* delta, std::int64_t width) {
  std::int64_t i = 0;
  for (; i + 16 <= width; i += 16) V::store(hidden + i, V::load(hidden + i) + V::load(delta + i));
  if (const int rest = static_cast<int>(width - i); rest > 0) {
    V::store_n(hidden + i, rest, V::load_n(hidden + i, rest, 0.0F) + V::load_n(delta + i, rest, 0.0F));
  }
}

template <class V>
float sum_of_squares(const float* x, std::int64_t width) {
  V sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  std::int64_t i = 0;
  for (; i + 64 <= width; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const V a = V::load(x + i + 16 * j);
      sums[j] = V::fma(a, a, sums[j]);
    }
  }
  for (; i < width; i += 16) {
    const V a = width - i >= 16 ? V::load(x + i) : V::load_n(x + i, static_cast<int>(width - i), 0.0F);
    sums[0] = V::fma(a, a, sums[0]);
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class V>
void scale_row(const float* x, const float* weight, float scale, float* out, std::int64_t width) {
  const V s = V::set(scale);
  std::int64_t i = 0;
  for (; i + 16 <= width; i += 16) V::store(out + i, (V::load(x + i) * s) * V::load(weight + i));
  if (const int rest = static_cast<int>(width - i); rest > 0) {
    V::store_n(out + i, rest, (V::load_n(x + i, rest, 0.0F) * s) * V::load_n(weight + i, rest, 0.0F));
  }
}

template <class V>
void rms_norm_rows(const RmsNormArgs& args, Team& team) {
  const std::int64_t width = args.hidden.cols;
  for_rows(team, args.hidden.rows, 3 * width, [&args, width](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* hidden = args.hidden.f32(row);
      if (args.delta.data != nullptr) add_row<V>(hidden, args.delta.f32(row), width);
      if (args.out.data == nullptr) continue;
      const float mean = sum_of_squares<V>(hidden, width) / static_cast<float>(width);
      scale_row<V>(hidden, args.weight, 1.0F / std::sqrt(mean + args.epsilon), args.out.f32(row), width);
    }
  });
}

}  // namespace tandem::cpu
