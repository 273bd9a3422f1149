// What kernels compute over a Vec (vec_avx2.h, vec_avx512.h): exp, sums over lanes, an 8 x 8 transpose. To be
// included after the file's target pragma, as every *_body.h: a template takes its target where it stands.
//
// The sum of 16 lanes is one tree everywhere: a lane and the one 8 further, then 4, 2 and 1.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tandem::cpu {

// e^x with a relative error below 1.5e-7, exactly 1 at 0 and exactly 0 below -87.3; capped at e^88.37; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a minimax polynomial of degree 6.
template <class V>
[[gnu::always_inline]] inline V exp(V x) {
  const V low = V::set(-87.3F);
  const V y = V::max(low, V::min(V::set(88.37F), x));
  const V n = V::round(y * V::set(1.44269504F));
  const V r = V::fma(n, V::set(2.12194440e-4F), V::fma(n, V::set(-0.693359375F), y));
  V p = V::set(0x1.6a23cep-10F);
  p = V::fma(p, r, V::set(0x1.123a2p-7F));
  p = V::fma(p, r, V::set(0x1.5558f2p-5F));
  p = V::fma(p, r, V::set(0x1.555492p-3F));
  p = V::fma(p, r, V::set(0x1.fffffcp-2F));
  p = V::fma(p, r * r, r) + V::set(1.0F);
  return V::zero_below(p * V::pow2(n), x, low);
}

template <class V>
[[gnu::always_inline]] inline float sum_lanes(V a) {
  const __m256 by8 = V::fold(a);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

template <class V>
[[gnu::always_inline]] inline float max_lanes(V a) {
  const __m256 by8 = V::fold_max(a);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

// out[i] = sum over the lanes of the vector whose fold() is rows[i], by the tree of sum_lanes.
template <class V>
[[gnu::always_inline]] inline void sum_lanes_of_8(const __m256* rows, float* out) {
  __m256 by4[4];
  for (int i = 0; i < 4; ++i) {
    by4[i] = _mm256_add_ps(_mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20),
                           _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
  }
  const __m256 by2a = _mm256_add_ps(_mm256_shuffle_ps(by4[0], by4[1], 0x44), _mm256_shuffle_ps(by4[0], by4[1], 0xEE));
  const __m256 by2b = _mm256_add_ps(_mm256_shuffle_ps(by4[2], by4[3], 0x44), _mm256_shuffle_ps(by4[2], by4[3], 0xEE));
  _mm256_storeu_ps(out, _mm256_add_ps(_mm256_shuffle_ps(by2a, by2b, 0x88), _mm256_shuffle_ps(by2a, by2b, 0xDD)));
}

// out[j * stride + i] = rows[i] lane j.
template <class V>
[[gnu::always_inline]] inline void transpose_8(const __m256* rows, float* out, std::int64_t stride) {
  __m256 pair[8];
  __m256 quad[8];
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

}  // namespace tandem::cpu
