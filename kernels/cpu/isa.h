// Which instruction set the kernels use: chosen once at start, never by the build machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::cpu {

// kAvx2: AVX2 + FMA + F16C, the floor. kAvx512: F, BW, DQ, VL and VNNI on top.
enum class Isa : std::uint8_t { kAvx2, kAvx512 };

// True when this processor can run it.
bool supports(Isa isa);
// The widest supported one; nullopt below the floor.
std::optional<Isa> best_isa();
std::string_view name(Isa isa);  // "avx2", "avx512"

}  // namespace tandem::cpu
