// Inside of the linear op: the driver (linear.cpp) prepares the activations and splits the work, the kernels
// (linear_avx2.cpp, linear_avx512.cpp) multiply tiles. No one but these files includes it.
//
// Activations are prepared in panels of up to `panel_rows` rows, R of them side by side. For quantised weights, per
// block of 32 columns: int8 quants [R][32], then [R] each of float scale, float scale * sum(quants),
// int32 -8 * sum(quants), 2 x int16 -16 * sum(quants) of columns 0-15 and 16-31. For float weights: [cols][R] floats.
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

#include "kernels/cpu/pack.h"
#include "kernels/cpu/team.h"
#include "tandem/backend.h"

namespace tandem::cpu {

inline constexpr std::int64_t kPanelTrailer = 16;  // bytes per row and block after the quants

// Multiplies `num_tiles` tiles of 16 outputs with a panel: y[row * stride + 16 * tile + lane].
using TileKernel = void (*)(const std::byte* tiles, std::int64_t num_tiles, std::int64_t cols, const std::byte* panel,
                            float* y, std::int64_t stride);

struct LinearKernels {
  int panel_rows;
  TileKernel (*kernel)(DType dtype, int rows);  // 1 <= rows <= panel_rows
};

// Quantises one row of `blocks * 32` floats into place `lane` of a panel of `rows` rows. A block with an infinity or
// a NaN gets the scale NaN, which every output that reads it shows.
void quantise_row(const float* x, std::int64_t blocks, std::byte* panel, int rows, int lane);

void run_linear(const LinearArgs& args, Team& team, const LinearKernels& kernels);

}  // namespace tandem::cpu
