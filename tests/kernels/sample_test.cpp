#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/philox.h"
#include "support/ops_reference.h"

namespace tandem::cpu {
namespace {

using reference::Floats;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool equal(const Sampled& a, const Sampled& b) {
  bool same = a.token == b.token && a.logprob == b.logprob && a.num_top == b.num_top;
  for (int i = 0; same && i < a.num_top; ++i) {
    same = a.top[i].token == b.top[i].token && a.top[i].logprob == b.top[i].logprob;
  }
  return same;
}

// Samples the same logits for every row on every instruction set, and checks that all agree.
std::vector<Sampled> sample_all(const Floats& logits, const std::vector<SampleRow>& rows, int threads = 1) {
  const auto team = reference::make_team(threads);
  std::vector<Sampled> first;
  for (const Isa isa : reference::isas()) {
    Floats all;
    for (std::size_t i = 0; i < rows.size(); ++i) all.insert(all.end(), logits.begin(), logits.end());
    std::vector<Sampled> out(rows.size());
    const auto vocab = static_cast<std::int64_t>(logits.size());
    ops_for(isa).sample({reference::view(all, static_cast<std::int64_t>(rows.size()), vocab), rows, out}, *team);
    if (first.empty()) first = out;
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(equal(out[i], first[i])) << name(isa) << " row " << i;
  }
  return first;
}

Sampled sample_one(const Floats& logits, const SampleRow& row) { return sample_all(logits, {row})[0]; }

// Passed once in about 20,000 times or less for any number of degrees of freedom.
double chi_square_limit(int freedom) { return freedom + 4.0 * std::sqrt(2.0 * freedom) + 12.0; }

// ---- random numbers ----------------------------------------------------------------------------

TEST(Philox, gives_the_known_answers_of_its_authors) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, draws_lie_inside_the_unit_interval_and_differ_by_seed_and_position) {
  constexpr int kBins = 64;
  constexpr double kExpected = 500.0;
  for (const std::uint64_t seed : {0, 1, 99}) {
    std::vector<double> counts(kBins);
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(kBins * kExpected); ++i) {
      const double u = uniform(seed, i);
      ASSERT_GT(u, 0.0);
      ASSERT_LT(u, 1.0);
      counts[static_cast<std::size_t>(u * kBins)] += 1.0;
    }
    double chi_square = 0.0;
    for (const double count : counts) chi_square += (count - kExpected) * (count - kExpected) / kExpected;
    EXPECT_LE(chi_square, chi_square_limit(kBins - 1)) << "seed " << seed;
  }
  EXPECT_NE(uniform(1, 5), uniform(2, 5));
  EXPECT_NE(uniform(1, 5), uniform(std::uint64_t{1} << 40 | 1, 5));
  EXPECT_NE(uniform(1, 5), uniform(1, std::uint64_t{1} << 40 | 5));
}

// ---- greedy ------------------------------------------------------------------------------------

TEST(Greedy, takes_the_lowest_id_of_the_largest_logit) {
  for (const std::size_t vocab : {1U, 15U, 16U, 64U, 200U, 1000U}) {
    Floats logits(vocab, -3.0F);
    EXPECT_EQ(sample_one(logits, {}).token, 0);
    logits[vocab - 1] = 2.0F;
    EXPECT_EQ(sample_one(logits, {}).token, static_cast<TokenId>(vocab) - 1);
    logits[vocab / 2] = 2.0F;
    EXPECT_EQ(sample_one(logits, {}).token, static_cast<TokenId>(vocab / 2));
  }
}

TEST(Greedy, treats_nan_as_minus_infinity) {
  Floats logits(100, kNan);
  logits[70] = -1e30F;
  SampleRow row;
  row.wants_logprob = true;
  row.num_top_logprobs = 5;
  const Sampled sampled = sample_one(logits, row);
  EXPECT_EQ(sampled.token, 70);
  EXPECT_EQ(sampled.logprob, 0.0F);
  EXPECT_EQ(sampled.num_top, 1);
}

TEST(Greedy, chooses_no_token_when_no_logit_is_a_number) {
  for (const float nothing : {-kInfinity, kNan}) {
    for (const float temperature : {0.0F, 1.0F}) {
      SampleRow row;
      row.temperature = temperature;
      row.wants_logprob = true;
      const Sampled sampled = sample_one(Floats(100, nothing), row);
      EXPECT_EQ(sampled.token, -1);
      EXPECT_EQ(sampled.logprob, -kInfinity);
    }
  }
}

TEST(Greedy, survives_plus_infinity) {
  Floats logits(100, 1.0F);
  logits[40] = kInfinity;
  SampleRow row;
  row.temperature = 1.0F;
  row.wants_logprob = true;
  const Sampled sampled = sample_one(logits, row);
  EXPECT_EQ(sampled.token, 40);
  EXPECT_EQ(sampled.logprob, 0.0F);
}

TEST(Greedy, obeys_bias_and_penalties) {
  Floats logits(50, 0.0F);
  logits[7] = 4.0F;
  logits[8] = 3.0F;
  logits[9] = -1.0F;
  const std::vector<TokenLogprob> bias = {{8, 1.5F}};
  SampleRow row;
  row.bias = bias;
  EXPECT_EQ(sample_one(logits, row).token, 8);
  const std::vector<TokenLogprob> outside = {{-1, 100.0F}, {50, 100.0F}};
  row.bias = outside;
  EXPECT_EQ(sample_one(logits, row).token, 7);

  row = {};
  const std::vector<TokenCount> prompt_only = {{7, 0}};
  row.counts = prompt_only;
  row.presence_penalty = 10.0F;
  row.frequency_penalty = 10.0F;
  EXPECT_EQ(sample_one(logits, row).token, 7) << "presence and frequency look at generated tokens";
  row.repetition_penalty = 2.0F;
  EXPECT_EQ(sample_one(logits, row).token, 8) << "repetition looks at the prompt too";

  row = {};
  const std::vector<TokenCount> generated = {{7, 3}};
  row.counts = generated;
  row.frequency_penalty = 0.3F;  // 4 - 0.9 > 3
  EXPECT_EQ(sample_one(logits, row).token, 7);
  row.frequency_penalty = 0.35F;  // 4 - 1.05 < 3
  EXPECT_EQ(sample_one(logits, row).token, 8);
  row.frequency_penalty = 0.0F;
  row.presence_penalty = 0.9F;
  EXPECT_EQ(sample_one(logits, row).token, 7);
  row.presence_penalty = 1.1F;
  EXPECT_EQ(sample_one(logits, row).token, 8);
}

TEST(Greedy, multiplies_a_negative_logit_by_the_repetition_penalty) {
  Floats logits(20, -100.0F);
  logits[3] = -1.0F;
  logits[4] = -1.5F;
  const std::vector<TokenCount> counts = {{3, 1}};
  SampleRow row;
  row.counts = counts;
  row.repetition_penalty = 1.4F;
  EXPECT_EQ(sample_one(logits, row).token, 3);
  row.repetition_penalty = 1.6F;
  EXPECT_EQ(sample_one(logits, row).token, 4);
}

// ---- log-probabilities -------------------------------------------------------------------------

TEST(Logprobs, are_those_of_the_model_whatever_changes_the_choice) {
  std::mt19937 rng(1);
  const Floats logits = reference::random_floats(5003, rng, 4.0F);
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  const std::vector<TokenLogprob> bias = {{123, 90.0F}, {123, 10.0F}};
  const std::vector<TokenCount> counts = {{123, 2}, {5, 0}};
  SampleRow row;
  row.bias = bias;
  row.counts = counts;
  row.repetition_penalty = 1.5F;
  row.presence_penalty = 1.0F;
  row.temperature = 0.3F;
  row.wants_logprob = true;
  row.num_top_logprobs = 20;
  const Sampled sampled = sample_one(logits, row);
  EXPECT_EQ(sampled.token, 123);
  EXPECT_NEAR(sampled.logprob, static_cast<double>(logits[123]) - std::log(sum), 2e-6);
  ASSERT_EQ(sampled.num_top, 20);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&logits](TokenId token) { return static_cast<double>(logits[static_cast<std::size_t>(token)]); };
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  for (int i = 0; i < 20; ++i) {
    const TokenId token = order[static_cast<std::size_t>(i)];
    EXPECT_EQ(sampled.top[i].token, token);
    EXPECT_NEAR(sampled.top[i].logprob, logit(token) - std::log(sum), 2e-6);
  }
}

TEST(Logprobs, break_ties_by_id_and_stop_at_the_vocabulary) {
  SampleRow row;
  row.num_top_logprobs = 6;
  const Sampled flat = sample_one(Floats(400, 0.5F), row);
  ASSERT_EQ(flat.num_top, 6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(flat.top[i].token, i);
  EXPECT_NEAR(flat.top[0].logprob, -std::log(400.0), 1e-6);
  EXPECT_EQ(sample_one(Floats(4, 0.5F), row).num_top, 4);
  row.num_top_logprobs = 1000;  // more than the struct holds
  EXPECT_EQ(sample_one(Floats(400, 0.5F), row).num_top, 20);
}

TEST(Logprobs, score_a_target_and_name_the_argmax) {
  std::mt19937 rng(2);
  const Floats logits = reference::random_floats(1000, rng, 3.0F);
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  SampleRow row;
  row.target = 17;
  row.temperature = 1.0F;
  const Sampled sampled = sample_one(logits, row);
  EXPECT_EQ(sampled.token, std::max_element(logits.begin(), logits.end()) - logits.begin());
  EXPECT_NEAR(sampled.logprob, static_cast<double>(logits[17]) - std::log(sum), 2e-6);
  row.target = 1000;
  EXPECT_EQ(sample_one(logits, row).logprob, -kInfinity);
}

// ---- drawing -----------------------------------------------------------------------------------

// Draws at positions 0, 1, ... must be the inverse of the reference's cumulative distribution, token by token
// (save where the two differ by rounding alone), and pass a chi-square test.
void check_distribution(const Floats& logits, SampleRow row, std::uint64_t draws) {
  const std::vector<reference::Choice> choices = reference::choices(logits, row);
  std::vector<double> ends;
  double sum = 0.0;
  for (const reference::Choice& choice : choices) ends.push_back(sum += choice.probability);
  std::vector<double> counts(logits.size());
  std::vector<SampleRow> rows;
  for (std::uint64_t i = 0; i < draws; ++i) {
    row.position = i;
    rows.push_back(row);
  }
  const std::vector<Sampled> sampled = sample_all(logits, rows);
  for (std::uint64_t i = 0; i < draws; ++i) {
    counts[static_cast<std::size_t>(sampled[i].token)] += 1.0;
    const double u = uniform(row.seed, i);
    const auto rank = static_cast<std::size_t>(std::lower_bound(ends.begin(), ends.end(), u) - ends.begin());
    const double nearest = std::min(rank > 0 ? u - ends[rank - 1] : 1.0, rank < ends.size() ? ends[rank] - u : 1.0);
    if (nearest > 1e-6) {
      ASSERT_EQ(sampled[i].token, choices[std::min(rank, choices.size() - 1)].token) << "draw " << i;
    }
  }
  double chi_square = 0.0;
  double rest = static_cast<double>(draws);
  double rest_expected = static_cast<double>(draws);
  int bins = 0;
  for (const reference::Choice& choice : choices) {
    const double expected = choice.probability * static_cast<double>(draws);
    if (expected < 10.0) break;
    const double count = counts[static_cast<std::size_t>(choice.token)];
    chi_square += (count - expected) * (count - expected) / expected;
    rest -= count;
    rest_expected -= expected;
    ++bins;
  }
  if (rest_expected > 10.0) {
    chi_square += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
  } else {
    --bins;
  }
  EXPECT_LE(chi_square, chi_square_limit(bins)) << bins << " degrees of freedom";
}

TEST(Draw, follows_the_distribution_that_each_parameter_leaves) {
  std::mt19937 rng(3);
  const Floats logits = reference::random_floats(500, rng, 3.0F);
  std::vector<TokenLogprob> bias = {{4, 2.0F}, {5, -kInfinity}};
  std::vector<TokenCount> counts = {{1, 1}, {2, 4}, {3, 0}, {7, 2}};
  struct Case {
    const char* what;
    SampleRow row;
  };
  const auto with = [](auto change) {
    SampleRow row;
    row.temperature = 1.0F;
    row.seed = 99;
    change(row);
    return row;
  };
  const std::vector<Case> cases = {
      {"temperature 1", with([](SampleRow&) {})},
      {"temperature 0.6", with([](SampleRow& r) { r.temperature = 0.6F; })},
      {"temperature 10", with([](SampleRow& r) { r.temperature = 10.0F; })},
      {"top-k 10", with([](SampleRow& r) { r.top_k = 10; })},
      {"top-k beyond the vocabulary", with([](SampleRow& r) { r.top_k = 5000; })},
      {"top-k 400", with([](SampleRow& r) {
         r.top_k = 400;
         r.temperature = 2.0F;
       })},
      {"top-p 0.8", with([](SampleRow& r) { r.top_p = 0.8F; })},
      {"top-p 0.999", with([](SampleRow& r) {
         r.top_p = 0.999F;
         r.temperature = 3.0F;
       })},
      {"min-p 0.1", with([](SampleRow& r) { r.min_p = 0.1F; })},
      {"min-p 1e-9", with([](SampleRow& r) { r.min_p = 1e-9F; })},
      {"all", with([](SampleRow& r) {
         r.top_k = 40;
         r.top_p = 0.9F;
         r.min_p = 0.05F;
         r.temperature = 1.3F;
       })},
      {"penalties", with([&](SampleRow& r) {
         r.bias = bias;
         r.counts = counts;
         r.repetition_penalty = 1.3F;
         r.presence_penalty = 0.5F;
         r.frequency_penalty = 0.2F;
       })},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    check_distribution(logits, c.row, 1500);
  }
}

TEST(Draw, works_on_a_large_flat_vocabulary) {
  std::mt19937 rng(4);
  const Floats logits = reference::random_floats(20011, rng, 0.5F);
  SampleRow row;
  row.temperature = 2.0F;
  check_distribution(logits, row, 60);
  row.top_p = 0.5F;
  check_distribution(logits, row, 60);
  row.top_k = 3000;
  check_distribution(logits, row, 60);
}

TEST(Draw, breaks_ties_by_id) {
  SampleRow row;
  row.temperature = 1.0F;
  row.top_k = 3;
  check_distribution(Floats(300, 1.0F), row, 500);  // keeps 0, 1 and 2
  row.top_k = 0;
  row.top_p = 0.1F;
  check_distribution(Floats(300, 1.0F), row, 500);
}

TEST(Draw, becomes_greedy_at_the_smallest_settings) {
  std::mt19937 rng(5);
  const Floats logits = reference::random_floats(3000, rng, 5.0F);
  const auto best = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SampleRow row;
    row.seed = seed;
    for (const float temperature : {1e-4F, 1e-30F, 1e-44F}) {
      row.temperature = temperature;
      EXPECT_EQ(sample_one(logits, row).token, best);
    }
    row.temperature = 1.5F;
    row.top_k = 1;
    EXPECT_EQ(sample_one(logits, row).token, best);
    row.top_k = 0;
    for (const float top_p : {0.0F, 1e-9F, -1.0F}) {
      row.top_p = top_p;
      EXPECT_EQ(sample_one(logits, row).token, best);
    }
    row.top_p = 1.0F;
    for (const float min_p : {1.0F, 2.0F}) {
      row.min_p = min_p;
      EXPECT_EQ(sample_one(logits, row).token, best);
    }
  }
}

TEST(Draw, never_takes_an_impossible_token) {
  Floats logits(100, -kInfinity);
  logits[10] = 0.0F;
  logits[20] = 0.0F;
  logits[30] = kNan;
  std::vector<SampleRow> rows(400);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].temperature = i % 2 == 0 ? 1.0F : kInfinity;
    rows[i].top_k = i % 3 == 0 ? 50 : 0;
    rows[i].position = i;
  }
  int low = 0;
  for (const Sampled& sampled : sample_all(logits, rows)) {
    ASSERT_TRUE(sampled.token == 10 || sampled.token == 20);
    low += sampled.token == 10 ? 1 : 0;
  }
  EXPECT_NEAR(low, 200, 60);
}

TEST(Draw, depends_on_its_own_row_alone) {
  std::mt19937 rng(6);
  const Floats logits = reference::random_floats(2000, rng, 3.0F);
  const std::vector<TokenLogprob> bias = {{1, 8.0F}};
  const std::vector<TokenCount> counts = {{1, 3}, {2, 0}};
  std::vector<SampleRow> rows(37);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].temperature = static_cast<float>(i % 4) * 0.5F;
    rows[i].seed = i % 5;
    rows[i].position = i;
    rows[i].top_p = i % 2 == 0 ? 0.9F : 1.0F;
    rows[i].wants_logprob = i % 3 == 0;
    rows[i].num_top_logprobs = static_cast<std::int32_t>(i % 7);
    if (i % 6 == 0) rows[i].bias = bias;
    if (i % 4 == 0) rows[i].counts = counts;
    rows[i].frequency_penalty = 0.4F;
  }
  const std::vector<Sampled> one = sample_all(logits, rows, 1);
  const std::vector<Sampled> two = sample_all(logits, rows, 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(equal(one[i], two[i]));
    EXPECT_TRUE(equal(one[i], sample_one(logits, rows[i])));
  }
}

}  // namespace
}  // namespace tandem::cpu
