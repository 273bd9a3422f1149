// The passes of sample.h over a vocabulary of 50 to 150 thousand logits: each reads 4 bytes per token once.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cpu/sample.h"
#include "kernels/cpu/vec_math.h"

namespace tandem::cpu {

// Logits [i, i + 16), -infinity past the end.
template <class V>
[[gnu::always_inline]] inline V logits_at(const float* logits, std::int64_t vocab, std::int64_t i) {
  if (vocab - i >= 16) return V::load(logits + i);
  return V::load_n(logits + i, static_cast<int>(vocab - i), -std::numeric_limits<float>::infinity());
}

template <class V>
TokenLogprob largest_logit(const float* logits, std::int64_t vocab) {
  const V lowest = V::set(-std::numeric_limits<float>::infinity());
  V best[4] = {lowest, lowest, lowest, lowest};
  std::int64_t i = 0;
  for (; i + 64 <= vocab; i += 64) {
    for (int j = 0; j < 4; ++j) best[j] = V::max(V::load(logits + i + 16 * j), best[j]);
  }
  for (; i < vocab; i += 16) best[0] = V::max(logits_at<V>(logits, vocab, i), best[0]);
  const float largest = max_lanes(V::max(V::max(best[0], best[1]), V::max(best[2], best[3])));
  const V wanted = V::set(largest);
  if (largest > -std::numeric_limits<float>::infinity()) {
    for (i = 0; i < vocab; i += 16) {
      const std::uint32_t hits = V::equal(logits_at<V>(logits, vocab, i), wanted);
      if (hits != 0) return {static_cast<TokenId>(i + std::countr_zero(hits)), largest};
    }
  }
  return {0, largest};
}

template <class V>
double sum_of_weights(const float* logits, std::int64_t vocab, float largest, float temperature) {
  const V top = V::set(largest);
  const V divisor = V::set(temperature);
  const V nothing = V::set(-200.0F);  // e^x is 0 there; max() puts it in the place of a NaN
  typename V::Sums sums = V::no_sums();
  for (std::int64_t i = 0; i < vocab; i += 16) {
    V::add_to(sums, exp(V::max((logits_at<V>(logits, vocab, i) - top) / divisor, nothing)));
  }
  double lanes[16];
  V::store_sums(lanes, sums);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <class V>
std::int64_t collect_candidates(const float* logits, std::int64_t vocab, float largest, float temperature, float cutoff,
                                Candidate* out) {
  const V top = V::set(largest);
  const V divisor = V::set(temperature);
  const V limit = V::set(cutoff);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < vocab; i += 16) {
    const V x = (logits_at<V>(logits, vocab, i) - top) / divisor;
    std::uint32_t hits = V::at_least(x, limit);
    if (hits == 0) continue;
    float xs[16];
    float weights[16];
    V::store(xs, x);
    V::store(weights, exp(x));
    for (; hits != 0; hits &= hits - 1) {
      const int lane = std::countr_zero(hits);
      out[count++] = {xs[lane], weights[lane], static_cast<TokenId>(i + lane)};
    }
  }
  return count;
}

template <class V>
int top_logits(const float* logits, std::int64_t vocab, int count, TokenLogprob* out) {
  int found = 0;
  float threshold = -std::numeric_limits<float>::infinity();  // the smallest of `count` found so far
  for (std::int64_t i = 0; i < vocab; i += 16) {
    const V x = logits_at<V>(logits, vocab, i);
    std::uint32_t hits = V::greater(x, V::set(threshold));
    for (; hits != 0; hits &= hits - 1) {
      const std::int64_t id = i + std::countr_zero(hits);
      if (!(logits[id] > threshold)) continue;  // raised since
      int place = found < count ? found++ : count - 1;
      for (; place > 0 && out[place - 1].logprob < logits[id]; --place) out[place] = out[place - 1];
      out[place] = {static_cast<TokenId>(id), logits[id]};
      if (found == count) threshold = out[count - 1].logprob;
    }
  }
  return found;
}

template <class V>
inline constexpr SampleScans kSampleScans = {.largest = largest_logit<V>,
                                             .sum_weights = sum_of_weights<V>,
                                             .collect = collect_candidates<V>,
                                             .top = top_logits<V>};

}  // namespace tandem::cpu
