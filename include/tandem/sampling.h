// How one row of logits becomes a token, and what is told of it: data shared by scheduler, lane and backend.
#pragma once

#include <cstdint>
#include <span>

#include "tandem/types.h"

namespace tandem {

struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0.0F;
};

struct TokenCount {
  TokenId token = 0;
  std::int32_t output_count = 0;  // times generated; 0: only in the prompt
};

// How one row of logits becomes a token. Log-probabilities are those of the model: natural log, before
// bias, penalties and temperature. Defaults are greedy.
struct SampleRow {
  float temperature = 0.0F;  // 0: argmax, lowest id wins a tie
  float top_p = 1.0F;
  float min_p = 0.0F;
  std::int32_t top_k = 0;  // 0: off
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::uint64_t seed = 0;      // the draw is a function of (seed, position) alone
  std::uint64_t position = 0;  // index of the new token in its sequence
  std::int32_t num_top_logprobs = 0;
  bool wants_logprob = false;
  TokenId target = -1;  // >= 0: score this token instead of choosing one (prompt scoring)
  std::span<const TokenLogprob> bias;    // added to the logits
  std::span<const TokenCount> counts;    // tokens seen so far, for the penalties
};

struct Sampled {
  // The chosen one; for a scored row the row's argmax. -1: every logit is NaN or -infinity, there is nothing to choose.
  TokenId token = -1;
  float logprob = 0.0F;  // of the chosen or target token, when asked for
  std::int32_t num_top = 0;
  TokenLogprob top[kMaxTopLogprobs];  // descending
};

}  // namespace tandem
