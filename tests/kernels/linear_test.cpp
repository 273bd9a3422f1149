#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pack.h"
#include "support/reference.h"

namespace tandem::cpu {
namespace {

using reference::Matrix;
using Floats = std::vector<float>;

std::vector<Isa> supported() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (supports(isa)) {
      isas.push_back(isa);
    } else {
      std::printf("skipped: this processor has no %s\n", std::string(name(isa)).c_str());
    }
  }
  return isas;
}

struct Packed {
  Matrix matrix;
  std::vector<std::byte> bytes;

  Packed(DType dtype, std::int64_t rows, std::int64_t cols, std::mt19937& rng)
      : matrix(reference::random_matrix(dtype, rows, cols, rng)), bytes(packed_bytes(matrix.source()).value()) {
    pack_tiles(matrix.source(), bytes.data(), 0, num_tiles(rows));
  }
  Weight weight() const { return {matrix.dtype, matrix.rows, matrix.cols, bytes.data()}; }
};

std::unique_ptr<Team> make_team(int threads) { return Team::create({0, static_cast<std::uint16_t>(threads)}).value(); }

Floats random_rows(std::int64_t rows, std::int64_t cols, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  Floats x(static_cast<std::size_t>(rows * cols));
  for (float& value : x) value = normal(rng);
  return x;
}

Tensor view(Floats& data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, rows, cols, stride};
}

// y of x [rows, cols] with strides larger than the rows, checked not to be written beyond its columns.
Floats multiply(Isa isa, Team& team, const Floats& x, std::int64_t rows, std::span<const Weight> weights,
                const float* bias = nullptr) {
  constexpr float kUntouched = -12345.0F;
  const std::int64_t cols = weights[0].cols;
  std::int64_t outputs = 0;
  for (const Weight& weight : weights) outputs += weight.rows;
  Floats wide_x(static_cast<std::size_t>(rows * (cols + 3)), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(x.data() + row * cols, cols, wide_x.data() + row * (cols + 3));
  }
  Floats wide_y(static_cast<std::size_t>(rows * (outputs + 5)), kUntouched);
  const LinearArgs args{view(wide_x, rows, cols, cols + 3), weights, bias, view(wide_y, rows, outputs, outputs + 5)};
  ops_for(isa).linear(args, team);
  Floats y;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = wide_y.data() + row * (outputs + 5);
    y.insert(y.end(), from, from + outputs);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(from[outputs + i], kUntouched);
  }
  return y;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Rows [first, first + n) of a row-major matrix.
Floats slice(const Floats& x, std::int64_t cols, std::int64_t first, std::int64_t n) {
  return {x.begin() + first * cols, x.begin() + (first + n) * cols};
}

// A row of activations as the weights of a type meet it.
std::vector<double> seen_by(Isa isa, DType dtype, const float* x, std::int64_t cols) {
  if (is_quantised(dtype)) return reference::through_int8(x, cols);
  std::vector<double> seen(x, x + cols);
  if (isa != Isa::kAvx512Bf16 || dtype != DType::kBF16) return seen;
  for (double& value : seen) {  // rounded to even
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    value = std::bit_cast<float>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) & 0xFFFF0000U);
  }
  return seen;
}

TEST(Linear, agrees_with_the_reference_for_every_type_and_kernel) {
  std::mt19937 rng(11);
  const auto team = make_team(2);
  for (const Isa isa : supported()) {
    for (const DType dtype : reference::kDTypes) {
      for (const std::int64_t outputs : {1, 16, 23, 70}) {
        for (const std::int64_t least : {32, 96, 320, 577}) {
          const std::int64_t cols = reference::whole_blocks(dtype, least);
          const Packed w(dtype, outputs, cols, rng);
          const std::int64_t rows = 1 + static_cast<std::int64_t>(rng() % 11);
          const Floats x = random_rows(rows, cols, rng);
          const Weight weight = w.weight();
          const Floats y = multiply(isa, *team, x, rows, {&weight, 1});
          for (std::int64_t row = 0; row < rows; ++row) {
            const float* input = x.data() + row * cols;
            const std::vector<double> exact(input, input + cols);
            const auto seen = seen_by(isa, dtype, input, cols);
            for (std::int64_t o = 0; o < outputs; ++o) {
              const float got = y[static_cast<std::size_t>(row * outputs + o)];
              const std::string where = std::string(name(isa)) + " " + reference::name(dtype) + " [" +
                                        std::to_string(outputs) + ", " + std::to_string(cols) + "] row " +
                                        std::to_string(row) + " output " + std::to_string(o);
              // One rounding (2^-24) of the running sum per fma; the terms of minima partly cancel, so they count more.
              const auto want = reference::dot(w.matrix, o, seen);
              const double roundings =
                  is_quantised(dtype) ? 4.0 * static_cast<double>(cols) / 32 + 4 : static_cast<double>(cols) + 4;
              double magnitude = want.magnitude;
              if (dtype == DType::kQ4_1 || dtype == DType::kQ4_K) magnitude *= 3.0;
              ASSERT_NEAR(got, want.value, roundings * 0x1p-24 * magnitude + 1e-30) << where;
              // Against unquantised activations: each is off by at most half a step, max|x| / 254.
              const auto ideal = reference::dot(w.matrix, o, exact);
              if (is_quantised(dtype)) {
                double half_steps = 0.0;
                for (std::int64_t k = 0; k < cols; ++k) {
                  half_steps += std::fabs(w.matrix.values[static_cast<std::size_t>(o * cols + k)]) * 4.5 / 254;
                }
                ASSERT_NEAR(got, ideal.value, half_steps + 1e-4) << where;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Linear, a_row_has_the_same_bits_alone_and_in_any_batch) {
  std::mt19937 rng(12);
  constexpr std::int64_t kRows = 33;
  const auto team = make_team(2);
  for (const Isa isa : supported()) {
    for (const DType dtype : reference::kDTypes) {
      const std::int64_t cols = reference::whole_blocks(dtype, 192);
      const Packed w(dtype, 83, cols, rng);
      const Weight weight = w.weight();
      const Floats x = random_rows(kRows, cols, rng);
      const Floats all = multiply(isa, *team, x, kRows, {&weight, 1});
      for (std::int64_t n = 1; n <= kRows; ++n) {
        const std::int64_t first = static_cast<std::int64_t>(rng() % static_cast<unsigned>(kRows - n + 1));
        const Floats part = multiply(isa, *team, slice(x, cols, first, n), n, {&weight, 1});
        ASSERT_TRUE(same_bits(part, slice(all, 83, first, n)))
            << name(isa) << " " << reference::name(dtype) << ": rows [" << first << ", +" << n << ")";
      }
    }
  }
}

TEST(Linear, threads_and_shares_change_no_bit) {
  std::mt19937 rng(13);
  const auto one = make_team(1);
  const auto four = make_team(4);
  for (const Isa isa : supported()) {
    for (const DType dtype : reference::kDTypes) {
      const std::int64_t cols = reference::whole_blocks(dtype, 160);
      const Packed w(dtype, 100, cols, rng);
      const Weight weight = w.weight();
      for (const std::int64_t rows : {1, 2, 5, 19, 70}) {
        const Floats x = random_rows(rows, cols, rng);
        const Floats want = multiply(isa, *one, x, rows, {&weight, 1});
        for (const Share share : {Share{0, 4}, Share{1, 1}, Share{0, 3}, Share{2, 2}, Share{3, 1}, Share{0, 0}}) {
          ASSERT_TRUE(four->set_share(share).ok());
          ASSERT_TRUE(same_bits(multiply(isa, *four, x, rows, {&weight, 1}), want))
              << name(isa) << " " << reference::name(dtype) << " rows " << rows << " share " << share.first << "+"
              << share.count;
        }
      }
    }
  }
}

TEST(Linear, instruction_sets_agree_to_the_bit) {
  const std::vector<Isa> isas = supported();
  if (isas.size() < 2) GTEST_SKIP() << "needs both instruction sets";
  std::mt19937 rng(14);
  const auto team = make_team(2);
  for (const DType dtype : reference::kDTypes) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 40}) {
      const std::int64_t cols = is_quantised(dtype) ? reference::whole_blocks(dtype, 576) : 101;
      const Packed w(dtype, 77, cols, rng);
      const Weight weight = w.weight();
      Floats x = random_rows(rows, cols, rng);
      for (std::size_t i = 0; i < x.size(); i += 97) x[i] *= 1000.0F;  // blocks with an outlier
      ASSERT_TRUE(same_bits(multiply(Isa::kAvx2, *team, x, rows, {&weight, 1}),
                            multiply(Isa::kAvx512, *team, x, rows, {&weight, 1})))
          << reference::name(dtype) << " rows " << rows;
    }
  }
}

TEST(Linear, bf16_dot_products_change_no_other_type) {
  if (!supports(Isa::kAvx512Bf16)) GTEST_SKIP() << "this processor has no avx512-bf16";
  std::mt19937 rng(19);
  const auto team = make_team(2);
  for (const DType dtype : reference::kDTypes) {
    const Packed w(dtype, 77, 256, rng);
    const Weight weight = w.weight();
    for (const std::int64_t rows : {1, 6, 20}) {
      const Floats x = random_rows(rows, 256, rng);
      EXPECT_EQ(same_bits(multiply(Isa::kAvx512Bf16, *team, x, rows, {&weight, 1}),
                          multiply(Isa::kAvx512, *team, x, rows, {&weight, 1})),
                dtype != DType::kBF16)
          << reference::name(dtype) << " rows " << rows;
    }
  }
}

TEST(Linear, fused_weights_equal_separate_ones_and_the_bias_comes_last) {
  std::mt19937 rng(15);
  constexpr std::int64_t kCols = 256;
  const auto team = make_team(2);
  const DType mixes[][3] = {{DType::kQ4_1, DType::kQ4_1, DType::kQ4_1},
                            {DType::kQ4_0, DType::kF16, DType::kQ8_0},
                            {DType::kF32, DType::kBF16, DType::kQ4_1},
                            {DType::kQ4_K, DType::kQ5_0, DType::kQ6_K}};
  for (const Isa isa : supported()) {
    for (const auto& mix : mixes) {
      const Packed a(mix[0], 48, kCols, rng);
      const Packed b(mix[1], 19, kCols, rng);
      const Packed c(mix[2], 5, kCols, rng);
      const Weight weights[] = {a.weight(), b.weight(), c.weight()};
      const Floats bias = random_rows(1, 48 + 19 + 5, rng);
      for (const std::int64_t rows : {1, 3, 8, 21}) {
        const Floats x = random_rows(rows, kCols, rng);
        const Floats fused = multiply(isa, *team, x, rows, weights, bias.data());
        std::int64_t column = 0;
        for (const Weight& weight : weights) {
          const Floats single = multiply(isa, *team, x, rows, {&weight, 1});
          for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t o = 0; o < weight.rows; ++o) {
              const float want =
                  single[static_cast<std::size_t>(row * weight.rows + o)] + bias[static_cast<std::size_t>(column + o)];
              ASSERT_EQ(fused[static_cast<std::size_t>(row * 72 + column + o)], want) << name(isa) << " row " << row;
            }
          }
          column += weight.rows;
        }
      }
    }
  }
}

// The largest sums: every nibble 15 or every byte -128, every activation at its maximum.
TEST(Linear, extreme_quants_do_not_saturate) {
  const auto team = make_team(1);
  constexpr std::int64_t kCols = 64;
  for (const Isa isa : supported()) {
    for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      for (const int fill : {0x00, 0x7F, 0x80, 0xFF}) {
        std::mt19937 rng(16);
        Packed w(dtype, 16, kCols, rng);
        const std::int64_t header = dtype == DType::kQ4_1 ? 4 : 2;
        const std::int64_t record = header + (dtype == DType::kQ8_0 ? 32 : 16);
        const std::uint16_t one = reference::to_f16(1.0F);
        const std::uint16_t zero = 0;
        for (std::size_t at = 0; at < w.matrix.file.size(); at += static_cast<std::size_t>(record)) {
          std::memset(w.matrix.file.data() + at, fill, static_cast<std::size_t>(record));
          std::memcpy(w.matrix.file.data() + at, &one, 2);
          if (dtype == DType::kQ4_1) std::memcpy(w.matrix.file.data() + at + 2, &zero, 2);
        }
        pack_tiles(w.matrix.source(), w.bytes.data(), 0, 1);
        const int offset = dtype == DType::kQ4_0 ? 8 : 0;
        const double pair =
            dtype == DType::kQ8_0 ? 2.0 * static_cast<std::int8_t>(fill) : (fill & 15) + (fill >> 4) - 2.0 * offset;
        const Weight weight = w.weight();
        for (const float sign : {1.0F, -1.0F}) {
          const Floats y = multiply(isa, *team, Floats(kCols, sign * 127.0F), 1, {&weight, 1});
          for (const float value : y) {
            EXPECT_EQ(value, sign * 127.0 * pair * kCols / 2) << name(isa) << " " << reference::name(dtype) << fill;
          }
        }
      }
    }
  }
}

// As above for superblocks: every factor and every quant at its largest or smallest.
TEST(Linear, extreme_superblocks_do_not_saturate) {
  const auto team = make_team(1);
  constexpr std::int64_t kCols = 512;
  const std::uint16_t one = reference::to_f16(1.0F);
  for (const Isa isa : supported()) {
    for (const DType dtype : {DType::kQ4_K, DType::kQ6_K}) {
      const bool has_minima = dtype == DType::kQ4_K;
      const std::size_t record = has_minima ? 144 : 210;
      for (const int quants : {0x00, 0xFF}) {
        for (const int factors : {0x7F, 0x80, 0xFF}) {
          std::mt19937 rng(16);
          Packed w(dtype, 16, kCols, rng);
          for (std::size_t at = 0; at < w.matrix.file.size(); at += record) {
            std::byte* from = w.matrix.file.data() + at;
            std::memset(from, quants, record);
            std::memset(from + (has_minima ? 4 : 192), factors, has_minima ? 12 : 16);
            std::memcpy(from + (has_minima ? 0 : 208), &one, 2);
            if (has_minima) std::memcpy(from + 2, &one, 2);
          }
          pack_tiles(w.matrix.source(), w.bytes.data(), 0, 1);
          double sum = kCols * static_cast<std::int8_t>(factors) * (quants == 0 ? -32.0 : 31.0);
          if (has_minima) {
            // The second half of a superblock takes its factors and minima from other bits than the first.
            const int low = factors & 63;
            const int factor = (factors & 15) + (factors >> 6) * 16;
            const int minimum = (factors >> 4) + (factors >> 6) * 16;
            const int quant = quants & 15;
            sum = kCols / 2 * (low * quant - low + factor * quant - minimum);
          }
          const Weight weight = w.weight();
          for (const std::int64_t rows : {1, 4}) {
            for (const float sign : {1.0F, -1.0F}) {
              const Floats x(static_cast<std::size_t>(rows * kCols), sign * 127.0F);
              // Sums grow beyond 2^24, so that some of the 32 additions round.
              for (const float value : multiply(isa, *team, x, rows, {&weight, 1})) {
                ASSERT_NEAR(value, sign * 127.0 * sum, 32 * 0x1p-24 * 127 * kCols * 32 * 128)
                    << name(isa) << " " << reference::name(dtype) << " " << quants << " " << factors;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Linear, odd_activations_stay_in_their_row) {
  std::mt19937 rng(17);
  constexpr std::int64_t kCols = 256;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto team = make_team(2);
  for (const Isa isa : supported()) {
    for (const DType dtype : reference::kDTypes) {
      const Packed w(dtype, 32, kCols, rng);
      const Weight weight = w.weight();
      Floats x = random_rows(6, kCols, rng);
      const Floats before = multiply(isa, *team, x, 6, {&weight, 1});
      x[1 * kCols + 40] = std::numeric_limits<float>::quiet_NaN();
      x[2 * kCols + 127] = kInfinity;
      for (std::int64_t k = 0; k < kCols; ++k) x[static_cast<std::size_t>(3 * kCols + k)] = 0.0F;
      for (std::int64_t k = 0; k < kCols; ++k) x[static_cast<std::size_t>(4 * kCols + k)] = 1e-42F;
      const Floats y = multiply(isa, *team, x, 6, {&weight, 1});
      for (std::size_t o = 0; o < 32; ++o) {
        EXPECT_EQ(y[o], before[o]);
        EXPECT_TRUE(std::isnan(y[32 + o])) << reference::name(dtype);
        EXPECT_FALSE(std::isfinite(y[64 + o])) << reference::name(dtype);
        EXPECT_EQ(y[96 + o], 0.0F);
        EXPECT_NEAR(y[128 + o], 0.0F, 1e-35F);
        EXPECT_EQ(y[160 + o], before[160 + o]);
      }
    }
  }
}

TEST(Linear, no_rows_is_no_work) {
  std::mt19937 rng(18);
  const auto team = make_team(2);
  const Packed w(DType::kQ4_1, 32, 64, rng);
  const Weight weight = w.weight();
  for (const Isa isa : supported()) EXPECT_TRUE(multiply(isa, *team, {}, 0, {&weight, 1}).empty());
}

}  // namespace
}  // namespace tandem::cpu
