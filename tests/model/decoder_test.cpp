// The forward pass against recorded references (tests/data/models), and against itself: the same bits whatever the
// chunking, the batch and the share.
#include "model/decoder.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/cpu/backend.h"
#include "model/weights.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr std::int32_t kBlockTokens = 16;
constexpr std::int32_t kMaxRows = 600;

// A model with its weights and a KV pool in private memory.
class Rig {
 public:
  explicit Rig(const std::string& name, const std::string& isa = "", int threads = 0) {
    backend_ = *cpu::create_cpu_backend({isa, threads});
    stream_ = *backend_->open_stream(Share{});
    model_ = *open_model(std::string(TANDEM_TEST_DATA) + "/models/" + name);
    const WeightsLayout layout = *WeightsLayout::create(*model_, *backend_);
    weights_ = *backend_->allocate(layout.bytes());
    layout.fill({weights_.get(), layout.bytes()}, *backend_, *stream_, [](std::size_t, std::size_t) {});
    decoder_ =
        *Decoder::create(model_->spec(), *layout.bind({weights_.get(), layout.bytes()}), *backend_, {kMaxRows, 64});
    const ModelSpec& spec = model_->spec();
    kv_.layout = kv_layout(spec, DType::kF32, kBlockTokens);
    const std::size_t kv_bytes = static_cast<std::size_t>(kv_.layout.block_bytes()) * kNumBlocks;
    kv_memory_ = *backend_->allocate(kv_bytes);
    kv_.base = kv_memory_.get();
    std::fill_n(kv_.base, kv_bytes, std::byte{0xFF});  // NaNs where nothing was written
  }

  // Runs tokens at `position` of a sequence whose blocks start at `first_block`; logits of the last row.
  std::vector<float> run(std::span<const TokenId> tokens, std::int32_t position, std::uint32_t first_block = 0) {
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), position);
    const auto rows = static_cast<std::int32_t>(tokens.size());
    std::vector<BlockId> blocks;
    for (std::int32_t i = 0; i * kBlockTokens < position + rows; ++i) {
      blocks.push_back({first_block + static_cast<std::uint32_t>(i) * 3 % kNumBlocks});
    }
    const SequenceRows sequence{0, rows, position, 0};
    decoder_->forward({tokens, positions, {&sequence, 1}, blocks, kv_}, {0, model_->spec().num_layers}, *stream_);
    const std::int32_t last = rows - 1;
    const Tensor logits = decoder_->logits({&last, 1}, *stream_);
    EXPECT_TRUE(stream_->synchronize().ok());
    return {logits.f32(), logits.f32() + logits.cols};
  }

  static constexpr std::uint32_t kNumBlocks = 128;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<ModelFile> model_;
  Backend::Buffer weights_, kv_memory_;
  std::unique_ptr<Decoder> decoder_;
  KvView kv_;
};

nlohmann::json goldens(const std::string& name) {
  std::ifstream file(std::string(TANDEM_TEST_DATA) + "/models/" + name + "/golden.json");
  return nlohmann::json::parse(file);
}

TokenId argmax(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class Goldens : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Decoder, Goldens, ::testing::Values("tiny-llama", "tiny-llama3-rope"));

// Logits lie within `tolerance` of the references, given the largest of these; greedy tokens equal them up to the
// first margin below `certain` tolerances.
void compare_with_references(const std::string& name, const std::string& isa,
                             const std::function<float(float largest)>& tolerance_for, float certain) {
  const nlohmann::json file = goldens(name);
  ASSERT_GE(file["cases"].size(), 4U);
  std::size_t compared = 0;
  for (const auto& golden : file["cases"]) {
    Rig rig(name, isa);
    auto tokens = golden["token_ids"].get<std::vector<TokenId>>();
    std::vector<float> logits = rig.run(tokens, 0);
    const auto expected = golden["last_logits"].get<std::vector<float>>();
    float largest = 0.0F;
    for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
    const float tolerance = tolerance_for(largest);
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], expected[i], tolerance) << isa << " logit " << i;
    }
    const auto greedy = golden["greedy_token_ids"].get<std::vector<TokenId>>();
    const auto margins = golden["greedy_top1_margin"].get<std::vector<float>>();
    for (std::size_t i = 0; i < greedy.size() && margins[i] > certain * tolerance; ++i, ++compared) {
      const TokenId token = argmax(logits);
      ASSERT_EQ(token, greedy[i]) << isa << " greedy token " << i;
      logits = rig.run({&token, 1}, static_cast<std::int32_t>(tokens.size()));
      tokens.push_back(token);
    }
  }
  EXPECT_GE(compared, 4U) << "the references leave enough certain tokens to compare";
}

bool is_supported(const std::string& isa) {
  const bool supported = cpu::create_cpu_backend({isa, 1}).ok();
  if (!supported) std::printf("skipped: this processor has no %s\n", isa.c_str());
  return supported;
}

TEST_P(Goldens, last_logits_and_greedy_tokens_are_the_references) {
  for (const std::string isa : {"avx2", "avx512"}) {
    if (is_supported(isa)) compare_with_references(GetParam(), isa, [](float) { return 1e-3F; }, 20.0F);
  }
}

// Activations rounded to bf16 are off by at most 2^-9 of themselves, in each layer's four products and the head's.
// With all those errors in one direction the largest logit moves by (4 layers + 1) * 2^-9 of itself.
TEST_P(Goldens, bf16_activations_stay_near_the_references) {
  if (!is_supported("avx512-bf16")) GTEST_SKIP() << "this processor has no avx512-bf16";
  const auto model = *open_model(std::string(TANDEM_TEST_DATA) + "/models/" + GetParam());
  const auto roundings = static_cast<float>(4 * model->spec().num_layers + 1);
  const auto tolerance_for = [roundings](float largest) { return roundings * 0x1p-9F * largest; };
  compare_with_references(GetParam(), "avx512-bf16", tolerance_for, 2.0F);
}

TEST_P(Goldens, chunks_of_any_size_and_any_number_of_threads_give_the_same_bits) {
  const auto tokens = goldens(GetParam())["cases"][3]["token_ids"].get<std::vector<TokenId>>();
  Rig whole(GetParam(), "", 1);
  const std::vector<float> expected = whole.run(tokens, 0);
  for (const std::size_t chunk : {1U, 7U, 16U, 50U}) {
    Rig rig(GetParam());
    std::vector<float> logits;
    for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const auto part = std::span(tokens).subspan(begin, std::min(chunk, tokens.size() - begin));
      logits = rig.run(part, static_cast<std::int32_t>(begin));
    }
    EXPECT_EQ(logits, expected) << "chunks of " << chunk;
  }
}

TEST_P(Goldens, a_sequence_in_a_batch_gives_the_bits_it_gives_alone) {
  const auto cases = goldens(GetParam())["cases"];
  const auto a = cases[1]["token_ids"].get<std::vector<TokenId>>();
  const auto b = cases[3]["token_ids"].get<std::vector<TokenId>>();
  Rig alone(GetParam());
  const std::vector<float> expected_a = alone.run(a, 0);
  const std::vector<float> expected_b = alone.run(b, 0);

  Rig rig(GetParam());
  std::vector<TokenId> tokens = a;
  tokens.insert(tokens.end(), b.begin(), b.end());
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.begin() + std::ssize(a), 0);
  std::iota(positions.begin() + std::ssize(a), positions.end(), 0);
  const auto rows_a = static_cast<std::int32_t>(a.size());
  const auto rows_b = static_cast<std::int32_t>(b.size());
  std::vector<BlockId> blocks(20);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = {(i * 7 + 3) % Rig::kNumBlocks};
  const SequenceRows sequences[] = {{0, rows_a, 0, 0}, {rows_a, rows_b, 0, 5}};
  const std::int32_t layers = rig.model_->spec().num_layers;
  // Layer by layer, as a preemptible prefill runs.
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    rig.decoder_->forward({tokens, positions, sequences, blocks, rig.kv_}, {layer, layer + 1}, *rig.stream_);
  }
  const std::int32_t last[] = {rows_a - 1, rows_a + rows_b - 1};
  const Tensor logits = rig.decoder_->logits(last, *rig.stream_);
  EXPECT_EQ(std::vector<float>(logits.f32(0), logits.f32(0) + logits.cols), expected_a);
  EXPECT_EQ(std::vector<float>(logits.f32(1), logits.f32(1) + logits.cols), expected_b);
}

TEST(Decoder, both_instruction_sets_give_the_same_bits) {
  const auto tokens = goldens("tiny-llama")["cases"][3]["token_ids"].get<std::vector<TokenId>>();
  if (!cpu::create_cpu_backend({"avx512", 0}).ok()) {
    std::puts("this processor has no AVX-512: only AVX2 is tested");
    return;
  }
  Rig narrow("tiny-llama", "avx2");
  Rig wide("tiny-llama", "avx512");
  EXPECT_EQ(narrow.run(tokens, 0), wide.run(tokens, 0));
}

TEST(WeightsLayout, refuses_a_region_that_another_layout_filled) {
  const auto backend = *cpu::create_cpu_backend({});
  const auto model = *open_model(std::string(TANDEM_TEST_DATA) + "/models/tiny-llama");
  const WeightsLayout layout = *WeightsLayout::create(*model, *backend);
  std::vector<std::byte> region(layout.bytes());
  EXPECT_EQ(layout.bind(region).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
