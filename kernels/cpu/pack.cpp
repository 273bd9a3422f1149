// One tile at a time, rows in the outer loop: reads each source row once, in order.
#include "kernels/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "fmt/core.h"

namespace tandem::cpu {
namespace {

constexpr int kSuperCols = 256;

// One row's record in the file. For blocks of 32: f16 scale, for kQ4_1 the f16 minimum, then the quants. The others
// differ from the packed form: kQ5_0 has its fifth bits apart, kQ4_K its factors in 6 bits, kQ6_K its scale in f16.
constexpr std::int64_t source_record_bytes(DType dtype) {
  switch (dtype) {
    case DType::kQ5_0: return 22;
    case DType::kQ4_K: return 144;
    case DType::kQ6_K: return 210;
    default: return record_bytes(dtype) / kTileRows;
  }
}

float f16_to_f32(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
void pack_float_row(const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  for (std::int64_t k = 0; k < cols; ++k) {
    std::memcpy(tile + (k * kTileRows + lane) * std::int64_t{sizeof(T)}, row + k * std::int64_t{sizeof(T)}, sizeof(T));
  }
}

// Where byte `i` of a row's block lies among the block's vectors.
constexpr std::int64_t quant_at(int i, int lane) { return i / 4 * 64 + lane * 4 + i % 4; }

// Where column `k` of row `lane` lies in a tile of kBF16.
constexpr std::int64_t bf16_offset(std::int64_t k, int lane) { return k / 2 * 64 + lane * 4 + k % 2 * 2; }

void pack_bf16_row(const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  for (std::int64_t k = 0; k < cols; ++k) std::memcpy(tile + bf16_offset(k, lane), row + 2 * k, 2);
}

void pack_quant_row(DType dtype, const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  const std::int64_t header = dtype == DType::kQ4_1 ? 4 : 2;
  const std::uint32_t flip = dtype == DType::kQ8_0 ? 0x80808080U : 0U;  // adds 128 to each of the four
  const std::int64_t words = quant_bytes(dtype) / kTileRows / 4;
  const std::int64_t step = source_record_bytes(dtype);
  std::byte* to = tile + 4 * lane;
  for (std::int64_t block = 0; block < cols / kBlockCols; ++block, row += step, to += record_bytes(dtype)) {
    for (std::int64_t i = 0; i < words; ++i) {
      const std::uint32_t word = load<std::uint32_t>(row + header + 4 * i) ^ flip;
      std::memcpy(to + 64 * i, &word, 4);
    }
    std::byte* scales = to - 2 * lane + scales_offset(dtype);
    std::memcpy(scales, row, 2);
    if (dtype == DType::kQ4_1) std::memcpy(scales + 2 * kTileRows, row + 2, 2);
  }
}

// f16 scale, 32 fifth bits, then the nibbles; a value is scale * (quant - 16).
void pack_q5_0_row(const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  constexpr DType kType = DType::kQ5_0;
  for (std::int64_t block = 0; block < cols / kBlockCols; ++block) {
    const std::byte* from = row + block * source_record_bytes(kType);
    std::byte* to = tile + block * record_bytes(kType);
    const auto fifth_bits = load<std::uint32_t>(from + 2);
    for (int k = 0; k < kBlockCols; ++k) {
      const int nibbles = std::to_integer<int>(from[6 + k % 16]);
      const int quant = (k < 16 ? nibbles & 15 : nibbles >> 4) | static_cast<int>(fifth_bits >> k & 1) << 4;
      to[quant_at(k, lane)] = static_cast<std::byte>(quant - 16 + 128);
    }
    std::memcpy(to + scales_offset(kType) + 2 * lane, from, 2);
  }
}

// The 6-bit factor and minimum of block b out of 12 bytes: blocks 0-3 in the low 6 bits of bytes b and 4 + b; blocks
// 4-7 with 4 bits in the nibbles of byte 4 + b, the upper 2 at the top of bytes b - 4 and b.
std::pair<int, int> factor_and_minimum(const std::byte* bytes, int block) {
  const auto at = [bytes](int i) { return std::to_integer<int>(bytes[i]); };
  if (block < 4) return {at(block) & 63, at(block + 4) & 63};
  return {(at(block + 4) & 15) | at(block - 4) >> 6 << 4, at(block + 4) >> 4 | at(block) >> 6 << 4};
}

// f16 scale, f16 scale of the minima, 12 bytes of factors and minima, then 4 x 32 bytes of nibbles: each 32 hold one
// block in the low and the next in the high nibbles.
void pack_q4_k_row(const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  constexpr DType kType = DType::kQ4_K;
  for (std::int64_t super = 0; super < cols / kSuperCols; ++super) {
    const std::byte* from = row + super * source_record_bytes(kType);
    std::byte* to = tile + super * record_bytes(kType);
    for (int block = 0; block < record_blocks(kType); ++block) {
      const std::byte* nibbles = from + 16 + block / 2 * 32;
      const auto quant = [&](int k) { return std::to_integer<int>(nibbles[k]) >> (block % 2 * 4) & 15; };
      std::byte* quants = to + block * quant_bytes(kType);
      for (int i = 0; i < 16; ++i) quants[quant_at(i, lane)] = static_cast<std::byte>(quant(i) | quant(16 + i) << 4);
      const auto [factor, minimum] = factor_and_minimum(from + 4, block);
      std::byte* factors = to + factors_offset(kType) + block * kFactorBytes;
      factors[lane] = static_cast<std::byte>(factor);
      factors[kTileRows + lane] = static_cast<std::byte>(minimum);
    }
    std::byte* scales = to + scales_offset(kType);
    std::memcpy(scales + 2 * lane, from, 2);
    std::memcpy(scales + 2 * (kTileRows + lane), from + 2, 2);
  }
}

// 128 bytes of low nibbles, 64 of upper bit pairs, 16 i8 factors, f16 scale. Each half of 128 columns has 64 bytes of
// nibbles, columns 0-63 in the low and 64-127 in the high ones, and 32 of pairs, columns 32 p.. in bits 2 p.
void pack_q6_k_row(const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  constexpr DType kType = DType::kQ6_K;
  for (std::int64_t super = 0; super < cols / kSuperCols; ++super) {
    const std::byte* from = row + super * source_record_bytes(kType);
    std::byte* to = tile + super * record_bytes(kType);
    for (int block = 0; block < record_blocks(kType); ++block) {
      const std::byte* nibbles = from + block / 4 * 64 + block % 2 * 32;
      const std::byte* pairs = from + 128 + block / 4 * 32;
      const auto low = [&](int k) { return std::to_integer<int>(nibbles[k]) >> (block % 4 / 2 * 4) & 15; };
      const auto upper = [&](int k) { return std::to_integer<int>(pairs[k]) >> (block % 4 * 2) & 3; };
      std::byte* quants = to + block * quant_bytes(kType);
      std::byte* uppers = to + record_blocks(kType) * quant_bytes(kType) + block * kUpperBytes;
      for (int i = 0; i < 16; ++i) {
        quants[quant_at(i, lane)] = static_cast<std::byte>(low(i) | low(16 + i) << 4);
        const int vector = i / 4;
        uppers[quant_at(vector / 2 * 4 + i % 4, lane)] |=
            static_cast<std::byte>((upper(i) | upper(16 + i) << 2) << (vector % 2 * 4));
      }
      std::memcpy(to + factors_offset(kType) + block * kFactorBytes + 2 * lane, from + 192 + 2 * block, 2);
    }
    const float scale = f16_to_f32(load<std::uint16_t>(from + 208));
    std::memcpy(to + scales_offset(kType) + 4 * lane, &scale, 4);
  }
}

void unpack_q4_k(const std::byte* record, int lane, float* out) {
  constexpr DType kType = DType::kQ4_K;
  const std::byte* scales = record + scales_offset(kType);
  const float scale = f16_to_f32(load<std::uint16_t>(scales + 2 * lane));
  const float minimum_scale = f16_to_f32(load<std::uint16_t>(scales + 2 * (kTileRows + lane)));
  for (int k = 0; k < kSuperCols; ++k) {
    const int block = k / kBlockCols;
    const std::byte* factors = record + factors_offset(kType) + block * kFactorBytes;
    const int nibbles = std::to_integer<int>(record[block * quant_bytes(kType) + quant_at(k % 16, lane)]);
    const int quant = k % kBlockCols < 16 ? nibbles & 15 : nibbles >> 4;
    out[k] = scale * static_cast<float>(std::to_integer<int>(factors[lane]) * quant) -
             minimum_scale * static_cast<float>(std::to_integer<int>(factors[kTileRows + lane]));
  }
}

void unpack_q6_k(const std::byte* record, int lane, float* out) {
  constexpr DType kType = DType::kQ6_K;
  const auto scale = load<float>(record + scales_offset(kType) + 4 * lane);
  for (int k = 0; k < kSuperCols; ++k) {
    const int block = k / kBlockCols;
    const int half = k % kBlockCols / 16;
    const int vector = k % 16 / 4;
    const std::byte* uppers = record + record_blocks(kType) * quant_bytes(kType) + block * kUpperBytes;
    const int nibbles = std::to_integer<int>(record[block * quant_bytes(kType) + quant_at(k % 16, lane)]);
    const int pairs = std::to_integer<int>(uppers[quant_at(vector / 2 * 4 + k % 4, lane)]);
    const int quant = (nibbles >> (4 * half) & 15) | (pairs >> (vector % 2 * 4 + 2 * half) & 3) << 4;
    const auto factor = load<std::int8_t>(record + factors_offset(kType) + block * kFactorBytes + 2 * lane + half);
    out[k] = scale * static_cast<float>(factor * (quant - 32));
  }
}

void unpack_record(DType dtype, const std::byte* record, int lane, float* out) {
  if (dtype == DType::kQ4_K) return unpack_q4_k(record, lane, out);
  if (dtype == DType::kQ6_K) return unpack_q6_k(record, lane, out);
  if (dtype == DType::kQ5_0) dtype = DType::kQ8_0;
  const std::byte* scales = record + scales_offset(dtype);
  const float scale = f16_to_f32(load<std::uint16_t>(scales + 2 * lane));
  const float minimum = dtype == DType::kQ4_1 ? f16_to_f32(load<std::uint16_t>(scales + 2 * (kTileRows + lane))) : 0.0F;
  const int zero = dtype == DType::kQ8_0 ? 128 : dtype == DType::kQ4_0 ? 8 : 0;
  for (int k = 0; k < kBlockCols; ++k) {
    const int i = dtype == DType::kQ8_0 ? k : k % 16;
    int quant = std::to_integer<int>(record[quant_at(i, lane)]);
    if (dtype != DType::kQ8_0) quant = k < 16 ? quant & 15 : quant >> 4;
    out[k] = scale * static_cast<float>(quant - zero) + minimum;
  }
}

}  // namespace

absl::StatusOr<std::size_t> packed_bytes(const WeightSource& source) {
  // Rows and columns below 2^31 and at most 4 bytes an element: no product below overflows.
  constexpr std::int64_t kMaxSide = (std::int64_t{1} << 31) - kTileRows;
  const auto shape = [&source] { return fmt::format("{} x {}", source.rows, source.cols); };
  if (source.rows < 1 || source.cols < 1 || source.rows > kMaxSide || source.cols > kMaxSide) {
    return absl::InvalidArgumentError(
        fmt::format("matrix of {}: rows and columns must lie in [1, {}]", shape(), kMaxSide));
  }
  if (record_bytes(source.dtype) == 0) {
    return absl::InvalidArgumentError(fmt::format("matrix of {}: element type {} is unknown to the CPU backend",
                                                  shape(), static_cast<int>(source.dtype)));
  }
  if (source.cols % record_cols(source.dtype) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("matrix of {}: the columns of a quantised type come in blocks of {}; use f16 or f32 for it",
                    shape(), record_cols(source.dtype)));
  }
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(num_tiles(source.rows), tile_bytes(source.dtype, source.cols), &bytes)) {
    return absl::InvalidArgumentError(fmt::format("matrix of {} does not fit an address space", shape()));
  }
  return bytes;
}

void pack_tiles(const WeightSource& source, std::byte* destination, std::int64_t begin, std::int64_t end) {
  const DType dtype = source.dtype;
  const std::int64_t size = tile_bytes(dtype, source.cols);
  const std::int64_t row_bytes = source.cols / record_cols(dtype) * source_record_bytes(dtype);
  for (std::int64_t tile = begin; tile < end; ++tile) {
    std::byte* to = destination + tile * size;
    const std::int64_t first = tile * kTileRows;
    const int lanes = static_cast<int>(std::min<std::int64_t>(kTileRows, source.rows - first));
    // What no row writes: everything of missing rows, otherwise the end of the last line; kQ6_K's rows add to it.
    const bool all = lanes < kTileRows || dtype == DType::kQ6_K;
    const std::int64_t unwritten = all ? size : std::min<std::int64_t>(size, 64);
    std::memset(to + size - unwritten, 0, static_cast<std::size_t>(unwritten));
    for (int lane = 0; lane < lanes; ++lane) {
      const std::byte* row = source.data + (first + lane) * row_bytes;
      switch (dtype) {
        case DType::kF32: pack_float_row<float>(row, source.cols, lane, to); break;
        case DType::kF16: pack_float_row<std::uint16_t>(row, source.cols, lane, to); break;
        case DType::kBF16: pack_bf16_row(row, source.cols, lane, to); break;
        case DType::kQ5_0: pack_q5_0_row(row, source.cols, lane, to); break;
        case DType::kQ4_K: pack_q4_k_row(row, source.cols, lane, to); break;
        case DType::kQ6_K: pack_q6_k_row(row, source.cols, lane, to); break;
        default: pack_quant_row(dtype, row, source.cols, lane, to); break;
      }
    }
  }
}

void unpack_row(const Weight& weight, std::int64_t row, float* out) {
  const std::byte* tile = weight.data + row / kTileRows * tile_bytes(weight.dtype, weight.cols);
  const int lane = static_cast<int>(row % kTileRows);
  if (is_quantised(weight.dtype)) {
    const std::int64_t cols = record_cols(weight.dtype);
    for (std::int64_t record = 0; record < weight.cols / cols; ++record) {
      unpack_record(weight.dtype, tile + record * record_bytes(weight.dtype), lane, out + record * cols);
    }
    return;
  }
  const std::int64_t step = record_bytes(weight.dtype);
  const std::byte* from = tile + step / kTileRows * lane;
  for (std::int64_t k = 0; k < weight.cols; ++k, from += step) {
    switch (weight.dtype) {
      case DType::kF16: out[k] = f16_to_f32(load<std::uint16_t>(from)); break;
      case DType::kBF16: out[k] = bf16_to_f32(load<std::uint16_t>(tile + bf16_offset(k, lane))); break;
      default: out[k] = load<float>(from); break;
    }
  }
}

}  // namespace tandem::cpu
