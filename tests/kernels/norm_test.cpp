#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "support/ops_reference.h"

namespace tandem::cpu {
namespace {

using reference::Floats;

struct Result {
  Floats hidden;
  Floats out;
};

Result normalise(Isa isa, Team& team, Floats hidden, Floats delta, Floats weight, std::int64_t width) {
  const std::int64_t rows = static_cast<std::int64_t>(hidden.size()) / width;
  Floats out(hidden.size());
  RmsNormArgs args;
  args.hidden = reference::view(hidden, rows, width);
  if (!delta.empty()) args.delta = reference::view(delta, rows, width);
  args.weight = weight.data();
  args.epsilon = 1e-5F;
  args.out = reference::view(out, rows, width);
  ops_for(isa).rms_norm(args, team);
  return {hidden, out};
}

TEST(RmsNorm, agrees_with_double_precision_at_any_width) {
  std::mt19937 rng(1);
  const auto team = reference::make_team(1);
  for (const std::int64_t width : {1, 7, 16, 63, 64, 100, 576, 2049}) {
    const Floats hidden = reference::random_floats(3 * width, rng);
    const Floats delta = reference::random_floats(3 * width, rng);
    const Floats weight = reference::random_floats(width, rng);
    for (const Isa isa : reference::isas()) {
      const Result result = normalise(isa, *team, hidden, delta, weight, width);
      for (std::int64_t row = 0; row < 3; ++row) {
        double squares = 0.0;
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(row * width + i);
          ASSERT_EQ(result.hidden[at], hidden[at] + delta[at]);
          squares += std::pow(static_cast<double>(result.hidden[at]), 2);
        }
        const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(row * width + i);
          const double want = result.hidden[at] * scale * weight[static_cast<std::size_t>(i)];
          ASSERT_NEAR(result.out[at], want, 1e-6 * std::fabs(want) + 1e-12) << "width " << width << " column " << i;
        }
      }
    }
  }
}

TEST(RmsNorm, gives_equal_bits_alone_in_a_batch_on_threads_and_on_each_instruction_set) {
  std::mt19937 rng(2);
  const std::int64_t width = 580;
  const Floats hidden = reference::random_floats(64 * width, rng);
  const Floats weight = reference::random_floats(width, rng);
  const auto one = reference::make_team(1);
  const auto two = reference::make_team(2);
  const Result want = normalise(reference::isas()[0], *one, hidden, {}, weight, width);
  for (const Isa isa : reference::isas()) {
    EXPECT_TRUE(reference::same_bits(normalise(isa, *two, hidden, {}, weight, width).out, want.out));
    const Floats last(hidden.end() - width, hidden.end());
    const Floats want_last(want.out.end() - width, want.out.end());
    EXPECT_TRUE(reference::same_bits(normalise(isa, *one, last, {}, weight, width).out, want_last));
  }
}

TEST(RmsNorm, only_adds_without_an_output) {
  const auto team = reference::make_team(1);
  for (const Isa isa : reference::isas()) {
    Floats hidden(20, 1.0F);
    Floats delta(20, 0.5F);
    RmsNormArgs args;
    args.hidden = reference::view(hidden, 1, 20);
    args.delta = reference::view(delta, 1, 20);
    ops_for(isa).rms_norm(args, *team);
    EXPECT_EQ(hidden, Floats(20, 1.5F));
  }
}

TEST(RmsNorm, stays_within_rows_that_lie_apart) {
  const auto team = reference::make_team(1);
  for (const Isa isa : reference::isas()) {
    Floats hidden(2 * 24, 2.0F);
    Floats out(2 * 24, -7.0F);
    const Floats weight(21, 1.0F);
    RmsNormArgs args;
    args.hidden = {reinterpret_cast<std::byte*>(hidden.data()), DType::kF32, 2, 21, 24};
    args.out = {reinterpret_cast<std::byte*>(out.data()), DType::kF32, 2, 21, 24};
    args.weight = weight.data();
    ops_for(isa).rms_norm(args, *team);
    for (int row = 0; row < 2; ++row) {
      for (int i = 0; i < 24; ++i) {
        if (i < 21) {
          EXPECT_NEAR(out[static_cast<std::size_t>(24 * row + i)], 1.0F, 1e-5F);
        } else {
          EXPECT_EQ(out[static_cast<std::size_t>(24 * row + i)], -7.0F);
        }
      }
    }
  }
}

TEST(GatherRows, copies_the_rows_named_in_any_order) {
  std::mt19937 rng(3);
  Floats x = reference::random_floats(5 * 33, rng);
  const std::vector<std::int32_t> rows = {4, 0, 4, 2};
  for (const Isa isa : reference::isas()) {
    Floats out(rows.size() * 33);
    const auto team = reference::make_team(2);
    ops_for(isa).gather_rows({reference::view(x, 5, 33), rows, reference::view(out, 4, 33)}, *team);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < 33; ++j) EXPECT_EQ(out[i * 33 + j], x[static_cast<std::size_t>(rows[i]) * 33 + j]);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
