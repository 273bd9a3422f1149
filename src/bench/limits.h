// Measures what this processor can do at most (memory bandwidth, int8 and float32 arithmetic) with loops that do
// nothing else. The roofline compares the ops with these limits.
#pragma once

#include "kernels/cpu/isa.h"

namespace tandem::bench {

struct Limits {
  double int8_gops = 0;    // multiply and add are two: vpdpbusd, or vpmaddubsw + vpmaddwd + vpaddd with AVX2
  double f32_gops = 0;     // fused multiply-add
  double bf16_gops = 0;    // vdpbf16ps; 0: the instruction set has none
  double memory_gbps = 0;  // sequential reads of a set that no cache holds
};

// The best of a few short runs with `threads` threads, each on a core of its own while there are enough.
Limits measure_limits(cpu::Isa isa, int threads);

}  // namespace tandem::bench
