#include "kernels/cpu/ops.h"

namespace tandem::cpu {
namespace {

constexpr Ops kAvx2Ops = {
    .embed = avx2::embed,
    .rms_norm = avx2::rms_norm,
    .linear = avx2::linear,
    .rope_angles = avx2::rope_angles,
    .rope = avx2::rope,
    .kv_write = avx2::kv_write,
    .attention = avx2::attention,
    .gate = avx2::gate,
    .gather_rows = avx2::gather_rows,
    .sample = avx2::sample,
};

constexpr Ops kAvx512Ops = {
    .embed = avx512::embed,
    .rms_norm = avx512::rms_norm,
    .linear = avx512::linear,
    .rope_angles = avx512::rope_angles,
    .rope = avx512::rope,
    .kv_write = avx512::kv_write,
    .attention = avx512::attention,
    .gate = avx512::gate,
    .gather_rows = avx512::gather_rows,
    .sample = avx512::sample,
};

constexpr Ops kAvx512Bf16Ops = [] {
  Ops ops = kAvx512Ops;
  ops.linear = avx512_bf16::linear;
  ops.attention = avx512_bf16::attention;
  return ops;
}();

}  // namespace

const Ops& ops_for(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kAvx2Ops;
    case Isa::kAvx512: return kAvx512Ops;
    case Isa::kAvx512Bf16: return kAvx512Bf16Ops;
  }
  return kAvx2Ops;
}

}  // namespace tandem::cpu
