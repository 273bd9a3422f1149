// The ops of the CPU backend as functions over a team, one set per instruction set (backend.h has their
// contracts). kAvx2 and kAvx512 round alike: the same inputs give the same bits, so a file of one op holds one
// algorithm over vectors of 8 or 16 floats, reduced in a fixed order that does not depend on the width.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/team.h"
#include "tandem/backend.h"

namespace tandem::cpu {

struct Ops {
  void (*embed)(const EmbedArgs&, Team&);
  void (*rms_norm)(const RmsNormArgs&, Team&);
  void (*linear)(const LinearArgs&, Team&);
  void (*rope_angles)(const RopeAnglesArgs&, Team&);
  void (*rope)(const RopeArgs&, Team&);
  void (*kv_write)(const KvWriteArgs&, Team&);
  void (*attention)(const AttentionArgs&, Team&);
  void (*gate)(const GateArgs&, Team&);
  void (*gather_rows)(const GatherRowsArgs&, Team&);
  void (*sample)(const SampleArgs&, Team&);
};

const Ops& ops_for(Isa isa);

namespace avx2 {
void embed(const EmbedArgs& args, Team& team);
void rms_norm(const RmsNormArgs& args, Team& team);
void linear(const LinearArgs& args, Team& team);
void rope_angles(const RopeAnglesArgs& args, Team& team);
void rope(const RopeArgs& args, Team& team);
void kv_write(const KvWriteArgs& args, Team& team);
void attention(const AttentionArgs& args, Team& team);
void gate(const GateArgs& args, Team& team);
void gather_rows(const GatherRowsArgs& args, Team& team);
void sample(const SampleArgs& args, Team& team);
}  // namespace avx2

namespace avx512 {
void embed(const EmbedArgs& args, Team& team);
void rms_norm(const RmsNormArgs& args, Team& team);
void linear(const LinearArgs& args, Team& team);
void rope_angles(const RopeAnglesArgs& args, Team& team);
void rope(const RopeArgs& args, Team& team);
void kv_write(const KvWriteArgs& args, Team& team);
void attention(const AttentionArgs& args, Team& team);
void gate(const GateArgs& args, Team& team);
void gather_rows(const GatherRowsArgs& args, Team& team);
void sample(const SampleArgs& args, Team& team);
}  // namespace avx512

// What differs from avx512.
namespace avx512_bf16 {
void linear(const LinearArgs& args, Team& team);
void attention(const AttentionArgs& args, Team& team);
}  // namespace avx512_bf16

}  // namespace tandem::cpu
