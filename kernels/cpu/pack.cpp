// One tile at a time, rows in the outer loop: reads each source row once, in order.
#include "kernels/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "fmt/core.h"

namespace tandem::cpu {
namespace {

// A block in the file: f16 scale, for kQ4_1 the f16 minimum, then the quants.
constexpr std::int64_t source_record_bytes(DType dtype) { return record_bytes(dtype) / kTileRows; }

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

void pack_quant_row(DType dtype, const std::byte* row, std::int64_t cols, int lane, std::byte* tile) {
  const std::int64_t header = dtype == DType::kQ4_1 ? 4 : 2;
  const std::byte flip = dtype == DType::kQ8_0 ? std::byte{0x80} : std::byte{0};  // adds 128
  for (std::int64_t block = 0; block < cols / kBlockCols; ++block) {
    const std::byte* from = row + block * source_record_bytes(dtype);
    std::byte* to = tile + block * record_bytes(dtype);
    for (std::int64_t i = 0; i < quant_bytes(dtype) / kTileRows; ++i) {
      to[i / 4 * 64 + lane * 4 + i % 4] = from[header + i] ^ flip;
    }
    std::byte* scales = to + quant_bytes(dtype);
    std::memcpy(scales + 2 * lane, from, 2);
    if (dtype == DType::kQ4_1) std::memcpy(scales + 2 * (kTileRows + lane), from + 2, 2);
  }
}

void unpack_block(DType dtype, const std::byte* record, int lane, float* out) {
  const std::byte* scales = record + quant_bytes(dtype);
  const float scale = f16_to_f32(load<std::uint16_t>(scales + 2 * lane));
  const float minimum = dtype == DType::kQ4_1 ? f16_to_f32(load<std::uint16_t>(scales + 2 * (kTileRows + lane))) : 0.0F;
  const int zero = dtype == DType::kQ8_0 ? 128 : dtype == DType::kQ4_0 ? 8 : 0;
  for (int k = 0; k < kBlockCols; ++k) {
    const int i = dtype == DType::kQ8_0 ? k : k % 16;
    int quant = std::to_integer<int>(record[i / 4 * 64 + lane * 4 + i % 4]);
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
  if (is_quantised(source.dtype) && source.cols % kBlockCols != 0) {
    return absl::InvalidArgumentError(
        fmt::format("matrix of {}: the columns of a quantised type come in blocks of {}; use f16 or f32 for it",
                    shape(), kBlockCols));
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
  const std::int64_t row_bytes = is_quantised(dtype) ? source.cols / kBlockCols * source_record_bytes(dtype)
                                                     : source.cols * source_record_bytes(dtype);
  for (std::int64_t tile = begin; tile < end; ++tile) {
    std::byte* to = destination + tile * size;
    std::memset(to, 0, static_cast<std::size_t>(size));
    const std::int64_t first = tile * kTileRows;
    const int lanes = static_cast<int>(std::min<std::int64_t>(kTileRows, source.rows - first));
    for (int lane = 0; lane < lanes; ++lane) {
      const std::byte* row = source.data + (first + lane) * row_bytes;
      if (is_quantised(dtype)) {
        pack_quant_row(dtype, row, source.cols, lane, to);
      } else if (dtype == DType::kF32) {
        pack_float_row<float>(row, source.cols, lane, to);
      } else {
        pack_float_row<std::uint16_t>(row, source.cols, lane, to);
      }
    }
  }
}

void unpack_row(const Weight& weight, std::int64_t row, float* out) {
  const std::byte* tile = weight.data + row / kTileRows * tile_bytes(weight.dtype, weight.cols);
  const int lane = static_cast<int>(row % kTileRows);
  if (is_quantised(weight.dtype)) {
    for (std::int64_t block = 0; block < weight.cols / kBlockCols; ++block) {
      unpack_block(weight.dtype, tile + block * record_bytes(weight.dtype), lane, out + block * kBlockCols);
    }
    return;
  }
  const std::int64_t step = record_bytes(weight.dtype);
  const std::byte* from = tile + step / kTileRows * lane;
  for (std::int64_t k = 0; k < weight.cols; ++k, from += step) {
    switch (weight.dtype) {
      case DType::kF16: out[k] = f16_to_f32(load<std::uint16_t>(from)); break;
      case DType::kBF16: out[k] = bf16_to_f32(load<std::uint16_t>(from)); break;
      default: out[k] = load<float>(from); break;
    }
  }
}

}  // namespace tandem::cpu
