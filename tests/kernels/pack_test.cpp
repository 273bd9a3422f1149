#include "kernels/cpu/pack.h"

#include <limits>

#include "base/status.h"
#include "gtest/gtest.h"
#include "kernels/cpu/ops.h"
#include "support/reference.h"

namespace tandem::cpu {
namespace {

std::vector<std::byte> pack(const reference::Matrix& m) {
  const auto bytes = packed_bytes(m.source());
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  std::vector<std::byte> packed(*bytes, std::byte{0xEE});
  pack_tiles(m.source(), packed.data(), 0, num_tiles(m.rows));
  return packed;
}

TEST(Pack, unpacks_to_the_values_of_the_file) {
  std::mt19937 rng(1);
  for (const DType dtype : reference::kDTypes) {
    for (const std::int64_t rows : {1, 15, 16, 17, 40}) {
      const std::int64_t cols = is_quantised(dtype) ? reference::whole_blocks(dtype, 290) : 37;
      const reference::Matrix m = reference::random_matrix(dtype, rows, cols, rng);
      const std::vector<std::byte> packed = pack(m);
      std::vector<float> out(static_cast<std::size_t>(cols));
      for (std::int64_t row = 0; row < rows; ++row) {
        unpack_row({dtype, rows, cols, packed.data()}, row, out.data());
        for (std::int64_t k = 0; k < cols; ++k) {
          const double want = m.values[static_cast<std::size_t>(row * cols + k)];
          // Scale, minimum and quant are exact; at most two roundings.
          EXPECT_NEAR(out[static_cast<std::size_t>(k)], want, 2e-7 * (std::fabs(want) + 1.0))
              << reference::name(dtype) << " row " << row << " column " << k;
        }
      }
    }
  }
}

TEST(Pack, size_is_whole_tiles_in_multiples_of_64_bytes) {
  for (const DType dtype : reference::kDTypes) {
    for (const std::int64_t least : {32, 96, 576}) {
      const std::int64_t cols = reference::whole_blocks(dtype, least);
      const auto one = packed_bytes({dtype, 1, cols, nullptr});
      const auto full = packed_bytes({dtype, 16, cols, nullptr});
      const auto next = packed_bytes({dtype, 17, cols, nullptr});
      ASSERT_TRUE(one.ok() && full.ok() && next.ok());
      EXPECT_EQ(*one % 64, 0U);
      EXPECT_EQ(*one, *full);
      EXPECT_EQ(*next, 2 * *full);
    }
  }
  // A multiple of 16 rows of whole blocks is as large as in the file.
  EXPECT_EQ(*packed_bytes({DType::kQ4_1, 1536, 576, nullptr}), 1536U * 18U * 20U);
}

TEST(Pack, refuses_shapes_it_cannot_hold) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const WeightSource bad[] = {
      {DType::kQ4_1, 16, 33, nullptr},  {DType::kQ8_0, 16, 16, nullptr},  {DType::kF32, 0, 16, nullptr},
      {DType::kQ5_0, 16, 48, nullptr},  {DType::kQ4_K, 16, 576, nullptr}, {DType::kQ6_K, 16, 128, nullptr},
      {DType::kF32, 16, 0, nullptr},    {DType::kF32, -5, 16, nullptr},   {DType::kF32, 16, -1, nullptr},
      {DType::kF32, kHuge, 1, nullptr}, {DType::kF32, 1, kHuge, nullptr}, {static_cast<DType>(99), 16, 32, nullptr},
  };
  for (const WeightSource& source : bad) {
    const auto bytes = packed_bytes(source);
    ASSERT_FALSE(bytes.ok()) << source.rows << " x " << source.cols;
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(packed_bytes({DType::kF32, 1'000'000, 1'000'000, nullptr}).ok());
}

TEST(Embed, gathers_rows_of_every_type_into_a_strided_output) {
  std::mt19937 rng(2);
  const auto team = Team::create({0, 2});
  ASSERT_TRUE(team.ok());
  for (const DType dtype : reference::kDTypes) {
    const std::int64_t cols = reference::whole_blocks(dtype, 64);
    const auto width = static_cast<std::size_t>(cols);
    const reference::Matrix m = reference::random_matrix(dtype, 50, cols, rng);
    const std::vector<std::byte> packed = pack(m);
    const std::vector<TokenId> tokens = {49, 0, 17, 17, 5};
    std::vector<float> out(tokens.size() * (width + 6), -1.0F);
    const Tensor y{reinterpret_cast<std::byte*>(out.data()), DType::kF32, 5, cols, cols + 6};
    for (const auto embed : {avx2::embed, avx512::embed}) {
      embed({{dtype, 50, cols, packed.data()}, tokens, y}, **team);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        for (std::size_t k = 0; k < width; ++k) {
          const double want = m.values[static_cast<std::size_t>(tokens[i]) * width + k];
          EXPECT_NEAR(out[i * (width + 6) + k], want, 2e-7 * (std::fabs(want) + 1.0));
        }
        EXPECT_EQ(out[i * (width + 6) + width], -1.0F);
      }
    }
  }
}

TEST(EmbedDeathTest, stops_at_a_token_outside_the_vocabulary) {
  std::mt19937 rng(3);
  const reference::Matrix m = reference::random_matrix(DType::kF32, 4, 8, rng);
  const std::vector<std::byte> packed = pack(m);
  std::vector<float> out(8);
  const Tensor y{reinterpret_cast<std::byte*>(out.data()), DType::kF32, 1, 8, 8};
  for (const TokenId token : {-1, 4}) {
    EXPECT_DEATH(
        {
          const auto team = Team::create({0, 1});
          avx2::embed({{DType::kF32, 4, 8, packed.data()}, std::span(&token, 1), y}, **team);
        },
        "vocabulary");
  }
}

}  // namespace
}  // namespace tandem::cpu
