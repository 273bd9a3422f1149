// The element-wise ops and the vocabulary scans for AVX2. Everything from the pragma on is compiled for it, so
// each header that could hold an inline function of others comes before.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/status.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/vec_avx2.h"

#pragma GCC target("avx2,fma,f16c")
#include "kernels/cpu/gate_body.h"
#include "kernels/cpu/kv_write_body.h"
#include "kernels/cpu/norm_body.h"
#include "kernels/cpu/rope_body.h"
#include "kernels/cpu/sample_body.h"

namespace tandem::cpu::avx2 {

void rms_norm(const RmsNormArgs& args, Team& team) { rms_norm_rows<Vec>(args, team); }
void rope(const RopeArgs& args, Team& team) { rope_rows<Vec>(args, team); }
void kv_write(const KvWriteArgs& args, Team& team) { write_kv_rows<Vec>(args, team); }
void gate(const GateArgs& args, Team& team) { gate_rows<Vec>(args, team); }
void sample(const SampleArgs& args, Team& team) { sample_rows(args, team, kSampleScans<Vec>); }

}  // namespace tandem::cpu::avx2
