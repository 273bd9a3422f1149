// The CPU's weight layout, made once when weights are loaded; read by linear*.cpp and embed.cpp.
//
// Output features go in tiles of 16, one vector lane each, so that a sum over the inputs stays in its lane: it has
// one order, whatever the number of rows, threads or the vector width. The last tile is padded with zeros.
// A tile is one run of memory, rounded up to 64 bytes; tiles follow one another. Within a tile:
//   kF32, kF16, kBF16: for each input column k, the 16 values of column k.
//   kQ4_0, kQ4_1, kQ8_0: for each block of 32 columns a record of
//     quants: 64-byte vectors of 16 rows x 4 neighbouring columns (what one vpdpbusd reads).
//             4 bits: 4 vectors; vector j holds columns 4j.. in the low and 16 + 4j.. in the high nibbles.
//             8 bits: 8 vectors; vector j holds columns 4j.., stored unsigned as value + 128.
//     scales: 16 x f16;  kQ4_1 then its minima: 16 x f16.
//   A value is scale * (quant - 8), scale * quant + minimum, or scale * (stored - 128).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "tandem/backend.h"

namespace tandem::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kBlockCols = 32;

constexpr bool is_quantised(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4_1;
}

// Bytes of one record: of a block for quantised types, of a column for the others.
constexpr std::int64_t record_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kTileRows * 4;
    case DType::kF16:
    case DType::kBF16: return kTileRows * 2;
    case DType::kQ8_0: return kTileRows * (kBlockCols + 2);
    case DType::kQ4_0: return kTileRows * (kBlockCols / 2 + 2);
    case DType::kQ4_1: return kTileRows * (kBlockCols / 2 + 4);
  }
  return 0;
}

constexpr std::int64_t quant_bytes(DType dtype) { return kTileRows * (dtype == DType::kQ8_0 ? 32 : 16); }

constexpr std::int64_t num_tiles(std::int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

constexpr std::int64_t tile_bytes(DType dtype, std::int64_t cols) {
  const std::int64_t records = is_quantised(dtype) ? cols / kBlockCols : cols;
  return (records * record_bytes(dtype) + 63) / 64 * 64;
}

// Size of the packed matrix; an error for a shape the layout cannot hold.
absl::StatusOr<std::size_t> packed_bytes(const WeightSource& source);

// Writes tiles [begin, end) of the packed matrix at `destination`. The shape must have passed packed_bytes().
void pack_tiles(const WeightSource& source, std::byte* destination, std::int64_t begin, std::int64_t end);

// Row `row` of a packed matrix as floats: `weight.cols` of them.
void unpack_row(const Weight& weight, std::int64_t row, float* out);

}  // namespace tandem::cpu
