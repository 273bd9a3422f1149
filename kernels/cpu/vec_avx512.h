// Sixteen float lanes in one register, the AVX-512 half of the pair with vec_avx2.h: the same operations with the
// same roundings, so that a kernel written over `Vec` gives equal bits from both. Every function is inlined
// by force: none may be emitted where a machine without AVX-512 could run it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/octet.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define TANDEM_VEC [[gnu::always_inline]] static inline

namespace tandem::cpu::avx512 {

struct Vec {
  static constexpr int kRegisters = 32;
  using Native = Vec;  // what one register holds, for kernels whose lanes are independent
  static constexpr int kLanes = 16;

  __m512 v;

  TANDEM_VEC Vec zero() { return {_mm512_setzero_ps()}; }
  TANDEM_VEC Vec set(float x) { return {_mm512_set1_ps(x)}; }
  TANDEM_VEC Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  TANDEM_VEC Vec load(const Half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  TANDEM_VEC Vec load(const BFloat* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  TANDEM_VEC Vec load(const std::int8_t* p) {
    const __m128i quants = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quants))};
  }
  // The first 8 lanes; the others are zero.
  template <class T>
  TANDEM_VEC Vec load8(const T* p) {
    return {_mm512_zextps256_ps512(Octet::load(p).v)};
  }
  // The first n lanes, n <= 16; the others are `fill`.
  TANDEM_VEC Vec load_n(const float* p, int n, float fill) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n), p)};
  }
  TANDEM_VEC void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
  template <class T>
  TANDEM_VEC void store(T* p, Vec a) {
    Octet::store(p, {low(a)});
    Octet::store(p + 8, {high(a)});
  }
  template <class T>
  TANDEM_VEC void store8(T* p, Vec a) {
    Octet::store(p, {low(a)});
  }
  TANDEM_VEC void store_n(float* p, int n, Vec a) { _mm512_mask_storeu_ps(p, first(n), a.v); }

  TANDEM_VEC Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // Of a NaN and a number the second operand.
  TANDEM_VEC Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  TANDEM_VEC Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  TANDEM_VEC Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
  // 2^n for integral n in [-126, 127].
  TANDEM_VEC Vec pow2(Vec n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
  }
  // a where x >= limit or x is NaN, else 0.
  TANDEM_VEC Vec zero_below(Vec a, Vec x, Vec limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), a.v)};
  }
  // The first n lanes of a (any n), `fill` in the others.
  TANDEM_VEC Vec keep_first(Vec a, int n, Vec fill) {
    return {_mm512_mask_mov_ps(fill.v, n < 0 ? 0 : n > 16 ? 0xFFFF : first(n), a.v)};
  }
  // Bit i: lane i of a > (>=, ==) lane i of b; false for NaN.
  TANDEM_VEC std::uint32_t greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
  TANDEM_VEC std::uint32_t at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
  TANDEM_VEC std::uint32_t equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
  TANDEM_VEC Vec swap_pairs(Vec a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
  // Lane i + lane i + 8.
  TANDEM_VEC __m256 fold(Vec a) { return _mm256_add_ps(low(a), high(a)); }
  TANDEM_VEC __m256 fold_max(Vec a) { return _mm256_max_ps(low(a), high(a)); }
  // sums[0..15] += the lanes, in double.
  struct Sums {
    __m512d lo;
    __m512d hi;
  };
  TANDEM_VEC Sums no_sums() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  TANDEM_VEC void add_to(Sums& sums, Vec a) {
    sums.lo = _mm512_add_pd(sums.lo, _mm512_cvtps_pd(low(a)));
    sums.hi = _mm512_add_pd(sums.hi, _mm512_cvtps_pd(high(a)));
  }
  TANDEM_VEC void store_sums(double* p, const Sums& sums) {
    _mm512_storeu_pd(p, sums.lo);
    _mm512_storeu_pd(p + 8, sums.hi);
  }

  friend Vec operator+(Vec a, Vec b) __attribute__((always_inline)) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) __attribute__((always_inline)) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) __attribute__((always_inline)) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) __attribute__((always_inline)) { return {_mm512_div_ps(a.v, b.v)}; }

 private:
  TANDEM_VEC __mmask16 first(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
  TANDEM_VEC __m256 low(Vec a) { return _mm512_castps512_ps256(a.v); }
  TANDEM_VEC __m256 high(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }
};

}  // namespace tandem::cpu::avx512

#undef TANDEM_VEC
#pragma GCC pop_options
