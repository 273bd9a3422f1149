// The CPU's weight layout, made once when weights are loaded; read by linear*.cpp and embed.cpp.
//
// Output features go in tiles of 16, one vector lane each, so that a sum over the inputs stays in its lane: it has
// one order, whatever the number of rows, threads or the vector width. The last tile is padded with zeros.
// A tile is one run of memory, rounded up to 64 bytes; tiles follow one another. Within a tile:
//   kF32, kF16: for each input column k, the 16 values of column k.
//   kBF16: for each pair of columns 16 rows x 2 values (what one vdpbf16ps reads); an odd last one pairs with zeros.
//   kQ4_0, kQ4_1, kQ8_0: for each block of 32 columns a record of
//     quants: 64-byte vectors of 16 rows x 4 neighbouring columns (what one vpdpbusd reads).
//             4 bits: 4 vectors; vector j holds columns 4j.. in the low and 16 + 4j.. in the high nibbles.
//             8 bits: 8 vectors; vector j holds columns 4j.., stored unsigned as value + 128.
//     scales: 16 x f16;  kQ4_1 then its minima: 16 x f16.
//   A value is scale * (quant - 8), scale * quant + minimum, or scale * (stored - 128).
//   kQ5_0: as kQ8_0, whose bytes hold its values exactly.
//   kQ4_K, kQ6_K: for each superblock of 8 blocks a record of
//     quants: the 8 blocks' 4-bit vectors as above, one block after the other;
//     kQ4_K:  for each block 16 x u8 factor and 16 x u8 minimum; then 16 x f16 scale; then 16 x f16 scale of minima.
//             A value is scale * factor * quant - scale of minima * minimum.
//     kQ6_K:  for each block 2 vectors of upper bits: bits 0-1, 2-3, 4-5, 6-7 of a byte of vector v belong to the
//             low and the high nibble of vector 2v, the low and the high nibble of vector 2v + 1;
//             then for each block 16 x 2 x i8 factor, of columns 0-15 and of 16-31; then 16 x f32 scale.
//             A value is scale * factor * (quant - 32).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "tandem/backend.h"

namespace tandem::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kBlockCols = 32;

constexpr bool is_quantised(DType dtype) {
  return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
}

// Blocks of 32 columns in one record of a quantised type.
constexpr int record_blocks(DType dtype) { return dtype == DType::kQ4_K || dtype == DType::kQ6_K ? 8 : 1; }

constexpr std::int64_t record_cols(DType dtype) { return is_quantised(dtype) ? record_blocks(dtype) * kBlockCols : 1; }

// Bytes of one record of a tile; 0 for a type the layout does not know.
constexpr std::int64_t record_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kTileRows * 4;
    case DType::kF16:
    case DType::kBF16: return kTileRows * 2;
    case DType::kQ5_0:
    case DType::kQ8_0: return kTileRows * (kBlockCols + 2);
    case DType::kQ4_0: return kTileRows * (kBlockCols / 2 + 2);
    case DType::kQ4_1: return kTileRows * (kBlockCols / 2 + 4);
    case DType::kQ4_K: return kTileRows * (8 * (kBlockCols / 2 + 2) + 4);
    case DType::kQ6_K: return kTileRows * (8 * (kBlockCols / 2 + kBlockCols / 4 + 2) + 4);
  }
  return 0;
}

// Of one block's bytes or nibbles; the upper bits of kQ6_K take kUpperBytes more.
constexpr std::int64_t quant_bytes(DType dtype) {
  return kTileRows * (dtype == DType::kQ8_0 || dtype == DType::kQ5_0 ? kBlockCols : kBlockCols / 2);
}
inline constexpr std::int64_t kUpperBytes = kTileRows * kBlockCols / 4;

// Where a record's factors (kQ4_K, kQ6_K: kFactorBytes for each block) and its scales begin.
inline constexpr std::int64_t kFactorBytes = kTileRows * 2;
constexpr std::int64_t factors_offset(DType dtype) {
  return record_blocks(dtype) * (quant_bytes(dtype) + (dtype == DType::kQ6_K ? kUpperBytes : 0));
}
constexpr std::int64_t scales_offset(DType dtype) {
  return factors_offset(dtype) + (record_blocks(dtype) == 1 ? 0 : record_blocks(dtype) * kFactorBytes);
}

constexpr std::int64_t num_tiles(std::int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

constexpr std::int64_t tile_bytes(DType dtype, std::int64_t cols) {
  return (cols / record_cols(dtype) * record_bytes(dtype) + 63) / 64 * 64;
}

// Size of the packed matrix; an error for a shape the layout cannot hold.
absl::StatusOr<std::size_t> packed_bytes(const WeightSource& source);

// Writes tiles [begin, end) of the packed matrix at `destination`. The shape must have passed packed_bytes().
void pack_tiles(const WeightSource& source, std::byte* destination, std::int64_t begin, std::int64_t end);

// Row `row` of a packed matrix as floats: `weight.cols` of them.
void unpack_row(const Weight& weight, std::int64_t row, float* out);

}  // namespace tandem::cpu
