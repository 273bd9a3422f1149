// gate over vectors: out = activation(gate) * up. Parallel over rows; moves 12 bytes per output.
// Both activations are x * sigmoid(z): z = x for silu and 2 sqrt(2/pi) (x + 0.044715 x^3) for gelu's tanh form,
// since (1 + tanh(z / 2)) / 2 = sigmoid(z); no difference of near numbers is taken.
#pragma once

#include <cstdint>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"
#include "tandem/backend.h"

namespace tandem::cpu {

template <class V, Activation kActivation>
[[gnu::always_inline]] inline V gated(V x, V up) {
  V minus_z = V::zero() - x;
  if constexpr (kActivation == Activation::kGeluTanh) {
    const V cubic = V::fma(V::set(0.044715F) * (x * x), x, x);
    minus_z = cubic * V::set(-1.5957691216F);
  }
  return x / (V::set(1.0F) + exp(minus_z)) * up;
}

template <class V, Activation kActivation>
void gate_row(const float* gate, const float* up, float* out, std::int64_t width) {
  std::int64_t i = 0;
  for (; i + 16 <= width; i += 16) V::store(out + i, gated<V, kActivation>(V::load(gate + i), V::load(up + i)));
  if (const int rest = static_cast<int>(width - i); rest > 0) {
    V::store_n(out + i, rest, gated<V, kActivation>(V::load_n(gate + i, rest, 0.0F), V::load_n(up + i, rest, 0.0F)));
  }
}

template <class V>
void gate_rows(const GateArgs& args, Team& team) {
  const std::int64_t width = args.out.cols;
  for_rows(team, args.out.rows, 8 * width, [&args, width](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* gate = args.gate_up.f32(row);
      if (args.activation == Activation::kSilu) {
        gate_row<V, Activation::kSilu>(gate, gate + width, args.out.f32(row), width);
      } else {
        gate_row<V, Activation::kGeluTanh>(gate, gate + width, args.out.f32(row), width);
      }
    }
  });
}

}  // namespace tandem::cpu
