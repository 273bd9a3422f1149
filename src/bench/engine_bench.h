// Measures tokens per second of the engine without a server. Plans go to a real lane over real rings, blocks come
// from a real pool, and the weights lie packed in a region of their own. The scheduler, the tokenizer and HTTP take
// no part.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/spread.h"
#include "tandem/model.h"
#include "tandem/types.h"

namespace tandem::bench {

struct EngineBenchOptions {
  std::string isa;  // as CpuOptions
  DType kv_dtype = DType::kF16;
  std::vector<int> threads{0};            // 0: all cores
  std::vector<std::uint32_t> prompts;     // prefill: tokens of one prompt; 0: no test
  std::vector<std::uint32_t> depths{0};   // decode: tokens each sequence already has
  std::vector<std::uint32_t> sequences;   // decode: how many at once
  std::uint32_t decode_tokens = 128;      // per sequence; 0: no decode test
  std::uint32_t chunk_tokens = 256;       // of a prompt in one step
  std::uint32_t repeat = 5;               // measured runs of each test
  bool warm_up = true;                    // one run more, first, not counted
};

struct EngineBenchResult {
  enum class Test : std::uint8_t { kPrefill, kDecode };
  Test test = Test::kPrefill;
  int threads = 0;
  std::uint32_t prompt = 0;  // kPrefill
  std::uint32_t depth = 0;   // kDecode
  std::uint32_t sequences = 1;
  Spread tokens_per_s;  // over all sequences
};

// Runs every test and tells `report` of each as it ends, `about` once per thread count before them.
absl::Status run_engine_bench(const ModelFile& model, const EngineBenchOptions& options,
                              const std::function<void(const std::string&)>& about,
                              const std::function<void(const EngineBenchResult&)>& report);

}  // namespace tandem::bench
