#include "model/spec.h"

#include <functional>

#include "base/status.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr TensorRename kTable[] = {{"tok.weight", "embed"}, {"blk.*.q.weight", "layers.*.q"}, {"blk.*.rot", ""}};

TEST(Spec, names_translate_both_ways) {
  EXPECT_EQ(canonical_name(kTable, "tok.weight"), "embed");
  EXPECT_EQ(canonical_name(kTable, "blk.17.q.weight"), "layers.17.q");
  EXPECT_EQ(canonical_name(kTable, "blk.3.rot"), "");
  for (const char* unknown : {"blk..q.weight", "blk.x.q.weight", "blk.-1.q.weight", "blk.01.q.weight",
                              "blk.1.q.weights", "blk.99999999999.q.weight", "blk.1q.weight", "blk.q.weight", ""}) {
    EXPECT_EQ(canonical_name(kTable, unknown), std::nullopt) << unknown;
  }
  EXPECT_EQ(name_in_file(kTable, "layers.17.q"), "blk.17.q.weight");
  EXPECT_EQ(name_in_file(kTable, "layers.17.k"), "layers.17.k");
}

TEST(Spec, tensor_bytes_counts_blocks_and_refuses_overflow) {
  EXPECT_EQ(tensor_bytes(DType::kF32, 3, 5), 60U);
  EXPECT_EQ(tensor_bytes(DType::kBF16, 3, 5), 30U);
  EXPECT_EQ(tensor_bytes(DType::kQ8_0, 2, 64), 136U);
  EXPECT_EQ(tensor_bytes(DType::kQ4_0, 2, 64), 72U);
  EXPECT_EQ(tensor_bytes(DType::kQ4_1, 2, 64), 80U);
  EXPECT_EQ(tensor_bytes(DType::kQ4_1, 2, 48), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kQ5_0, 2, 64), 88U);
  EXPECT_EQ(tensor_bytes(DType::kQ4_K, 2, 512), 576U);
  EXPECT_EQ(tensor_bytes(DType::kQ6_K, 2, 512), 840U);
  EXPECT_EQ(tensor_bytes(DType::kQ6_K, 2, 576), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kF32, 0, 5), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kF32, 5, -1), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kF32, INT64_MAX, 1), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::kF16, std::int64_t{1} << 32, std::int64_t{1} << 31), std::nullopt);
}

ModelSpec good_spec() {
  ModelSpec spec;
  spec.num_layers = 2;
  spec.hidden_size = 64;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  spec.ffn_size = 96;
  spec.vocab_size = 100;
  spec.context_length = 512;
  spec.rope.rotary_dim = 16;
  return spec;
}

TEST(Spec, refuses_each_field_out_of_range) {
  ASSERT_TRUE(check_spec(good_spec()).ok());
  const std::function<void(ModelSpec&)> spoilers[] = {
      [](ModelSpec& s) { s.num_layers = kMaxLayers + 1; },
      [](ModelSpec& s) { s.hidden_size = 0; },
      [](ModelSpec& s) { s.num_heads = -1; },
      [](ModelSpec& s) { s.num_kv_heads = 3; },
      [](ModelSpec& s) { s.num_kv_heads = 8; },
      [](ModelSpec& s) { s.head_dim = 4097; },
      [](ModelSpec& s) { s.num_heads = s.num_kv_heads = kMaxWidth; },
      [](ModelSpec& s) { s.vocab_size = kMaxVocab + 1; },
      [](ModelSpec& s) { s.context_length = 0; },
      [](ModelSpec& s) { s.norm_epsilon = 0.0F; },
      [](ModelSpec& s) { s.rope.theta = -1.0F; },
      [](ModelSpec& s) { s.rope.rotary_dim = 15; },
      [](ModelSpec& s) { s.rope.rotary_dim = 18; },
      [](ModelSpec& s) { s.rope.frequency_factors = {1.0F}; },
      [](ModelSpec& s) { s.rope.frequency_factors.assign(8, 0.0F); },
      [](ModelSpec& s) { s.rope.scaling = RopeSpec::Scaling::kLlama3; },  // no original context
  };
  for (std::size_t i = 0; i < std::size(spoilers); ++i) {
    ModelSpec spec = good_spec();
    spoilers[i](spec);
    EXPECT_EQ(check_spec(spec).code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

}  // namespace
}  // namespace tandem
