#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "support/ops_reference.h"

namespace tandem::cpu {
namespace {

using reference::Floats;

double activation_of(Activation kind, double x) {
  if (kind == Activation::kSilu) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

Floats gate(Isa isa, Team& team, Activation activation, Floats gate_up, std::int64_t width) {
  const std::int64_t rows = static_cast<std::int64_t>(gate_up.size()) / (2 * width);
  Floats out(static_cast<std::size_t>(rows * width));
  ops_for(isa).gate({reference::view(gate_up, rows, 2 * width), activation, reference::view(out, rows, width)}, team);
  return out;
}

TEST(Gate, agrees_with_double_precision) {
  std::mt19937 rng(1);
  const auto team = reference::make_team(1);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const std::int64_t width : {1, 16, 37, 1536}) {
      Floats x = reference::random_floats(2 * 2 * width, rng, 4.0F);
      x[0] = 0.0F;
      const Floats special = {-1e-6F, 1e-6F, -20.0F, 20.0F, -87.0F, 87.0F, -90.0F, 200.0F};
      if (width > 16) std::copy(special.begin(), special.end(), x.begin() + 1);
      for (const Isa isa : reference::isas()) {
        const Floats out = gate(isa, *team, activation, x, width);
        for (std::int64_t i = 0; i < 2 * width; ++i) {
          const std::int64_t row = i / width;
          const auto at = static_cast<std::size_t>(2 * row * width + i % width);
          const double up = x[at + static_cast<std::size_t>(width)];
          const double want = activation_of(activation, x[at]) * up;
          // The sigmoid's exponent, x or for gelu about 0.07 x^3, has a rounding error that grows with its size; the
          // absolute part covers the reference, whose 1 + tanh cancels.
          const double size = std::fabs(static_cast<double>(x[at]));
          const double exponent = activation == Activation::kSilu ? size : 1.6 * size + 0.072 * size * size * size;
          const double slack = (1e-6 + 2e-7 * exponent) * std::fabs(want) + 1e-13;
          ASSERT_NEAR(out[static_cast<std::size_t>(i)], want, slack) << "x " << x[at];
        }
      }
    }
  }
}

TEST(Gate, gives_equal_bits_on_threads_and_on_each_instruction_set) {
  std::mt19937 rng(2);
  const Floats x = reference::random_floats(40 * 2 * 300, rng, 5.0F);
  const auto one = reference::make_team(1);
  const auto two = reference::make_team(2);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const Floats want = gate(reference::isas()[0], *one, activation, x, 300);
    for (const Isa isa : reference::isas()) {
      EXPECT_TRUE(reference::same_bits(gate(isa, *two, activation, x, 300), want));
      const Floats first(x.begin(), x.begin() + 600);
      const Floats want_first(want.begin(), want.begin() + 300);
      EXPECT_TRUE(reference::same_bits(gate(isa, *one, activation, first, 300), want_first));
    }
  }
}

TEST(Gate, hands_on_a_nan_and_ends_in_no_other) {
  const auto team = reference::make_team(1);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Isa isa : reference::isas()) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const Floats out = gate(isa, *team, activation, {kNan, -1e30F, 1e30F, -1000.0F, 1, 1, 1, 1}, 4);
      EXPECT_TRUE(std::isnan(out[0]));
      EXPECT_NEAR(out[1], 0.0F, 1e-7F);
      EXPECT_EQ(out[2], 1e30F);
      EXPECT_NEAR(out[3], 0.0F, 1e-30F);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
