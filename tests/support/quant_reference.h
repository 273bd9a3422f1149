// Random blocks of the quantised types as the GGUF format describes them. `put` takes a block's fields in the order of
// the file, `value` the elements they mean. For tests only.
#pragma once

#include <bit>
#include <cstdint>
#include <random>

#include "tandem/types.h"

namespace tandem::reference {

inline double from_f16(std::uint16_t bits) { return static_cast<double>(std::bit_cast<_Float16>(bits)); }
inline std::uint16_t to_f16(float value) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }

// Random bytes for the quants (every pattern occurs, -128 of kQ8_0 included), scales around 0.01.
template <class Put, class Value>
void random_block(DType dtype, std::mt19937& rng, const Put& put, const Value& value) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const std::uint16_t scale = to_f16(0.01F * normal(rng));
  const std::uint16_t minimum = to_f16(0.1F * normal(rng));
  put(scale);
  if (dtype == DType::kQ4_1) put(minimum);
  const auto fifth_bits = static_cast<std::uint32_t>(rng());
  if (dtype == DType::kQ5_0) put(fifth_bits);
  std::uint8_t quants[32];
  for (std::uint8_t& q : quants) q = static_cast<std::uint8_t>(rng());
  for (int j = 0; j < (dtype == DType::kQ8_0 ? 32 : 16); ++j) put(quants[j]);
  for (int k = 0; k < 32; ++k) {
    const int nibble = k < 16 ? quants[k] & 15 : quants[k - 16] >> 4;
    const double d = from_f16(scale);
    if (dtype == DType::kQ8_0) value(d * static_cast<std::int8_t>(quants[k]));
    if (dtype == DType::kQ4_0) value(d * (nibble - 8));
    if (dtype == DType::kQ4_1) value(d * nibble + from_f16(minimum));
    if (dtype == DType::kQ5_0) value(d * (nibble + static_cast<int>(fifth_bits >> k & 1) * 16 - 16));
  }
}

// Superblocks, of values about as large.
template <class Put, class Value>
void random_q4_k(std::mt19937& rng, const Put& put, const Value& value) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const std::uint16_t scale = to_f16(0.01F / 32 * normal(rng));
  const std::uint16_t minimum_scale = to_f16(0.1F / 32 * normal(rng));
  int factors[8];
  int minima[8];
  std::uint8_t quants[256];
  for (int& factor : factors) factor = static_cast<int>(rng() % 64);
  for (int& minimum : minima) minimum = static_cast<int>(rng() % 64);
  for (std::uint8_t& quant : quants) quant = rng() % 16;
  put(scale);
  put(minimum_scale);
  for (int i = 0; i < 4; ++i) put(static_cast<std::uint8_t>(factors[i] | factors[i + 4] / 16 * 64));
  for (int i = 0; i < 4; ++i) put(static_cast<std::uint8_t>(minima[i] | minima[i + 4] / 16 * 64));
  for (int i = 4; i < 8; ++i) put(static_cast<std::uint8_t>(factors[i] % 16 | minima[i] % 16 * 16));
  for (int begin = 0; begin < 256; begin += 64) {
    for (int k = begin; k < begin + 32; ++k) put(static_cast<std::uint8_t>(quants[k] | quants[k + 32] * 16));
  }
  for (int k = 0; k < 256; ++k) {
    value(from_f16(scale) * factors[k / 32] * quants[k] - from_f16(minimum_scale) * minima[k / 32]);
  }
}

template <class Put, class Value>
void random_q6_k(std::mt19937& rng, const Put& put, const Value& value) {
  const std::uint16_t scale = to_f16(0.01F / 128 * std::normal_distribution<float>(0.0F, 1.0F)(rng));
  std::int8_t factors[16];
  std::uint8_t quants[256];
  for (std::int8_t& factor : factors) factor = static_cast<std::int8_t>(rng());
  for (std::uint8_t& quant : quants) quant = rng() % 64;
  for (int begin = 0; begin < 256; begin += 128) {
    for (int k = begin; k < begin + 64; ++k) put(static_cast<std::uint8_t>(quants[k] % 16 | quants[k + 64] % 16 * 16));
  }
  for (int begin = 0; begin < 256; begin += 128) {
    for (int k = begin; k < begin + 32; ++k) {
      int pairs = 0;
      for (int i = 3; i >= 0; --i) pairs = pairs * 4 + quants[k + 32 * i] / 16;
      put(static_cast<std::uint8_t>(pairs));
    }
  }
  for (const std::int8_t factor : factors) put(factor);
  put(scale);
  for (int k = 0; k < 256; ++k) value(from_f16(scale) * factors[k / 16] * (quants[k] - 32));
}

}  // namespace tandem::reference
