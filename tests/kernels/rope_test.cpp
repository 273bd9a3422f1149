#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "support/ops_reference.h"

namespace tandem::cpu {
namespace {

using reference::Floats;

TEST(RopeAngles, keep_their_accuracy_at_large_positions) {
  std::vector<float> frequency;
  for (int i = 0; i < 32; ++i) frequency.push_back(static_cast<float>(std::pow(100000.0, -i / 32.0)));
  std::vector<std::int32_t> positions;
  for (int i = 0; i < 600; ++i) positions.push_back(i < 300 ? i : 131072 - i);
  for (const Isa isa : reference::isas()) {
    for (const float scale : {1.0F, 1.19F}) {
      Floats out(positions.size() * 64);
      const auto team = reference::make_team(2);
      ops_for(isa).rope_angles({positions, frequency, scale, reference::view(out, 600, 64)}, *team);
      for (std::size_t row = 0; row < positions.size(); ++row) {
        for (std::size_t i = 0; i < frequency.size(); ++i) {
          const double angle = static_cast<double>(static_cast<float>(positions[row]) * frequency[i]);
          ASSERT_NEAR(out[row * 64 + 2 * i], std::cos(angle) * static_cast<double>(scale), 2e-7);
          ASSERT_NEAR(out[row * 64 + 2 * i + 1], std::sin(angle) * static_cast<double>(scale), 2e-7);
        }
      }
    }
  }
}

struct Case {
  std::int32_t heads;
  std::int32_t kv_heads;
  std::int32_t dim;
  std::int32_t rotary;
  RopeStyle style;
};

Floats rotate(Isa isa, Team& team, const Case& c, Floats qkv, Floats angles) {
  const std::int64_t cols = std::int64_t{c.heads + 2 * c.kv_heads} * c.dim;
  const std::int64_t rows = static_cast<std::int64_t>(qkv.size()) / cols;
  ops_for(isa).rope(
      {reference::view(qkv, rows, cols), reference::view(angles, rows, c.rotary), c.heads, c.kv_heads, c.dim, c.style},
      team);
  return qkv;
}

TEST(Rope, rotates_query_and_key_heads_and_nothing_else) {
  std::mt19937 rng(1);
  const auto team = reference::make_team(1);
  for (const RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
    for (const Case c : {Case{1, 1, 16, 16, style}, Case{9, 3, 64, 64, style}, Case{4, 2, 80, 80, style},
                         Case{4, 1, 80, 32, style}, Case{2, 2, 96, 24, style}, Case{2, 1, 256, 256, style}}) {
      const std::int64_t cols = std::int64_t{c.heads + 2 * c.kv_heads} * c.dim;
      const Floats x = reference::random_floats(3 * cols, rng);
      const Floats angles = reference::random_floats(std::int64_t{3} * c.rotary, rng);
      for (const Isa isa : reference::isas()) {
        std::vector<double> want(x.begin(), x.end());
        for (std::int64_t row = 0; row < 3; ++row) {
          for (std::int64_t head = 0; head < c.heads + c.kv_heads; ++head) {
            for (std::int64_t i = 0; i < c.rotary / 2; ++i) {
              const bool half = style == RopeStyle::kHalf;
              const auto a = static_cast<std::size_t>(row * cols + head * c.dim + (half ? i : 2 * i));
              const auto b = a + static_cast<std::size_t>(half ? c.rotary / 2 : 1);
              const double cosine = angles[static_cast<std::size_t>(row * c.rotary + 2 * i)];
              const double sine = angles[static_cast<std::size_t>(row * c.rotary + 2 * i + 1)];
              want[a] = x[a] * cosine - x[b] * sine;
              want[b] = x[b] * cosine + x[a] * sine;
            }
          }
        }
        const Floats out = rotate(isa, *team, c, x, angles);
        for (std::size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], want[i], 4e-6) << "dim " << c.dim << " rotary " << c.rotary << " at " << i;
        }
        for (std::int64_t row = 0; row < 3; ++row) {  // values and dimensions past rotary_dim: the same bits
          for (std::int64_t i = 0; i < cols; ++i) {
            const auto at = static_cast<std::size_t>(row * cols + i);
            if (i >= std::int64_t{c.heads + c.kv_heads} * c.dim || i % c.dim >= c.rotary) {
              ASSERT_EQ(out[at], x[at]);
            }
          }
        }
      }
    }
  }
}

TEST(Rope, gives_equal_bits_on_threads_and_on_each_instruction_set) {
  std::mt19937 rng(2);
  const auto one = reference::make_team(1);
  const auto two = reference::make_team(2);
  for (const RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
    const Case c{9, 3, 72, 40, style};
    const Floats x = reference::random_floats(50 * 15 * 72, rng);
    const Floats angles = reference::random_floats(50 * 40, rng);
    const Floats want = rotate(reference::isas()[0], *one, c, x, angles);
    for (const Isa isa : reference::isas()) EXPECT_TRUE(reference::same_bits(rotate(isa, *two, c, x, angles), want));
  }
}

}  // namespace
}  // namespace tandem::cpu
