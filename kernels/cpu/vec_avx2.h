// Sixteen float lanes in two registers, the AVX2 half of the pair with vec_avx512.h: the same operations with the
// same roundings, so that a kernel written over `Vec` gives equal bits from both. `Native` is one register.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/octet.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define TANDEM_VEC [[gnu::always_inline]] static inline

namespace tandem::cpu::avx2 {

struct Vec {
  static constexpr int kRegisters = 16;
  using Native = Octet;

  __m256 lo;
  __m256 hi;

  TANDEM_VEC Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  TANDEM_VEC Vec set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  template <class T>
  TANDEM_VEC Vec load(const T* p) {
    return {Octet::load(p).v, Octet::load(p + 8).v};
  }
  template <class T>
  TANDEM_VEC Vec load8(const T* p) {
    return {Octet::load(p).v, _mm256_setzero_ps()};
  }
  TANDEM_VEC Vec load_n(const float* p, int n, float fill) {
    const Vec loaded = {_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p + 8, first(n - 8))};
    return keep_first(loaded, n, set(fill));
  }
  template <class T>
  TANDEM_VEC void store(T* p, Vec a) {
    Octet::store(p, {a.lo});
    Octet::store(p + 8, {a.hi});
  }
  template <class T>
  TANDEM_VEC void store8(T* p, Vec a) {
    Octet::store(p, {a.lo});
  }
  TANDEM_VEC void store_n(float* p, int n, Vec a) {
    _mm256_maskstore_ps(p, first(n), a.lo);
    _mm256_maskstore_ps(p + 8, first(n - 8), a.hi);
  }

  TANDEM_VEC Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  TANDEM_VEC Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  TANDEM_VEC Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  TANDEM_VEC Vec round(Vec a) {
    return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT), _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT)};
  }
  TANDEM_VEC Vec pow2(Vec n) { return {pow2(n.lo), pow2(n.hi)}; }
  TANDEM_VEC Vec zero_below(Vec a, Vec x, Vec limit) {
    return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ)),
            _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ))};
  }
  TANDEM_VEC Vec keep_first(Vec a, int n, Vec fill) {
    return {_mm256_blendv_ps(fill.lo, a.lo, _mm256_castsi256_ps(first(n))),
            _mm256_blendv_ps(fill.hi, a.hi, _mm256_castsi256_ps(first(n - 8)))};
  }
  TANDEM_VEC std::uint32_t greater(Vec a, Vec b) { return compare<_CMP_GT_OQ>(a, b); }
  TANDEM_VEC std::uint32_t at_least(Vec a, Vec b) { return compare<_CMP_GE_OQ>(a, b); }
  TANDEM_VEC std::uint32_t equal(Vec a, Vec b) { return compare<_CMP_EQ_OQ>(a, b); }
  TANDEM_VEC Vec swap_pairs(Vec a) { return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)}; }
  TANDEM_VEC __m256 fold(Vec a) { return _mm256_add_ps(a.lo, a.hi); }
  TANDEM_VEC __m256 fold_max(Vec a) { return _mm256_max_ps(a.lo, a.hi); }
  struct Sums {
    __m256d part[4];
  };
  TANDEM_VEC Sums no_sums() {
    return {{_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()}};
  }
  TANDEM_VEC void add_to(Sums& sums, Vec a) {
    const __m128 quads[4] = {_mm256_castps256_ps128(a.lo), _mm256_extractf128_ps(a.lo, 1), _mm256_castps256_ps128(a.hi),
                             _mm256_extractf128_ps(a.hi, 1)};
    for (int i = 0; i < 4; ++i) sums.part[i] = _mm256_add_pd(sums.part[i], _mm256_cvtps_pd(quads[i]));
  }
  TANDEM_VEC void store_sums(double* p, const Sums& sums) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, sums.part[i]);
  }

  friend Vec operator+(Vec a, Vec b) __attribute__((always_inline)) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  friend Vec operator-(Vec a, Vec b) __attribute__((always_inline)) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  friend Vec operator*(Vec a, Vec b) __attribute__((always_inline)) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  friend Vec operator/(Vec a, Vec b) __attribute__((always_inline)) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }

 private:
  TANDEM_VEC __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  TANDEM_VEC __m256 pow2(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  template <int kHow>
  TANDEM_VEC std::uint32_t compare(Vec a, Vec b) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, kHow));
    return static_cast<std::uint32_t>(low | _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, kHow)) << 8);
  }
};

}  // namespace tandem::cpu::avx2

#undef TANDEM_VEC
#pragma GCC pop_options
