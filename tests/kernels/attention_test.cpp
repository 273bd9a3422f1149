#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "fmt/core.h"
#include "gtest/gtest.h"
#include "support/ops_reference.h"

namespace tandem::cpu {
namespace {

using reference::Floats;

struct Shape {
  std::int32_t heads = 9;
  std::int32_t kv_heads = 3;
  std::int32_t dim = 64;
  std::int32_t block_tokens = 16;
  DType dtype = DType::kF16;

  std::int64_t cols() const { return std::int64_t{heads + 2 * kv_heads} * dim; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(dim)); }
};

// A part of a sequence: rows at [position, position + rows).
struct Part {
  std::size_t sequence = 0;
  std::int32_t position = 0;
  std::int32_t rows = 0;
};

// Sequences with all their queries, keys and values [length, cols].
struct World {
  Shape shape;
  std::vector<Floats> sequences;

  World(const Shape& s, std::vector<std::int32_t> lengths, std::mt19937& rng) : shape(s) {
    for (const std::int32_t length : lengths) {
      sequences.push_back(reference::random_floats(length * s.cols(), rng, 1.5F));
    }
  }
};

constexpr std::int32_t kLayer = 1;

// Attention of the parts as one batch: out [rows of all parts, heads * dim]. KV memory is NaN but for the positions
// before each part's end, and blocks lie in random order.
Floats attend(const World& world, const std::vector<Part>& parts, Isa isa, Team& team) {
  const Shape& shape = world.shape;
  KvLayout layout{shape.dtype, 2, shape.kv_heads, shape.dim, shape.block_tokens};
  std::vector<SequenceRows> history;
  std::vector<SequenceRows> rows;
  Floats past;
  Floats qkv;
  std::int32_t num_blocks = 0;
  for (const Part& part : parts) {
    const Floats& all = world.sequences[part.sequence];
    const std::int32_t end = part.position + part.rows;
    const auto rows_of = [&shape](const Floats& x) {
      return static_cast<std::int32_t>(static_cast<std::int64_t>(x.size()) / shape.cols());
    };
    history.push_back({rows_of(past), end, 0, num_blocks});
    rows.push_back({rows_of(qkv), part.rows, part.position, num_blocks});
    past.insert(past.end(), all.begin(), all.begin() + end * shape.cols());
    qkv.insert(qkv.end(), all.begin() + part.position * shape.cols(), all.begin() + end * shape.cols());
    num_blocks += (end + shape.block_tokens - 1) / shape.block_tokens;
  }
  std::vector<BlockId> blocks(static_cast<std::size_t>(num_blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].value = static_cast<std::uint32_t>(i);
  std::mt19937 shuffle(7);
  std::shuffle(blocks.begin(), blocks.end(), shuffle);
  // 0xFF bytes are a NaN in every one of the types.
  std::vector<std::byte> memory(static_cast<std::size_t>(layout.block_bytes() * num_blocks), std::byte{0xFF});
  const KvView kv{memory.data(), layout};
  const std::int64_t past_rows = static_cast<std::int64_t>(past.size()) / shape.cols();
  const Tensor past_view = reference::view(past, past_rows, shape.cols());
  ops_for(isa).kv_write({past_view, shape.heads, kv, kLayer, history, blocks}, team);
  const std::int64_t num_rows = static_cast<std::int64_t>(qkv.size()) / shape.cols();
  Floats out(static_cast<std::size_t>(num_rows * shape.heads * shape.dim), -5.0F);
  const Tensor qkv_view = reference::view(qkv, num_rows, shape.cols());
  const Tensor out_view = reference::view(out, num_rows, std::int64_t{shape.heads} * shape.dim);
  ops_for(isa).attention({qkv_view, shape.heads, kv, kLayer, shape.scale(), rows, blocks, out_view}, team);
  return out;
}

// What KV memory holds for a head's row. q8_0: a scale per 32 values, f16, and quants of the scale as rounded.
std::vector<double> held(DType dtype, std::span<const float> row) {
  std::vector<double> out;
  float scale = 0.0F;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (dtype != DType::kQ8_0) {
      out.push_back(reference::through(dtype, row[i]));
      continue;
    }
    if (i % 32 == 0) {
      float largest = 0.0F;
      for (const float x : row.subspan(i, std::min<std::size_t>(32, row.size() - i))) {
        largest = std::max(largest, std::fabs(x));
      }
      scale = static_cast<float>(reference::from_f16(reference::to_f16(largest / 127.0F)));
    }
    const double quant = scale > 0.0F ? std::nearbyint(row[i] / scale) : 0.0F;
    out.push_back(std::clamp(quant, -127.0, 127.0) * double{scale});
  }
  return out;
}

// BF16 dot products round queries, keys, values and weights; f32 KV never meets them.
bool rounds_to_bf16(Isa isa, DType kv) { return isa == Isa::kAvx512Bf16 && kv != DType::kF32; }

struct Mean {
  std::vector<double> value;   // [dim]
  std::vector<double> spread;  // the weighted mean distance of the values from it
};

// One query head, scaled, over keys and values [keys, dim].
Mean attend_one(const std::vector<double>& query, const std::vector<std::vector<double>>& keys,
                const std::vector<std::vector<double>>& values, std::size_t num_keys) {
  std::vector<double> weights(num_keys);
  for (std::size_t k = 0; k < num_keys; ++k) {
    weights[k] = std::inner_product(query.begin(), query.end(), keys[k].begin(), 0.0);
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  for (double& w : weights) sum += w = std::exp(w - largest);
  Mean mean{std::vector<double>(query.size()), std::vector<double>(query.size())};
  for (std::size_t d = 0; d < query.size(); ++d) {
    for (std::size_t k = 0; k < num_keys; ++k) mean.value[d] += weights[k] / sum * values[k][d];
    for (std::size_t k = 0; k < num_keys; ++k) {
      mean.spread[d] += weights[k] / sum * std::fabs(values[k][d] - mean.value[d]);
    }
  }
  return mean;
}

// Compares the rows of one part with the double-precision reference, fed with the same rounded inputs.
void check_part(const World& world, const Part& part, Isa isa, std::span<const float> out) {
  const Shape& shape = world.shape;
  const Floats& all = world.sequences[part.sequence];
  const std::int32_t end = part.position + part.rows;
  const bool bf16 = rounds_to_bf16(isa, shape.dtype);
  const auto rounded = [bf16](double x) { return bf16 ? reference::through(DType::kBF16, static_cast<float>(x)) : x; };
  // Scores reach about 10; their float32 rounding error scales the weights by up to 1e-5. A bf16 weight is off by up
  // to 2^-8 of itself, in the sum of values and in the sum of weights alike.
  const double weight_error = bf16 ? 0x1p-8 : 0.0;
  for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
    std::vector<std::vector<double>> keys(static_cast<std::size_t>(end));
    std::vector<std::vector<double>> values(static_cast<std::size_t>(end));
    for (std::int32_t t = 0; t < end; ++t) {
      const float* key = all.data() + t * shape.cols() + std::int64_t{shape.heads + h} * shape.dim;
      const auto row_held = [&](const float* row) {
        std::vector<double> row_values = held(shape.dtype, {row, static_cast<std::size_t>(shape.dim)});
        for (double& x : row_values) x = rounded(x);
        return row_values;
      };
      keys[static_cast<std::size_t>(t)] = row_held(key);
      values[static_cast<std::size_t>(t)] = row_held(key + std::int64_t{shape.kv_heads} * shape.dim);
    }
    const std::int32_t group = shape.heads / shape.kv_heads;
    for (std::int32_t row = 0; row < part.rows; ++row) {
      for (std::int32_t g = h * group; g < (h + 1) * group; ++g) {
        const float* from = all.data() + (part.position + row) * shape.cols() + std::int64_t{g} * shape.dim;
        std::vector<double> query;
        for (std::int32_t d = 0; d < shape.dim; ++d) {
          query.push_back(bf16 ? rounded(from[d] * shape.scale()) : double{from[d]} * double{shape.scale()});
        }
        const Mean want = attend_one(query, keys, values, static_cast<std::size_t>(part.position + row + 1));
        for (std::size_t d = 0; d < query.size(); ++d) {
          const float got = out[static_cast<std::size_t>((row * shape.heads + g) * shape.dim) + d];
          ASSERT_NEAR(got, want.value[d], 2e-5 + weight_error * want.spread[d])
              << "row " << row << " head " << g << " dim " << d;
        }
      }
    }
  }
}

TEST(Attention, agrees_with_double_precision_for_every_shape_and_kv_type) {
  std::mt19937 rng(1);
  const auto team = reference::make_team(1);
  const std::vector<Shape> shapes = {
      {2, 2, 16, 16, DType::kF16},  {9, 3, 64, 16, DType::kF16},  {8, 1, 80, 32, DType::kBF16},
      {4, 1, 128, 16, DType::kF32}, {3, 1, 40, 32, DType::kF16},  {2, 1, 24, 7, DType::kBF16},
      {1, 1, 256, 16, DType::kF32}, {8, 1, 8, 48, DType::kF32},   {14, 2, 96, 16, DType::kBF16},
      {9, 3, 64, 16, DType::kQ8_0}, {3, 1, 40, 32, DType::kQ8_0}, {2, 1, 24, 8, DType::kQ8_0}};
  for (const Shape& shape : shapes) {
    World world(shape, {1, 17, 290, 70}, rng);
    const std::vector<Part> parts = {{0, 0, 1}, {1, 3, 14}, {2, 250, 40}, {3, 69, 1}, {2, 283, 2}, {3, 0, 33}};
    for (const Isa isa : reference::isas()) {
      SCOPED_TRACE(fmt::format("{} heads {}/{} dim {} block {}", name(isa), shape.heads, shape.kv_heads, shape.dim,
                               shape.block_tokens));
      const Floats out = attend(world, parts, isa, *team);
      std::size_t at = 0;
      for (const Part& part : parts) {
        const auto size = static_cast<std::size_t>(part.rows) * static_cast<std::size_t>(shape.heads * shape.dim);
        check_part(world, part, isa, std::span(out).subspan(at, size));
        at += size;
      }
    }
  }
}

// Every instruction set gives the bits of the first, but for BF16 dot products, which have bits of their own.
Isa same_bits_as(Isa isa, DType kv) { return rounds_to_bf16(isa, kv) ? isa : reference::isas()[0]; }

TEST(Attention, gives_a_row_the_same_bits_however_the_prompt_is_cut) {
  std::mt19937 rng(2);
  const auto one = reference::make_team(1);
  const auto two = reference::make_team(2);
  for (const Shape& shape : {Shape{}, Shape{8, 1, 80, 32, DType::kBF16}, Shape{2, 2, 16, 16, DType::kF32},
                             Shape{3, 1, 40, 16, DType::kQ8_0}}) {
    World world(shape, {600}, rng);
    const auto row_size = static_cast<std::ptrdiff_t>(shape.heads * shape.dim);
    for (const Isa isa : reference::isas()) {
      const Floats whole = attend(world, {{0, 0, 600}}, same_bits_as(isa, shape.dtype), *one);
      const auto check = [&](std::int32_t position, std::int32_t rows) {
        const Floats want(whole.begin() + position * row_size, whole.begin() + (position + rows) * row_size);
        for (Team* team : {one.get(), two.get()}) {
          ASSERT_TRUE(reference::same_bits(attend(world, {{0, position, rows}}, isa, *team), want))
              << name(isa) << " rows [" << position << ", " << position + rows << ") threads " << team->active();
        }
      };
      for (const std::int32_t position : {0, 1, 15, 16, 31, 32, 33, 62, 63, 64, 255, 256, 257, 511, 512, 599}) {
        check(position, 1);
      }
      for (const std::int32_t rows : {2, 5, 31, 64, 300}) {
        check(0, rows);
        check(600 - rows, rows);
        check(300 - rows / 2, rows);
      }
    }
  }
}

TEST(Attention, gives_a_row_the_same_bits_alone_and_in_a_ragged_batch) {
  std::mt19937 rng(3);
  const auto one = reference::make_team(1);
  const auto two = reference::make_team(2);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0}) {
    World world(Shape{.dtype = dtype}, {700, 1, 300, 513, 40}, rng);
    const std::vector<Part> parts = {{0, 699, 1}, {1, 0, 1}, {2, 200, 100}, {3, 512, 1}, {4, 0, 40}, {0, 500, 3}};
    for (const Isa isa : reference::isas()) {
      const Floats batch = attend(world, parts, same_bits_as(isa, dtype), *one);
      EXPECT_TRUE(reference::same_bits(attend(world, parts, isa, *two), batch));
      auto at = batch.begin();
      for (const Part& part : parts) {
        const Floats alone = attend(world, {part}, isa, *two);
        EXPECT_TRUE(reference::same_bits(alone, Floats(at, at + static_cast<std::ptrdiff_t>(alone.size()))));
        at += static_cast<std::ptrdiff_t>(alone.size());
      }
    }
  }
}

// Values so small that their weighted sum rounds to -0, which a merge with an empty chunk would turn into +0.
TEST(Attention, keeps_the_sign_of_a_zero_whatever_rows_stand_beside) {
  std::mt19937 rng(8);
  const Shape shape{1, 1, 16, 16, DType::kF32};
  World world(shape, {270}, rng);
  for (std::int64_t row = 0; row < 270; ++row) {
    float* query = world.sequences[0].data() + row * shape.cols();
    std::fill_n(query, 16, 1.0F);
    std::fill_n(query + 16, 16, row == 0 ? 2.0F : 0.0F);  // the first key takes nearly all the weight
    std::fill_n(query + 32, 16, row == 0 ? 0.0F : -std::numeric_limits<float>::denorm_min());
  }
  const auto team = reference::make_team(1);
  for (const Isa isa : reference::isas()) {
    const Floats together = attend(world, {{0, 250, 20}}, isa, *team);
    for (std::int32_t row = 0; row < 20; ++row) {
      const Floats alone = attend(world, {{0, 250 + row, 1}}, isa, *team);
      EXPECT_TRUE(reference::same_bits(alone, Floats(together.begin() + 16 * row, together.begin() + 16 * row + 16)));
      EXPECT_TRUE(row >= 6 || std::signbit(alone[0])) << "the test has lost its subject";
    }
  }
}

// A NaN or infinity in one row's own key and value must not reach the rows before it, in the same tile or not.
TEST(Attention, keeps_later_rows_out_of_earlier_ones) {
  std::mt19937 rng(4);
  const auto team = reference::make_team(1);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0}) {
    World world(Shape{.dtype = dtype}, {80}, rng);
    for (const std::size_t bad_row : {50U, 63U, 64U}) {
      World poisoned = world;
      const auto cols = static_cast<std::size_t>(world.shape.cols());
      for (std::size_t i = 0; i < cols; ++i) {
        const float bad = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
        poisoned.sequences[0][bad_row * cols + i] = bad;
      }
      const auto row_size = static_cast<std::ptrdiff_t>(world.shape.heads * world.shape.dim);
      for (const Isa isa : reference::isas()) {
        for (const std::int32_t first : {0, 47}) {
          const Floats want = attend(world, {{0, first, 80 - first}}, isa, *team);
          const Floats got = attend(poisoned, {{0, first, 80 - first}}, isa, *team);
          const std::ptrdiff_t size = (static_cast<std::ptrdiff_t>(bad_row) - first) * row_size;
          const Floats got_before(got.begin(), got.begin() + size);
          EXPECT_TRUE(reference::same_bits(got_before, Floats(want.begin(), want.begin() + size)));
          EXPECT_TRUE(std::isnan(got[static_cast<std::size_t>(size)])) << "the test has lost its subject";
        }
      }
    }
  }
}

TEST(Attention, stays_finite_for_very_large_and_equal_scores) {
  const auto team = reference::make_team(1);
  for (const float size : {0.0F, 200.0F}) {
    std::mt19937 rng(5);
    World world(Shape{2, 1, 16, 16, DType::kF32}, {}, rng);
    Floats rows(300 * static_cast<std::size_t>(world.shape.cols()));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i % 5 < 2 ? size : -size;
    world.sequences = {rows};
    for (const Isa isa : reference::isas()) {
      const Floats out = attend(world, {{0, 0, 300}}, isa, *team);
      for (const float x : out) ASSERT_LE(std::fabs(x), size);
    }
  }
}

// Element `at` of KV memory.
double element(const std::vector<std::byte>& memory, DType dtype, std::int64_t at) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(memory.data())[at];
  const auto bits = reinterpret_cast<const std::uint16_t*>(memory.data())[at];
  return dtype == DType::kF16 ? reference::from_f16(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
}

TEST(KvWrite, rounds_to_nearest_even_at_the_place_of_the_layout) {
  std::mt19937 rng(6);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const KvLayout layout{dtype, 3, 2, 24, 16};
    const std::int64_t cols = std::int64_t{4 + 2 * 2} * 24;
    Floats qkv = reference::random_floats(5 * cols, rng);
    // Ties of both types, the smallest subnormals, the largest finite f16.
    const Floats special = {1.00048828125F, 1.00146484375F, 1.00390625F, 1.01171875F,
                            5.9604645e-8F,  2.9e-8F,        65504.0F,    -0.0F};
    std::copy(special.begin(), special.end(), qkv.begin() + 4 * 24);
    const std::vector<SequenceRows> sequences = {{0, 3, 14, 0}, {3, 2, 0, 2}};
    const std::vector<BlockId> blocks = {{3}, {1}, {0}};
    for (const Isa isa : reference::isas()) {
      std::vector<std::byte> memory(static_cast<std::size_t>(4 * layout.block_bytes()), std::byte{0xFF});
      const auto team = reference::make_team(1);
      ops_for(isa).kv_write({reference::view(qkv, 5, cols), 4, {memory.data(), layout}, 2, sequences, blocks}, *team);
      std::int64_t written = 0;
      for (const auto& [row, block, token] : {std::tuple{0, 3, 14}, {1, 3, 15}, {2, 1, 0}, {3, 0, 0}, {4, 0, 1}}) {
        for (int plane = 0; plane < 2; ++plane) {
          for (int h = 0; h < 2; ++h) {
            for (int d = 0; d < 24; ++d) {
              // [block][layer][K, V][kv_head][token][dim]
              const std::int64_t at = ((((std::int64_t{block} * 3 + 2) * 2 + plane) * 2 + h) * 16 + token) * 24 + d;
              const float x = qkv[static_cast<std::size_t>(row * cols + (4 + 2 * plane + h) * 24 + d)];
              ASSERT_EQ(element(memory, dtype, at), reference::through(dtype, x)) << x;
              ++written;
            }
          }
        }
      }
      const std::int64_t bytes = written * (dtype == DType::kF32 ? 4 : 2);
      EXPECT_LE(std::count_if(memory.begin(), memory.end(), [](std::byte b) { return b != std::byte{0xFF}; }), bytes);
    }
  }
}

TEST(KvWrite, quantises_with_a_scale_for_every_32_values) {
  std::mt19937 rng(9);
  constexpr std::int32_t kDim = 72;  // blocks of 32, 32 and 8
  constexpr std::int32_t kScales = 3;
  constexpr std::int32_t kTokens = 8;
  const KvLayout layout{DType::kQ8_0, 2, 2, kDim, kTokens};
  constexpr std::int64_t kHead = kTokens * (kDim + 2 * kScales);
  EXPECT_EQ(layout.block_bytes(), (2 * 2 * 2 * kHead + 63) / 64 * 64);
  const std::int64_t cols = std::int64_t{4 + 2 * 2} * kDim;
  Floats qkv = reference::random_floats(3 * cols, rng, 2.0F);
  std::fill_n(qkv.begin() + 4 * kDim, 32, 0.0F);           // a scale of 0
  std::fill_n(qkv.begin() + 4 * kDim + 32, 32, 2e-9F);     // one that f16 rounds to 0
  const Floats ties = {127.0F, 0.5F, 1.5F, -2.5F, -126.5F};  // a scale of 1
  std::copy(ties.begin(), ties.end(), qkv.begin() + 5 * kDim);
  const std::vector<SequenceRows> sequences = {{0, 3, 6, 0}};
  const std::vector<BlockId> blocks = {{2}, {0}};
  const auto team = reference::make_team(1);
  for (const Isa isa : reference::isas()) {
    std::vector<std::byte> memory(static_cast<std::size_t>(3 * layout.block_bytes()), std::byte{0xFF});
    ops_for(isa).kv_write({reference::view(qkv, 3, cols), 4, {memory.data(), layout}, 1, sequences, blocks}, *team);
    for (const auto& [row, block, token] : {std::tuple{0, 2, 6}, {1, 2, 7}, {2, 0, 0}}) {
      for (int plane = 0; plane < 2; ++plane) {
        for (int h = 0; h < 2; ++h) {
          // [block][layer][K, V][kv_head]: [token][dim] quants, then [token][3] scales
          const std::int64_t head = block * layout.block_bytes() + ((2 + plane) * 2 + h) * kHead;
          const auto* quants = reinterpret_cast<const std::int8_t*>(memory.data() + head + token * kDim);
          const auto* scales =
              reinterpret_cast<const std::uint16_t*>(memory.data() + head + kTokens * kDim) + token * kScales;
          const std::span<const float> x(qkv.data() + row * cols + (4 + 2 * plane + h) * kDim, kDim);
          const std::vector<double> want = held(DType::kQ8_0, x);
          for (std::size_t d = 0; d < x.size(); ++d) {
            const double scale = reference::from_f16(scales[d / 32]);
            ASSERT_EQ(quants[d] * scale, want[d]) << name(isa) << " row " << row << " dim " << d;
            const double most = scale > 0.0 ? 0.5000001 * scale : 3e-6;
            ASSERT_LE(std::fabs(double{x[d]} - want[d]), most);
          }
        }
      }
    }
    const std::int64_t bytes = 3 * 2 * 2 * (kDim + 2 * kScales);
    EXPECT_LE(std::count_if(memory.begin(), memory.end(), [](std::byte b) { return b != std::byte{0xFF}; }), bytes);
  }
}

TEST(KvWrite, keeps_a_nan_one) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const KvLayout layout{dtype, 1, 1, 8, 16};
    Floats qkv(24, std::bit_cast<float>(0x7FFFFFFFU));  // rounding its bits up would give -0
    const std::vector<SequenceRows> sequences = {{0, 1, 0, 0}};
    const std::vector<BlockId> blocks = {{0}};
    for (const Isa isa : reference::isas()) {
      std::vector<std::byte> memory(static_cast<std::size_t>(layout.block_bytes()));
      const auto team = reference::make_team(1);
      ops_for(isa).kv_write({reference::view(qkv, 1, 24), 1, {memory.data(), layout}, 0, sequences, blocks}, *team);
      EXPECT_TRUE(std::isnan(element(memory, dtype, 0)));
    }
  }
}

TEST(KvWrite, keeps_no_finite_value_beside_a_nan_or_an_infinity) {
  const KvLayout layout{DType::kQ8_0, 1, 1, 8, 16};
  for (const float bad : {-std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Floats qkv(24, 1.0F);
    qkv[11] = bad;  // of the key
    const std::vector<SequenceRows> sequences = {{0, 1, 0, 0}};
    const std::vector<BlockId> blocks = {{0}};
    for (const Isa isa : reference::isas()) {
      std::vector<std::byte> memory(static_cast<std::size_t>(layout.block_bytes()));
      const auto team = reference::make_team(1);
      ops_for(isa).kv_write({reference::view(qkv, 1, 24), 1, {memory.data(), layout}, 0, sequences, blocks}, *team);
      const auto* scales = reinterpret_cast<const std::uint16_t*>(memory.data() + 16 * 8);
      for (int d = 0; d < 8; ++d) {
        const auto quant = std::to_integer<int>(memory[static_cast<std::size_t>(d)]);
        EXPECT_FALSE(std::isfinite(reference::from_f16(scales[0]) * quant));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
