// AVX-512 with BF16: kBF16 weights multiply activations rounded to bf16, two columns at a time, into f32 sums.
// Other weights take the AVX-512 kernels. vcvtneps2bf16 and vdpbf16ps flush denormals to zero, in and out.
#include <immintrin.h>

#include <array>
#include <cstring>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")

namespace tandem::cpu {
namespace {

// As for the other types (linear_avx512.cpp), whose panels these share.
constexpr int kLoneRows = 8;
constexpr int kPanelRows = 6;

// T tiles at once: enough independent sums to hide the latency of a short panel, shared broadcasts for a tall one.
template <int R, int T>
void pair_tile_group(const std::byte* tiles, std::int64_t size, std::int64_t pairs, const std::byte* panel, float* y,
                     std::int64_t stride) {
  const std::int64_t ahead = bytes_ahead(T, size);
  __m512 acc[T][R];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_ps();
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair, tiles += 64, panel += 4 * R) {
    __m512i weight[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      weight[t] = _mm512_loadu_si512(tiles + t * size);
      _mm_prefetch(reinterpret_cast<const char*>(tiles + t * size + ahead), _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto value = (__m512bh)_mm512_set1_epi32(load_i32(panel + 4 * r));
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][r] = _mm512_dpbf16_ps(acc[t][r], (__m512bh)weight[t], value);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(y + r * stride + t * kTileRows, acc[t][r]);
  }
}

template <int R, int T>
void pair_tiles(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel, float* y,
                std::int64_t stride) {
  const std::int64_t size = tile_bytes(DType::kBF16, cols);
  const std::int64_t pairs = (cols + 1) / 2;
  std::int64_t tile = 0;
  for (; tile + T <= num_tiles; tile += T) {
    pair_tile_group<R, T>(tiles + tile * size, size, pairs, panel, y + tile * kTileRows, stride);
  }
  for (; tile < num_tiles; ++tile) {
    pair_tile_group<R, 1>(tiles + tile * size, size, pairs, panel, y + tile * kTileRows, stride);
  }
}

TileKernel kernel(DType dtype, int rows, Panels panels) {
  static constexpr std::array<TileKernel, kLoneRows> kPairs = {pair_tiles<1, 4>, pair_tiles<2, 2>, pair_tiles<3, 2>,
                                                               pair_tiles<4, 2>, pair_tiles<5, 2>, pair_tiles<6, 2>,
                                                               pair_tiles<7, 2>, pair_tiles<8, 2>};
  if (dtype == DType::kBF16) return kPairs[static_cast<std::size_t>(rows - 1)];
  return avx512::linear_kernel(dtype, rows, panels);
}

void round_row(const float* x, std::int64_t cols, std::byte* panel, int rows, int lane) {
  panel += 4 * lane;
  for (std::int64_t k = 0; k < cols; k += 16) {
    const std::int64_t left = cols - k;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1 << left) - 1);
    const auto rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + k));
    std::array<std::int32_t, 8> pairs;
    std::memcpy(pairs.data(), &rounded, sizeof(pairs));
    for (std::size_t i = 0; i < 8 && k + 2 * static_cast<std::int64_t>(i) < cols; ++i, panel += 4 * rows) {
      std::memcpy(panel, &pairs[i], 4);
    }
  }
}

}  // namespace

void avx512_bf16::linear(const LinearArgs& args, Team& team) {
  run_linear(args, team, {kLoneRows, kPanelRows, kernel, round_row});
}

}  // namespace tandem::cpu
