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

#include "tandem/backend.h"

namespace tandem::reference {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};

inline const char* name(DType dtype) {
  constexpr const char* kNames[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};
  return kNames[static_cast<int>(dtype)];
}

inline bool is_quantised(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4_1;
}

inline double from_f16(std::uint16_t bits) { return static_cast<double>(std::bit_cast<_Float16>(bits)); }
inline std::uint16_t to_f16(float value) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }

// A matrix as a file stores it, and the value of each element.
struct Matrix {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::byte> file;
  std::vector<double> values;

  WeightSource source() const { return {dtype, rows, cols, file.data()}; }
};

// Random bytes for the quants (every pattern occurs, -128 of kQ8_0 included), scales around 0.01.
inline Matrix random_matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::mt19937& rng) {
  Matrix m{dtype, rows, cols, {}, {}};
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const auto put = [&m](const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    m.file.insert(m.file.end(), bytes, bytes + sizeof(value));
  };
  const std::int64_t num_records = is_quantised(dtype) ? rows * cols / 32 : rows * cols;
  for (std::int64_t i = 0; i < num_records; ++i) {
    if (dtype == DType::kF32) {
      const float value = normal(rng);
      put(value);
      m.values.push_back(value);
    } else if (dtype == DType::kF16) {
      const std::uint16_t bits = to_f16(normal(rng));
      put(bits);
      m.values.push_back(from_f16(bits));
    } else if (dtype == DType::kBF16) {
      const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(rng)) >> 16);
      put(bits);
      m.values.push_back(std::bit_cast<float>(std::uint32_t{bits} << 16));
    } else {
      const std::uint16_t scale = to_f16(0.01F * normal(rng));
      const std::uint16_t minimum = to_f16(0.1F * normal(rng));
      put(scale);
      if (dtype == DType::kQ4_1) put(minimum);
      std::uint8_t quants[32];
      for (std::uint8_t& q : quants) q = static_cast<std::uint8_t>(rng());
      for (int j = 0; j < (dtype == DType::kQ8_0 ? 32 : 16); ++j) put(quants[j]);
      for (int k = 0; k < 32; ++k) {
        const int nibble = k < 16 ? quants[k] & 15 : quants[k - 16] >> 4;
        const double d = from_f16(scale);
        if (dtype == DType::kQ8_0) m.values.push_back(d * static_cast<std::int8_t>(quants[k]));
        if (dtype == DType::kQ4_0) m.values.push_back(d * (nibble - 8));
        if (dtype == DType::kQ4_1) m.values.push_back(d * nibble + from_f16(minimum));
      }
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
