// Slow reference forms of the element-wise ops, attention and sampling, in double precision, and what their tests
// share: random rows, views, the instruction sets of this machine. For tests only.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/team.h"
#include "support/reference.h"
#include "tandem/backend.h"

namespace tandem::reference {

using Floats = std::vector<float>;

inline std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> all;
  for (const cpu::Isa isa : cpu::kAllIsas) {
    if (cpu::supports(isa)) all.push_back(isa);
  }
  return all;
}

inline std::unique_ptr<cpu::Team> make_team(int threads) {
  return cpu::Team::create({0, static_cast<std::uint16_t>(threads)}).value();
}

inline Floats random_floats(std::int64_t count, std::mt19937& rng, float scale = 1.0F) {
  std::normal_distribution<float> normal(0.0F, scale);
  Floats out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(rng);
  return out;
}

inline Tensor view(Floats& data, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, rows, cols, cols};
}

// Equal to the bit, NaN included.
inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The value KV memory holds for x.
inline double through(DType dtype, float x) {
  if (dtype == DType::kF16) return from_f16(to_f16(x));
  if (dtype == DType::kF32) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000U);
}

// The tokens a row may draw with their probabilities, most likely first: bias, penalties, temperature, top-k,
// top-p, min-p, each as the OpenAI and Hugging Face documents define it.
struct Choice {
  TokenId token = 0;
  double probability = 0.0;
};

inline std::vector<double> changed_logits(const Floats& logits, const SampleRow& row) {
  std::vector<double> x(logits.begin(), logits.end());
  for (double& v : x) v = std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
  for (const TokenLogprob& bias : row.bias) x[static_cast<std::size_t>(bias.token)] += bias.logprob;
  for (const TokenCount& count : row.counts) {
    double& v = x[static_cast<std::size_t>(count.token)];
    v = v > 0.0 ? v / row.repetition_penalty : v * row.repetition_penalty;
    if (count.output_count > 0) v -= row.presence_penalty + row.frequency_penalty * count.output_count;
  }
  return x;
}

inline std::vector<Choice> choices(const Floats& logits, const SampleRow& row) {
  const std::vector<double> x = changed_logits(logits, row);
  std::vector<Choice> kept(x.size());
  const double largest = *std::max_element(x.begin(), x.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    kept[i] = {static_cast<TokenId>(i), std::exp((x[i] - largest) / static_cast<double>(row.temperature))};
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Choice& a, const Choice& b) { return a.probability > b.probability; });
  if (row.top_k > 0) kept.resize(std::min(kept.size(), static_cast<std::size_t>(row.top_k)));
  const auto normalise = [&kept] {
    double sum = 0.0;
    for (const Choice& c : kept) sum += c.probability;
    for (Choice& c : kept) c.probability /= sum;
  };
  normalise();
  if (row.top_p < 1.0F) {
    double sum = 0.0;
    std::size_t n = 0;
    while (n < kept.size() && (n == 0 || sum < static_cast<double>(row.top_p))) sum += kept[n++].probability;
    kept.resize(n);
    normalise();
  }
  if (row.min_p > 0.0F) {
    const double floor = static_cast<double>(row.min_p) * kept[0].probability;
    std::erase_if(kept, [floor](const Choice& c) { return c.probability < floor; });
    normalise();
  }
  return kept;
}

}  // namespace tandem::reference
