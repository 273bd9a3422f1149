#include "kernels/cpu/isa.h"

namespace tandem::cpu {

bool supports(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 && (isa == Isa::kAvx512 || __builtin_cpu_supports("avx512bf16"));
}

std::optional<Isa> best_isa() {
  std::optional<Isa> best;
  for (const Isa isa : kAllIsas) {
    if (supports(isa)) best = isa;
  }
  return best;
}

}  // namespace tandem::cpu
