// Scalar conversions between float32 and the two 16-bit formats of weight files, F16 and BF16, rounding to nearest
// even. For loading and tests; hot loops use the vector versions in kernels/cpu.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

inline float bf16_to_f32(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16U); }

inline float f16_to_f32(std::uint16_t value) {
  const std::uint32_t sign = (value & 0x8000U) << 16U;
  const std::uint32_t exponent = (value >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // zero and subnormals
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace tandem
