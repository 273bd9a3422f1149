// Measures every op of the CPU backend at the shapes of a small decoder, and prints each speed as a share of the
// limit (bench/limits.h) that was measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/limits.h"
#include "bench/spread.h"

namespace tandem::bench {

struct RooflineOptions {
  std::vector<std::string> isas;  // as CpuOptions; empty: every one that this processor has
  std::vector<int> threads{0};    // 0: all cores
  std::vector<std::string> ops;   // only these; empty: all
  std::uint32_t repeat = 7;
};

struct OpRate {
  std::string op;     // "linear", "attention", "rms_norm", ...
  std::string shape;  // "Q4_1 576->3072", "f16 9/3x64 depth 2048"
  std::int64_t rows = 0;
  Spread us;                // of one call
  double gops = 0;          // from the median; 0 where moving bytes is all it does
  double gbps = 0;          // bytes that must be moved at least, once each
  double compute_part = 0;  // of the limit for its arithmetic, 0 to 1
  double memory_part = 0;   // of the limit of memory; above 1 what it reads comes from a cache
};

struct RooflineReport {
  std::function<void(const std::string& isa, int threads, const Limits&)> limits;
  std::function<void(const std::string& isa, int threads, const OpRate&)> op;
};

absl::Status run_roofline(const RooflineOptions& options, const RooflineReport& report);

}  // namespace tandem::bench
