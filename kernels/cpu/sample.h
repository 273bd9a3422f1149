// How a row of logits becomes a token, the same for every instruction set; the passes over the vocabulary are
// sample_body.h. A NaN counts as -infinity everywhere.
#pragma once

#include <cstdint>

#include "kernels/cpu/team.h"
#include "tandem/backend.h"

namespace tandem::cpu {

// A token that may be drawn: x = (logit - largest) / temperature, weight = e^x.
struct Candidate {
  float x = 0.0F;
  float weight = 0.0F;
  TokenId id = 0;
};

struct SampleScans {
  // The largest logit and the lowest id that has it; -infinity and 0 when nothing is larger.
  TokenLogprob (*largest)(const float* logits, std::int64_t vocab);
  // Sum of e^((logit - largest) / temperature), in double and in a fixed order.
  double (*sum_weights)(const float* logits, std::int64_t vocab, float largest, float temperature);
  // Every token with x >= cutoff, by ascending id; returns how many.
  std::int64_t (*collect)(const float* logits, std::int64_t vocab, float largest, float temperature, float cutoff,
                          Candidate* out);
  // The `count` largest logits above -infinity, descending, lower id first on a tie; returns how many.
  int (*top)(const float* logits, std::int64_t vocab, int count, TokenLogprob* out);
};

void sample_rows(const SampleArgs& args, Team& team, const SampleScans& scans);

}  // namespace tandem::cpu
