// rope over vectors, in place on the query and key heads of qkv. Parallel over rows; reads and writes 4 bytes x
// rotary_dim x heads of a row, whose cosines and sines are spread once into the order the heads need.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"
#include "tandem/backend.h"

namespace tandem::cpu {

inline constexpr int kMaxRotary = 256;

template <class V>
[[gnu::always_inline]] inline V load_up_to_16(const float* p, int n) {
  return n >= 16 ? V::load(p) : V::load_n(p, n, 0.0F);
}
template <class V>
[[gnu::always_inline]] inline void store_up_to_16(float* p, int n, V a) {
  n >= 16 ? V::store(p, a) : V::store_n(p, n, a);
}

// (x1, x2) -> (x1 c - x2 s, x2 c + x1 s) on `half` pairs that lie `half` apart.
template <class V>
void rotate_half(float* head, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i += 16) {
    const int n = half - i;
    const V x1 = load_up_to_16<V>(head + i, n);
    const V x2 = load_up_to_16<V>(head + half + i, n);
    const V c = V::load(cosine + i);
    const V s = V::load(sine + i);
    store_up_to_16(head + i, n, V::fma(x1, c, V::zero() - x2 * s));
    store_up_to_16(head + half + i, n, V::fma(x2, c, x1 * s));
  }
}

// The same on neighbours; `cosine` and `sine` hold each value twice, the first sine of a pair negated.
template <class V>
void rotate_interleaved(float* head, const float* cosine, const float* sine, int rotary) {
  for (int i = 0; i < rotary; i += 16) {
    const int n = rotary - i;
    const V x = load_up_to_16<V>(head + i, n);
    store_up_to_16(head + i, n, V::fma(x, V::load(cosine + i), V::swap_pairs(x) * V::load(sine + i)));
  }
}

template <class V>
void rope_row(const RopeArgs& args, std::int64_t row, float* cosine, float* sine) {
  const float* angles = args.cos_sin.f32(row);
  const int rotary = static_cast<int>(args.cos_sin.cols);
  const bool halves = args.style == RopeStyle::kHalf;
  for (int i = 0; i < rotary / 2; ++i) {
    if (halves) {
      cosine[i] = angles[2 * i];
      sine[i] = angles[2 * i + 1];
    } else {
      cosine[2 * i] = cosine[2 * i + 1] = angles[2 * i];
      sine[2 * i] = -angles[2 * i + 1];
      sine[2 * i + 1] = angles[2 * i + 1];
    }
  }
  float* head = args.qkv.f32(row);
  for (int h = 0; h < args.num_heads + args.num_kv_heads; ++h, head += args.head_dim) {
    if (halves) {
      rotate_half<V>(head, cosine, sine, rotary / 2);
    } else {
      rotate_interleaved<V>(head, cosine, sine, rotary);
    }
  }
}

template <class V>
void rope_rows(const RopeArgs& args, Team& team) {
  TANDEM_CHECK(args.cos_sin.cols <= args.head_dim && args.cos_sin.cols <= kMaxRotary && args.cos_sin.cols % 2 == 0,
               "rope rotates an even number of dimensions, at most head_dim and 256");
  const std::int64_t work = std::int64_t{args.num_heads + args.num_kv_heads} * args.cos_sin.cols;
  for_rows(team, args.qkv.rows, 2 * work, [&args](std::int64_t begin, std::int64_t end) {
    alignas(64) float cosine[kMaxRotary + 16] = {};  // room for the last, partly used vector
    alignas(64) float sine[kMaxRotary + 16] = {};
    for (std::int64_t row = begin; row < end; ++row) rope_row<V>(args, row, cosine, sine);
  });
}

}  // namespace tandem::cpu
