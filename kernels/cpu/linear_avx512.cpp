// AVX-512 with VNNI: a vector is one tile's 16 outputs, so a panel of R rows keeps R sums in registers while a
// weight vector, unpacked once, serves all of them. Reads each tile once per panel.
#include <immintrin.h>

#include <array>
#include <cstring>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace tandem::cpu {
namespace {

constexpr int kLoneRows = 8;
constexpr int kPanelRows = 6;

inline __m512 load_halves(const std::byte* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// T tiles at once share each broadcast activation: with one tile, loads and not products set the pace. But a lone
// panel, bound by memory, reads faster in one stream.
template <DType D, int R, int T>
void quant_tile_group(const std::byte* tiles, std::int64_t size, std::int64_t blocks, const std::byte* x, float* y,
                      std::int64_t stride) {
  constexpr int kVectors = static_cast<int>(quant_bytes(D) / 64);
  constexpr std::int64_t kStep = R * (kBlockCols + kPanelTrailer);
  const std::int64_t ahead = bytes_ahead(T, size);
  const __m512i low_nibbles = _mm512_set1_epi8(15);
  __m512 acc[T][R];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_ps();
  }
  for (std::int64_t block = 0; block < blocks; ++block, tiles += record_bytes(D), x += kStep) {
    const std::byte* trailer = x + R * kBlockCols;
    __m512i dot[T][R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      // The zero point leaves as an integer: the sum starts at -zero * sum(quants).
      __m512i start = _mm512_setzero_si512();
      if constexpr (D == DType::kQ4_0) start = _mm512_set1_epi32(load_i32(trailer + 8 * R + 4 * r));
      if constexpr (D == DType::kQ8_0)
        start = _mm512_slli_epi32(_mm512_set1_epi32(load_i32(trailer + 8 * R + 4 * r)), 4);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) dot[t][r] = start;
    }
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      __m512i weight[T];
      __m512i high[T];
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const std::byte* from = tiles + t * size + 64 * j;
        weight[t] = _mm512_loadu_si512(from);
        _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T0);
        if constexpr (D != DType::kQ8_0) {
          high[t] = _mm512_and_si512(_mm512_srli_epi16(weight[t], 4), low_nibbles);
          weight[t] = _mm512_and_si512(weight[t], low_nibbles);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512i value = _mm512_set1_epi32(load_i32(x + r * kBlockCols + 4 * j));
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) dot[t][r] = _mm512_dpbusd_epi32(dot[t][r], weight[t], value);
      }
      if constexpr (D == DType::kQ8_0) continue;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512i value = _mm512_set1_epi32(load_i32(x + r * kBlockCols + 16 + 4 * j));
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) dot[t][r] = _mm512_dpbusd_epi32(dot[t][r], high[t], value);
      }
    }
    __m512 scale[T];
    __m512 minimum[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      scale[t] = load_halves(tiles + t * size + quant_bytes(D));
      if constexpr (D == DType::kQ4_1) minimum[t] = load_halves(tiles + t * size + quant_bytes(D) + 2 * kTileRows);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512 x_scale = _mm512_set1_ps(load_f32(trailer + 4 * r));
      const __m512 x_sum = _mm512_set1_ps(load_f32(trailer + 4 * R + 4 * r));
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        acc[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t][r]), _mm512_mul_ps(scale[t], x_scale), acc[t][r]);
        if constexpr (D == DType::kQ4_1) acc[t][r] = _mm512_fmadd_ps(minimum[t], x_sum, acc[t][r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(y + r * stride + t * kTileRows, acc[t][r]);
  }
}

template <DType D, int R, int T>
void quant_tiles(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel, float* y,
                 std::int64_t stride) {
  const std::int64_t size = tile_bytes(D, cols);
  const std::int64_t blocks = cols / kBlockCols;
  std::int64_t tile = 0;
  for (; tile + T <= num_tiles; tile += T) {
    quant_tile_group<D, R, T>(tiles + tile * size, size, blocks, panel, y + tile * kTileRows, stride);
  }
  for (; tile < num_tiles; ++tile) {
    quant_tile_group<D, R, 1>(tiles + tile * size, size, blocks, panel, y + tile * kTileRows, stride);
  }
}

// Column `k` of a tile; Odd says which of its pair it is.
template <DType D, bool Odd>
inline __m512 load_column(const std::byte* tile, std::int64_t k) {
  if constexpr (D == DType::kF32) {
    return _mm512_loadu_ps(tile + k * record_bytes(D));
  } else if constexpr (D == DType::kF16) {
    return load_halves(tile + k * record_bytes(D));
  } else {
    const __m512i pairs = _mm512_loadu_si512(tile + (k - Odd) * record_bytes(D));
    return _mm512_castsi512_ps(Odd ? _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)))
                                   : _mm512_slli_epi32(pairs, 16));
  }
}

template <DType D, bool Odd, int R, int T>
[[gnu::always_inline]] inline void add_column(const std::byte* tiles, std::int64_t size, std::int64_t k,
                                              const std::byte* panel, __m512 (&acc)[T][R]) {
  const std::int64_t ahead = bytes_ahead(T, size);
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
    const __m512 weight = load_column<D, Odd>(tiles + t * size, k);
    if constexpr (D == DType::kF32 ? R > 1 : !Odd) {
      _mm_prefetch(reinterpret_cast<const char*>(tiles + t * size + k * record_bytes(D) + ahead), _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      acc[t][r] = _mm512_fmadd_ps(weight, _mm512_set1_ps(load_f32(panel + (k * R + r) * 4)), acc[t][r]);
    }
  }
}

// T tiles at once, so that a short panel still has enough independent sums to hide an fma's latency.
template <DType D, int R, int T>
void float_tile_group(const std::byte* tiles, std::int64_t size, std::int64_t cols, const std::byte* panel, float* y,
                      std::int64_t stride) {
  __m512 acc[T][R];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_ps();
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
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(y + r * stride + t * kTileRows, acc[t][r]);
  }
}

template <DType D, int R, int T>
void float_tiles(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel, float* y,
                 std::int64_t stride) {
  const std::int64_t size = tile_bytes(D, cols);
  std::int64_t tile = 0;
  for (; tile + T <= num_tiles; tile += T) {
    float_tile_group<D, R, T>(tiles + tile * size, size, cols, panel, y + tile * kTileRows, stride);
  }
  for (; tile < num_tiles; ++tile) {
    float_tile_group<D, R, 1>(tiles + tile * size, size, cols, panel, y + tile * kTileRows, stride);
  }
}

template <DType D, int R, Panels P>
constexpr TileKernel kernel_of() {
  if constexpr (is_quantised(D)) {
    return quant_tiles<D, R, (P == Panels::kMany ? 2 : 1)>;
  } else {
    return float_tiles<D, R, (P == Panels::kMany ? 2 : R >= 4 ? 1 : R >= 2 ? 2 : 4)>;
  }
}

template <DType D>
constexpr std::array<TileKernel, kLoneRows> kernels_of_one() {
  return {kernel_of<D, 1, Panels::kOne>(), kernel_of<D, 2, Panels::kOne>(), kernel_of<D, 3, Panels::kOne>(),
          kernel_of<D, 4, Panels::kOne>(), kernel_of<D, 5, Panels::kOne>(), kernel_of<D, 6, Panels::kOne>(),
          kernel_of<D, 7, Panels::kOne>(), kernel_of<D, 8, Panels::kOne>()};
}

// Of nine rows or more, panels of nearly equal height have four to six.
template <DType D>
constexpr std::array<TileKernel, kPanelRows> kernels_of_many() {
  return {nullptr,
          nullptr,
          nullptr,
          kernel_of<D, 4, Panels::kMany>(),
          kernel_of<D, 5, Panels::kMany>(),
          kernel_of<D, 6, Panels::kMany>()};
}

}  // namespace

TileKernel avx512::linear_kernel(DType dtype, int rows, Panels panels) {
  if (dtype == DType::kQ4_K || dtype == DType::kQ6_K) return super_kernel(dtype, rows);
  if (dtype == DType::kQ5_0) dtype = DType::kQ8_0;  // it is packed so
  static constexpr std::array<std::array<TileKernel, kLoneRows>, 6> kOne = {
      kernels_of_one<DType::kF32>(),  kernels_of_one<DType::kF16>(),  kernels_of_one<DType::kBF16>(),
      kernels_of_one<DType::kQ8_0>(), kernels_of_one<DType::kQ4_0>(), kernels_of_one<DType::kQ4_1>()};
  static constexpr std::array<std::array<TileKernel, kPanelRows>, 6> kMany = {
      kernels_of_many<DType::kF32>(),  kernels_of_many<DType::kF16>(),  kernels_of_many<DType::kBF16>(),
      kernels_of_many<DType::kQ8_0>(), kernels_of_many<DType::kQ4_0>(), kernels_of_many<DType::kQ4_1>()};
  const auto type = static_cast<std::size_t>(dtype);
  const auto row = static_cast<std::size_t>(rows - 1);
  return panels == Panels::kOne ? kOne[type][row] : kMany[type][row];
}

void avx512::linear(const LinearArgs& args, Team& team) {
  run_linear(args, team, {kLoneRows, kPanelRows, avx512::linear_kernel, nullptr});
}

}  // namespace tandem::cpu
