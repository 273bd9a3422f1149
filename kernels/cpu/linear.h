// Inside of the linear op: the driver (linear.cpp) prepares the activations and splits the work, the kernels
// (linear_avx2.cpp, linear_avx512*.cpp) multiply tiles. No one but these files includes it.
//
// Activations are prepared in panels, R rows of them side by side. For quantised weights, per
// block of 32 columns: int8 quants [R][32], then [R] each of float scale, float scale * sum(quants),
// int32 -8 * sum(quants), 2 x int16 -16 * sum(quants) of columns 0-15 and 16-31. For float weights: [cols][R] floats;
// but kBF16 weights of linear_avx512_bf16.cpp multiply [ceil(cols / 2)][R] pairs of bf16, rounded to even.
// Quants are round-to-even(x / scale) with scale = max|x| / 127 of the block.
//
// One output's sum, in this order whatever the kernel: for each block
//   acc = fma(dot, weight_scale * scale, acc), then for kQ4_1 and kQ4_K  acc = fma(minimum, scale * sum, acc)
// with dot the exact integer sum, for kQ6_K of its halves' sums times their factors (below 2^24, so exact in float32
// too), and kQ4_K's weight_scale and minimum the exact products of scale and factor. For float weights
// acc = fma(weight, x, acc) for each column. The bias comes last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/team.h"
#include "tandem/backend.h"

namespace tandem::cpu {

inline constexpr std::int64_t kPanelTrailer = 16;  // bytes per row and block after the quants

// Multiplies `num_tiles` tiles of 16 outputs with a panel: y[row * stride + 16 * tile + lane].
using TileKernel = void (*)(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel,
                            float* y, std::int64_t stride);

// One panel passes by each tile, bound by memory; or several do, bound by arithmetic.
enum class Panels : std::uint8_t { kOne, kMany };

struct LinearKernels {
  int lone_rows;   // up to this many rows are one panel
  int panel_rows;  // more are split into panels of nearly equal height, up to this many
  TileKernel (*kernel)(DType dtype, int rows, Panels panels);
  // Writes one row's panel of bf16 pairs for kBF16 weights; null if those multiply floats.
  void (*round_row)(const float* x, std::int64_t cols, std::byte* panel, int rows, int lane);
};

namespace avx512 {
TileKernel linear_kernel(DType dtype, int rows, Panels panels);
TileKernel super_kernel(DType dtype, int rows);  // kQ4_K, kQ6_K
}  // namespace avx512

// The processor's own prefetch stops at the page's end. One stream of weights is fetched so many bytes before its use;
// several are fetched a whole group of tiles before, unless that would flood the L2 cache.
inline constexpr std::int64_t kAhead = 12'288;
inline constexpr std::int64_t kFarthest = 262'144;

constexpr std::int64_t bytes_ahead(int num_streams, std::int64_t tile_size) {
  return num_streams == 1 || num_streams * tile_size > kFarthest ? kAhead : num_streams * tile_size;
}

inline std::int32_t load_i32(const std::byte* from) {
  std::int32_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline float load_f32(const std::byte* from) {
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Quantises one row of `blocks * 32` floats into place `lane` of a panel of `rows` rows. A block with an infinity or
// a NaN gets the scale NaN, which every output that reads it shows.
void quantise_row(const float* x, std::int64_t blocks, std::byte* panel, int rows, int lane);

void run_linear(const LinearArgs& args, Team& team, const LinearKernels& kernels);

}  // namespace tandem::cpu
