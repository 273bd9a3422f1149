// Eight float lanes in an AVX register, and their conversions from and to the elements of KV memory. What both
// vec_avx2.h and vec_avx512.h are made of where a full vector brings nothing.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/elements.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define TANDEM_VEC [[gnu::always_inline]] static inline

namespace tandem::cpu {

struct Octet {
  static constexpr int kLanes = 8;

  __m256 v;

  TANDEM_VEC Octet zero() { return {_mm256_setzero_ps()}; }
  TANDEM_VEC Octet set(float x) { return {_mm256_set1_ps(x)}; }
  TANDEM_VEC Octet load(const float* p) { return {_mm256_loadu_ps(p)}; }
  TANDEM_VEC Octet load(const Half* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  TANDEM_VEC Octet load(const BFloat* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  TANDEM_VEC Octet load(const std::int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
  }
  TANDEM_VEC float to_float(Half x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits))); }
  TANDEM_VEC Half to_half(float x) {
    const __m128i bits = _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT);
    return {static_cast<std::uint16_t>(_mm_cvtsi128_si32(bits))};
  }
  // Stores round to nearest even; a NaN stays one.
  TANDEM_VEC void store(float* p, Octet a) { _mm256_storeu_ps(p, a.v); }
  TANDEM_VEC void store(Half* p, Octet a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
  }
  TANDEM_VEC void store(BFloat* p, Octet a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  TANDEM_VEC Octet fma(Octet a, Octet b, Octet c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  // For lanes in [-127, 127].
  TANDEM_VEC void store(std::int8_t* p, Octet a) {
    const __m256i wide = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
  friend Octet operator+(Octet a, Octet b) __attribute__((always_inline)) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Octet operator*(Octet a, Octet b) __attribute__((always_inline)) { return {_mm256_mul_ps(a.v, b.v)}; }
};

}  // namespace tandem::cpu

#undef TANDEM_VEC
#pragma GCC pop_options
