// AVX-512 with VNNI for weights in superblocks of 256 columns: as linear_avx512.cpp, one tile at a time, with scales
// made of two parts. Reads each tile once per panel.
#include <immintrin.h>

#include <array>

#include "kernels/cpu/linear.h"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace tandem::cpu {
namespace {

inline __m512 load_halves(const std::byte* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline __m512 load_bytes(const std::byte* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

// The weights' scales of one block; kQ6_K's factors are part of its sums.
template <DType D>
inline __m512 block_scale(const std::byte* record, int block) {
  const std::byte* scales = record + scales_offset(D);
  if constexpr (D == DType::kQ6_K) return _mm512_loadu_ps(scales);
  return _mm512_mul_ps(load_halves(scales), load_bytes(record + factors_offset(D) + block * kFactorBytes));
}

inline __m512 block_minimum(const std::byte* record, int block) {
  constexpr DType kType = DType::kQ4_K;
  const __m512 minimum = load_halves(record + scales_offset(kType) + 2 * kTileRows);
  const std::byte* factors = record + factors_offset(kType) + block * kFactorBytes + kTileRows;
  return _mm512_mul_ps(_mm512_xor_ps(minimum, _mm512_set1_ps(-0.0F)), load_bytes(factors));
}

template <int R>
[[gnu::always_inline]] inline void dot_block_4(const std::byte* record, int block, const std::byte* x,
                                               __m512 (&dot)[R]) {
  const std::byte* quants = record + block * quant_bytes(DType::kQ4_K);
  const __m512i low_nibbles = _mm512_set1_epi8(15);
  __m512i sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i packed = _mm512_loadu_si512(quants + 64 * j);
    const __m512i low = _mm512_and_si512(packed, low_nibbles);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low_nibbles);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sum[r] = _mm512_dpbusd_epi32(sum[r], low, _mm512_set1_epi32(load_i32(x + r * kBlockCols + 4 * j)));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sum[r] = _mm512_dpbusd_epi32(sum[r], high, _mm512_set1_epi32(load_i32(x + r * kBlockCols + 16 + 4 * j)));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) dot[r] = _mm512_cvtepi32_ps(sum[r]);
}

// kQ6_K: quants of 0..63 in two halves, each times its factor; the zero point is 32 * sum(half) * factor of both.
template <int R>
[[gnu::always_inline]] inline void dot_block_6(const std::byte* record, int block, const std::byte* x,
                                               __m512 (&dot)[R]) {
  constexpr DType kType = DType::kQ6_K;
  const std::byte* quants = record + block * quant_bytes(kType);
  const std::byte* uppers = record + record_blocks(kType) * quant_bytes(kType) + block * kUpperBytes;
  const std::byte* factors = record + factors_offset(kType) + block * kFactorBytes;
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i upper = _mm512_set1_epi8(48);
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  __m512i sum[2][R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[0][r] = sum[1][r] = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i packed = _mm512_loadu_si512(quants + 64 * j);
    const __m512i pairs = _mm512_loadu_si512(uppers + j / 2 * 64);
    const __m512i low_bits = j % 2 == 0 ? _mm512_slli_epi16(pairs, 4) : pairs;
    const __m512i high_bits = j % 2 == 0 ? _mm512_slli_epi16(pairs, 2) : _mm512_srli_epi16(pairs, 2);
    const __m512i low = _mm512_ternarylogic_epi32(_mm512_and_si512(packed, nibble), low_bits, upper, kOrAnd);
    const __m512i high =
        _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble), high_bits, upper, kOrAnd);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const std::byte* values = x + r * kBlockCols + 4 * j;
      sum[0][r] = _mm512_dpbusd_epi32(sum[0][r], low, _mm512_set1_epi32(load_i32(values)));
      sum[1][r] = _mm512_dpbusd_epi32(sum[1][r], high, _mm512_set1_epi32(load_i32(values + 16)));
    }
  }
  const __m512i both = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(factors)));
  const __m512i twice = _mm512_add_epi16(both, both);
  const __m512 low_factor = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16));
  const __m512 high_factor = _mm512_cvtepi32_ps(_mm512_srai_epi32(both, 16));
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const __m512i zero = _mm512_madd_epi16(twice, _mm512_set1_epi32(load_i32(x + R * kBlockCols + 12 * R + 4 * r)));
    const __m512 low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0][r]), low_factor, _mm512_cvtepi32_ps(zero));
    dot[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[1][r]), high_factor, low);
  }
}

template <DType D, int R>
void super_tiles(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel, float* y,
                 std::int64_t stride) {
  constexpr std::int64_t kStep = R * (kBlockCols + kPanelTrailer);
  constexpr std::int64_t kPart = record_bytes(D) / record_blocks(D);
  const std::int64_t size = tile_bytes(D, cols);
  const std::int64_t records = cols / record_cols(D);
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    const std::byte* record = tiles + tile * size;
    const std::byte* x = panel;
    __m512 acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
    for (std::int64_t i = 0; i < records; ++i, record += record_bytes(D)) {
      for (int block = 0; block < record_blocks(D); ++block, x += kStep) {
        const std::byte* trailer = x + R * kBlockCols;
        __m512 dot[R];
        // Superblocks are read in several streams, which the processor follows too late even for one row.
        for (std::int64_t at = 0; at < kPart; at += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(record + block * kPart + at + kAhead), _MM_HINT_T0);
        }
        if constexpr (D == DType::kQ6_K) {
          dot_block_6<R>(record, block, x, dot);
        } else {
          dot_block_4<R>(record, block, x, dot);
        }
        const __m512 scale = block_scale<D>(record, block);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(load_f32(trailer + 4 * r)));
          acc[r] = _mm512_fmadd_ps(dot[r], both, acc[r]);
        }
        if constexpr (D == DType::kQ4_K) {
          const __m512 minimum = block_minimum(record, block);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            acc[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(load_f32(trailer + 4 * R + 4 * r)), acc[r]);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(y + r * stride + tile * kTileRows, acc[r]);
  }
}

template <DType D>
constexpr std::array<TileKernel, 8> kernels_of() {
  return {super_tiles<D, 1>, super_tiles<D, 2>, super_tiles<D, 3>, super_tiles<D, 4>,
          super_tiles<D, 5>, super_tiles<D, 6>, super_tiles<D, 7>, super_tiles<D, 8>};
}

}  // namespace

TileKernel avx512::super_kernel(DType dtype, int rows) {
  static constexpr std::array<TileKernel, 8> kQ4_K = kernels_of<DType::kQ4_K>();
  static constexpr std::array<TileKernel, 8> kQ6_K = kernels_of<DType::kQ6_K>();
  return (dtype == DType::kQ4_K ? kQ4_K : kQ6_K)[static_cast<std::size_t>(rows - 1)];
}

}  // namespace tandem::cpu
