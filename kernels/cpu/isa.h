// Which instruction set the kernels use: chosen once at start, never by the build machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/words.h"

namespace tandem::cpu {

// kAvx2: AVX2 + FMA + F16C, the floor. kAvx512: F, BW, DQ, VL and VNNI on top; its results equal kAvx2's to the bit.
// kAvx512Bf16: BF16 dot products on top, for bf16 weights and for half-precision KV; everything else as kAvx512.
enum class Isa : std::uint8_t { kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr Isa kAllIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};  // ascending

// As --isa takes them.
inline constexpr Word<Isa> kIsaWords[] = {
    {"avx2", Isa::kAvx2}, {"avx512", Isa::kAvx512}, {"avx512-bf16", Isa::kAvx512Bf16}};
constexpr std::string_view name(Isa isa) { return word_of(kIsaWords, isa); }

// True when this processor can run it.
bool supports(Isa isa);
// The widest supported one; nullopt below the floor.
std::optional<Isa> best_isa();

}  // namespace tandem::cpu
