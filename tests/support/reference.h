// Slow reference forms of weights and the linear op, in double precision and with no layout of their own:
// what a file's blocks mean, and what a product with them should be. For tests only.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "support/quant_reference.h"
#include "tandem/backend.h"

namespace tandem::reference {

inline constexpr DType kDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                    DType::kQ4_1, DType::kQ5_0, DType::kQ4_K, DType::kQ6_K};

inline const char* name(DType dtype) {
  constexpr const char* kNames[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"};
  return kNames[static_cast<int>(dtype)];
}

// Columns that a row's blocks hold.
inline std::int64_t block_cols(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) return 1;
  return dtype == DType::kQ4_K || dtype == DType::kQ6_K ? 256 : 32;
}
// `cols` rounded up to whole blocks.
inline std::int64_t whole_blocks(DType dtype, std::int64_t cols) {
  return (cols + block_cols(dtype) - 1) / block_cols(dtype) * block_cols(dtype);
}

// A matrix as a file stores it, and the value of each element.
struct Matrix {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::byte> file;
  std::vector<double> values;

  WeightSource source() const { return {dtype, rows, cols, file.data()}; }
};

inline Matrix random_matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::mt19937& rng) {
  Matrix m{dtype, rows, cols, {}, {}};
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const auto put = [&m](const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    m.file.insert(m.file.end(), bytes, bytes + sizeof(value));
  };
  const auto value = [&m](double element) { m.values.push_back(element); };
  const std::int64_t num_records = rows * cols / block_cols(dtype);
  for (std::int64_t i = 0; i < num_records; ++i) {
    if (dtype == DType::kF32) {
      const float element = normal(rng);
      put(element);
      value(element);
    } else if (dtype == DType::kF16) {
      const std::uint16_t bits = to_f16(normal(rng));
      put(bits);
      value(from_f16(bits));
    } else if (dtype == DType::kBF16) {
      const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(rng)) >> 16);
      put(bits);
      value(std::bit_cast<float>(std::uint32_t{bits} << 16));
    } else if (dtype == DType::kQ4_K) {
      random_q4_k(rng, put, value);
    } else if (dtype == DType::kQ6_K) {
      random_q6_k(rng, put, value);
    } else {
      random_block(dtype, rng, put, value);
    }
  }
  return m;
}

// The activations as a product with quantised weights sees them: int8 steps of max|x| / 127 per block of 32.
inline std::vector<double> through_int8(const float* x, std::int64_t cols) {
  std::vector<double> out(static_cast<std::size_t>(cols));
  for (std::int64_t begin = 0; begin < cols; begin += 32) {
    float max = 0.0F;
    for (std::int64_t k = begin; k < begin + 32; ++k) max = std::max(max, std::fabs(x[k]));
    const float scale = max / 127.0F;
    const float inverse = max == 0.0F ? 0.0F : 127.0F / max;
    for (std::int64_t k = begin; k < begin + 32; ++k) {
      out[static_cast<std::size_t>(k)] = double{scale} * std::nearbyint(x[k] * inverse);
    }
  }
  return out;
}

// A sum and the sum of its terms' magnitudes, which bounds its rounding error.
struct Dot {
  double value = 0.0;
  double magnitude = 0.0;
};

inline Dot dot(const Matrix& w, std::int64_t row, const std::vector<double>& x) {
  Dot result;
  for (std::int64_t k = 0; k < w.cols; ++k) {
    const double term = w.values[static_cast<std::size_t>(row * w.cols + k)] * x[static_cast<std::size_t>(k)];
    result.value += term;
    result.magnitude += std::fabs(term);
  }
  return result;
}

}  // namespace tandem::reference
