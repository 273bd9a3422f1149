// AVX2: a tile's 16 outputs are two vectors of 8. Products of 4-bit weights are added up as 16-bit integers over a
// whole block (8 x 2 x 15 x 127 = 30,480 fits) and widened once; those of 8-bit weights at once, with the signs
// moved to the activation so that the unsigned x signed multiply cannot saturate (2 x 128 x 127 = 32,512 fits).
// One to three rows take both vectors in one pass; four, and three of superblocks, take them one after the other to fit
// 16 registers.
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"

#pragma GCC target("avx2,fma,f16c")

namespace tandem::cpu {
namespace {

constexpr int kPanelRows = 4;
constexpr int kLanes = 8;

inline __m256i load_bytes(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

inline __m256 load_halves(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Fixes a sum in its register at this point: g++ 12 else puts the additions off to the end of the block and spills
// every product until then.
[[gnu::always_inline]] inline void keep(__m256i& sum) { asm("" : "+x"(sum)); }

// The block's integer sums of H vectors of 8 outputs, beginning at byte `at` of each packed vector.
template <DType D, int R, int H>
[[gnu::always_inline]] inline void dot_block(const std::byte* record, std::int64_t at, const std::byte* x,
                                             __m256i (&dot)[H][R]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) dot[h][r] = _mm256_setzero_si256();
  }
  if constexpr (D == DType::kQ8_0) {
    const __m256i flip = _mm256_set1_epi8(-128);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 16
      for (int h = 0; h < H; ++h) {
        const __m256i weight = _mm256_xor_si256(load_bytes(record + 64 * j + at + 32 * h), flip);
        const __m256i magnitude = _mm256_abs_epi8(weight);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const __m256i value = _mm256_set1_epi32(load_i32(x + r * kBlockCols + 4 * j));
          const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(value, weight));
          dot[h][r] = _mm256_add_epi32(dot[h][r], _mm256_madd_epi16(pairs, ones));
          keep(dot[h][r]);
        }
      }
    }
    return;
  }
  const __m256i low_nibbles = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    if constexpr (H == 1) {
      const __m256i packed = load_bytes(record + 64 * j + at);
      const __m256i low = _mm256_and_si256(packed, low_nibbles);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_nibbles);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const std::byte* values = x + r * kBlockCols + 4 * j;
        const __m256i first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(load_i32(values)));
        dot[0][r] = _mm256_add_epi16(dot[0][r], first);
        const __m256i second = _mm256_maddubs_epi16(high, _mm256_set1_epi32(load_i32(values + 16)));
        dot[0][r] = _mm256_add_epi16(dot[0][r], second);
        keep(dot[0][r]);
      }
      continue;
    }
    // Both vectors share each broadcast; one half of the nibbles at a time fits the registers.
#pragma GCC unroll 2
    for (const int shift : {0, 4}) {
      __m256i weight[H];
#pragma GCC unroll 16
      for (int h = 0; h < H; ++h) {
        const __m256i packed = load_bytes(record + 64 * j + at + 32 * h);
        weight[h] = _mm256_and_si256(shift == 0 ? packed : _mm256_srli_epi16(packed, 4), low_nibbles);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m256i value = _mm256_set1_epi32(load_i32(x + r * kBlockCols + 4 * shift + 4 * j));
#pragma GCC unroll 16
        for (int h = 0; h < H; ++h) {
          dot[h][r] = _mm256_add_epi16(dot[h][r], _mm256_maddubs_epi16(weight[h], value));
          keep(dot[h][r]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      dot[h][r] = _mm256_madd_epi16(dot[h][r], ones);
      if constexpr (D == DType::kQ4_0) {
        const std::int32_t zero = load_i32(x + R * kBlockCols + 8 * R + 4 * r);  // -8 * sum(quants)
        dot[h][r] = _mm256_add_epi32(dot[h][r], _mm256_set1_epi32(zero));
      }
    }
  }
}

// kQ6_K: quants of 0..63, of which two pair products fit 16 bits (4 x 63 x 127 = 32,004); widening multiplies by the
// half's factor. The zero point is 32 * sum(half) * factor of both halves.
template <int R, int H>
[[gnu::always_inline]] inline void dot_block_6(const std::byte* record, int block, int half, const std::byte* x,
                                               __m256i (&dot)[H][R]) {
  constexpr DType kType = DType::kQ6_K;
  const std::byte* quants = record + block * quant_bytes(kType);
  const std::byte* uppers = record + record_blocks(kType) * quant_bytes(kType) + block * kUpperBytes;
  const std::byte* factors = record + factors_offset(kType) + block * kFactorBytes;
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i upper = _mm256_set1_epi8(48);
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
    const std::int64_t at = 32 * (half + h);
    const __m256i both =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(factors + 2 * kLanes * (half + h))));
    const __m256i twice = _mm256_add_epi16(both, both);
    const __m256i low_factor = _mm256_blend_epi16(both, _mm256_slli_epi32(both, 16), 0xAA);
    const __m256i high_factor = _mm256_blend_epi16(both, _mm256_srli_epi32(both, 16), 0x55);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      dot[h][r] = _mm256_madd_epi16(twice, _mm256_set1_epi32(load_i32(x + R * kBlockCols + 12 * R + 4 * r)));
    }
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
      const __m256i first = load_bytes(quants + 64 * j + at);
      const __m256i second = load_bytes(quants + 64 * (j + 1) + at);
      const __m256i pairs = load_bytes(uppers + 32 * j + at);
      const auto join = [&](__m256i nibbles, __m256i bits) {
        return _mm256_or_si256(_mm256_and_si256(nibbles, nibble), _mm256_and_si256(bits, upper));
      };
      const __m256i low_first = join(first, _mm256_slli_epi16(pairs, 4));
      const __m256i low_second = join(second, pairs);
      const __m256i high_first = join(_mm256_srli_epi16(first, 4), _mm256_slli_epi16(pairs, 2));
      const __m256i high_second = join(_mm256_srli_epi16(second, 4), _mm256_srli_epi16(pairs, 2));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const std::byte* values = x + r * kBlockCols + 4 * j;
        const auto sum = [values](__m256i a, __m256i b, int column) {
          return _mm256_add_epi16(_mm256_maddubs_epi16(a, _mm256_set1_epi32(load_i32(values + column))),
                                  _mm256_maddubs_epi16(b, _mm256_set1_epi32(load_i32(values + column + 4))));
        };
        dot[h][r] = _mm256_add_epi32(dot[h][r], _mm256_madd_epi16(sum(low_first, low_second, 0), low_factor));
        dot[h][r] = _mm256_add_epi32(dot[h][r], _mm256_madd_epi16(sum(high_first, high_second, 16), high_factor));
        keep(dot[h][r]);
      }
    }
  }
}

inline __m256 load_bytes_as_floats(const std::byte* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

// The weights' scales of one block; kQ6_K's factors are part of its sums.
template <DType D>
inline __m256 block_scale(const std::byte* record, int block, int half) {
  const std::byte* scales = record + scales_offset(D);
  if constexpr (D == DType::kQ6_K) return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + kLanes * half);
  const __m256 scale = load_halves(scales + 2 * kLanes * half);
  if constexpr (D != DType::kQ4_K) return scale;
  return _mm256_mul_ps(scale, load_bytes_as_floats(record + factors_offset(D) + block * kFactorBytes + kLanes * half));
}

template <DType D>
inline __m256 block_minimum(const std::byte* record, int block, int half) {
  const __m256 minimum = load_halves(record + scales_offset(D) + 2 * (kTileRows + kLanes * half));
  if constexpr (D == DType::kQ4_1) return minimum;
  const std::byte* factors = record + factors_offset(D) + block * kFactorBytes + kTileRows + kLanes * half;
  return _mm256_mul_ps(_mm256_xor_ps(minimum, _mm256_set1_ps(-0.0F)), load_bytes_as_floats(factors));
}

template <DType D>
[[gnu::always_inline]] inline void prefetch(const std::byte* record, int block) {
  constexpr std::int64_t kPart = record_blocks(D) == 1 ? quant_bytes(D) : record_bytes(D) / record_blocks(D);
  for (std::int64_t at = 0; at < kPart; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(record + block * kPart + at + kAhead), _MM_HINT_T0);
  }
}

// H of the tile's two vectors, beginning with vector `half`.
template <DType D, int R, int H>
[[gnu::always_inline]] inline void quant_half(const std::byte* record, std::int64_t records, int half,
                                              const std::byte* x, float* y, std::int64_t stride) {
  __m256 acc[H][R];
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[h][r] = _mm256_setzero_ps();
  }
  for (std::int64_t i = 0; i < records; ++i, record += record_bytes(D)) {
    for (int block = 0; block < record_blocks(D); ++block, x += R * (kBlockCols + kPanelTrailer)) {
      const std::byte* trailer = x + R * kBlockCols;
      if (half == 0) prefetch<D>(record, block);
      __m256i dot[H][R];
      if constexpr (D == DType::kQ6_K) {
        dot_block_6<R, H>(record, block, half, x, dot);
      } else {
        dot_block<D, R, H>(record + block * quant_bytes(D), 32 * half, x, dot);
      }
#pragma GCC unroll 16
      for (int h = 0; h < H; ++h) {
        const __m256 scale = block_scale<D>(record, block, half + h);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(load_f32(trailer + 4 * r)));
          acc[h][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h][r]), both, acc[h][r]);
        }
        if constexpr (D == DType::kQ4_1 || D == DType::kQ4_K) {
          const __m256 minimum = block_minimum<D>(record, block, half + h);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            acc[h][r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(load_f32(trailer + 4 * R + 4 * r)), acc[h][r]);
          }
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm256_storeu_ps(y + r * stride + kLanes * (half + h), acc[h][r]);
  }
}

template <DType D, int R>
void quant_tiles(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel, float* y,
                 std::int64_t stride) {
  const std::int64_t size = tile_bytes(D, cols);
  const std::int64_t records = cols / record_cols(D);
  for (std::int64_t tile = 0; tile < num_tiles; ++tile, tiles += size, y += kTileRows) {
    if constexpr (R <= (record_blocks(D) == 1 ? 3 : 2)) {
      quant_half<D, R, 2>(tiles, records, 0, panel, y, stride);
    } else {
      quant_half<D, R, 1>(tiles, records, 0, panel, y, stride);
      quant_half<D, R, 1>(tiles, records, 1, panel, y, stride);
    }
  }
}

// Outputs [8 half, 8 half + 8) of a tile's column `k`; Odd says which of its pair the column is.
template <DType D, bool Odd>
inline __m256 load_column(const std::byte* tile, std::int64_t k, int half) {
  const std::byte* from = tile + k * record_bytes(D) + half * record_bytes(D) / 2;
  if constexpr (D == DType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  } else if constexpr (D == DType::kF16) {
    return load_halves(from);
  } else {
    const __m256i pairs = load_bytes(tile + (k - Odd) * record_bytes(D) + half * record_bytes(D));
    return _mm256_castsi256_ps(Odd ? _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000)))
                                   : _mm256_slli_epi32(pairs, 16));
  }
}

template <DType D, bool Odd, int R, int T>
[[gnu::always_inline]] inline void add_column(const std::byte* tiles, std::int64_t size, std::int64_t k,
                                              const std::byte* panel, __m256 (&acc)[T][R][2]) {
  const std::int64_t ahead = bytes_ahead(T, size);
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
    const __m256 left = load_column<D, Odd>(tiles + t * size, k, 0);
    const __m256 right = load_column<D, Odd>(tiles + t * size, k, 1);
    if constexpr (D == DType::kF32 ? R > 1 : !Odd) {
      _mm_prefetch(reinterpret_cast<const char*>(tiles + t * size + k * record_bytes(D) + ahead), _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m256 value = _mm256_set1_ps(load_f32(panel + (k * R + r) * 4));
      acc[t][r][0] = _mm256_fmadd_ps(left, value, acc[t][r][0]);
      acc[t][r][1] = _mm256_fmadd_ps(right, value, acc[t][r][1]);
    }
  }
}

// T tiles at once, so that a short panel still has enough independent sums to hide an fma's latency.
template <DType D, int R, int T>
void float_tile_group(const std::byte* tiles, std::int64_t size, std::int64_t cols, const std::byte* panel, float* y,
                      std::int64_t stride) {
  __m256 acc[T][R][2];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[t][r][0] = acc[t][r][1] = _mm256_setzero_ps();
  }
  std::int64_t k = 0;
  for (; k + 2 <= cols; k += 2) {
    add_column<D, false>(tiles, size, k, panel, acc);
    add_column<D, true>(tiles, size, k + 1, panel, acc);
  }
  if (k < cols) add_column<D, false>(tiles, size, k, panel, acc);
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      _mm256_storeu_ps(y + r * stride + t * kTileRows, acc[t][r][0]);
      _mm256_storeu_ps(y + r * stride + t * kTileRows + kLanes, acc[t][r][1]);
    }
  }
}

template <DType D, int R>
void float_tiles(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel, float* y,
                 std::int64_t stride) {
  constexpr int kGroup = R >= 3 ? 1 : R == 2 ? 2 : 4;
  const std::int64_t size = tile_bytes(D, cols);
  std::int64_t tile = 0;
  for (; tile + kGroup <= num_tiles; tile += kGroup) {
    float_tile_group<D, R, kGroup>(tiles + tile * size, size, cols, panel, y + tile * kTileRows, stride);
  }
  for (; tile < num_tiles; ++tile) {
    float_tile_group<D, R, 1>(tiles + tile * size, size, cols, panel, y + tile * kTileRows, stride);
  }
}

template <DType D, int R>
constexpr TileKernel kernel_of() {
  if constexpr (is_quantised(D)) {
    return quant_tiles<D, R>;
  } else {
    return float_tiles<D, R>;
  }
}

template <DType D>
constexpr std::array<TileKernel, kPanelRows> kernels_of() {
  return {kernel_of<D, 1>(), kernel_of<D, 2>(), kernel_of<D, 3>(), kernel_of<D, 4>()};
}

TileKernel kernel(DType dtype, int rows, Panels /*panels*/) {
  // kQ5_0 is packed as kQ8_0.
  static constexpr std::array<std::array<TileKernel, kPanelRows>, 9> kTable = {
      kernels_of<DType::kF32>(),  kernels_of<DType::kF16>(),  kernels_of<DType::kBF16>(),
      kernels_of<DType::kQ8_0>(), kernels_of<DType::kQ4_0>(), kernels_of<DType::kQ4_1>(),
      kernels_of<DType::kQ8_0>(), kernels_of<DType::kQ4_K>(), kernels_of<DType::kQ6_K>()};
  return kTable[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(rows - 1)];
}

constexpr LinearKernels kKernels = {kPanelRows, kPanelRows, kernel, nullptr};

// The sums of both vectors' lanes, as lanes 0 and 1.
inline __m128i sum_lanes(__m256i a, __m256i b) {
  const __m256i pairs = _mm256_hadd_epi32(a, b);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  return _mm_hadd_epi32(four, four);
}

inline float max_lanes(__m256 v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace

void quantise_row(const float* x, std::int64_t blocks, std::byte* panel, int rows, int lane) {
  // Below this 127 / max overflows; such a block is zero in all but name.
  constexpr float kSmallest = 1e-35F;
  const __m256 magnitude_bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  // Undoes the interleaving of the two packs below.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::int64_t block = 0; block < blocks; ++block, x += kBlockCols) {
    __m256 v[4];
    __m256 finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    __m256 largest = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + kLanes * i);
      const __m256 magnitude = _mm256_and_ps(v[i], magnitude_bits);
      finite = _mm256_and_ps(finite, _mm256_cmp_ps(magnitude, infinity, _CMP_LT_OQ));
      largest = _mm256_max_ps(largest, magnitude);
    }
    const float max = max_lanes(largest);
    float scale = max / 127.0F;
    float inverse = max < kSmallest ? 0.0F : 127.0F / max;
    if (max < kSmallest) scale = 0.0F;
    if (_mm256_movemask_ps(finite) != 0xFF) {
      scale = std::numeric_limits<float>::quiet_NaN();
      inverse = 0.0F;
      for (__m256& values : v) values = _mm256_setzero_ps();
    }
    const __m256 factor = _mm256_set1_ps(inverse);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor));
    const __m256i bytes = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
    std::byte* to = panel + block * rows * (kBlockCols + kPanelTrailer);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + lane * kBlockCols), bytes);
    const __m128i sums = sum_lanes(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    const std::int32_t sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 1);
    const float scaled_sum = scale * static_cast<float>(sum);
    const std::int32_t minus_8 = -8 * sum;
    const __m128i minus_16 = _mm_slli_epi32(_mm_sub_epi32(_mm_setzero_si128(), sums), 4);
    const std::int32_t half_sums = _mm_cvtsi128_si32(_mm_packs_epi32(minus_16, minus_16));
    std::byte* trailer = to + rows * kBlockCols + 4 * lane;
    std::memcpy(trailer, &scale, 4);
    std::memcpy(trailer + 4 * rows, &scaled_sum, 4);
    std::memcpy(trailer + 8 * rows, &minus_8, 4);
    std::memcpy(trailer + 12 * rows, &half_sums, 4);
  }
}

void avx2::linear(const LinearArgs& args, Team& team) { run_linear(args, team, kKernels); }

}  // namespace tandem::cpu
