#include "kernels/cpu/isa.h"

namespace tandem::cpu {

bool supports(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

std::optional<Isa> best_isa() {
  if (supports(Isa::kAvx512)) return Isa::kAvx512;
  if (supports(Isa::kAvx2)) return Isa::kAvx2;
  return std::nullopt;
}

std::string_view name(Isa isa) { return isa == Isa::kAvx512 ? "avx512" : "avx2"; }

}  // namespace tandem::cpu
