// Attention for AVX2. Everything from the pragma on is compiled for it, so each header that could hold an inline
// function of others comes before.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec_avx2.h"

#pragma GCC target("avx2,fma,f16c")
#include "kernels/cpu/attention_body.h"

namespace tandem::cpu::avx2 {

void attention(const AttentionArgs& args, Team& team) { run_attention(args, team, kAttentionKernels<Vec>); }

}  // namespace tandem::cpu::avx2
