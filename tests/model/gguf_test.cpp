// GGUF files: a good one, every way a bad one is known to have hurt (the reported cases of kind gguf-corrupt),
// truncation at every byte and random changes. A refusal names the file and what is wrong; nothing crashes.
#include <chrono>
#include <cmath>
#include <functional>
#include <random>

#include "base/status.h"
#include "gtest/gtest.h"
#include "model/spec.h"
#include "model/temp_folder.h"
#include "model/tiny_gguf.h"
#include "tandem/model.h"

namespace tandem {
namespace {

using testing::MemoryFile;
using testing::raw;
using testing::TempFolder;
using testing::TinyGguf;

std::string refusal(const std::string& path) {
  const auto start = std::chrono::steady_clock::now();
  const auto model = open_model(path);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  return model.ok() ? "opened" : std::string(message(model.status()));
}

TEST(Gguf, opens_with_the_spec_that_its_metadata_states) {
  const TempFolder folder;
  const auto opened = open_model(folder.write("tiny.gguf", TinyGguf().file()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const ModelSpec& spec = (*opened)->spec();
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.name, "tiny");
  EXPECT_EQ(spec.num_layers, 2);
  EXPECT_EQ(spec.hidden_size, 32);
  EXPECT_EQ(spec.num_heads, 2);
  EXPECT_EQ(spec.num_kv_heads, 1);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.ffn_size, 64);
  EXPECT_EQ(spec.vocab_size, 6);
  EXPECT_EQ(spec.context_length, 128);
  EXPECT_FLOAT_EQ(spec.norm_epsilon, 1e-5F);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_FALSE(spec.attention_bias);
  EXPECT_EQ(spec.rope.style, RopeStyle::kInterleaved);
  EXPECT_FLOAT_EQ(spec.rope.theta, 20000.0F);
  EXPECT_EQ(spec.rope.rotary_dim, 16);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kNone);
}

TEST(Gguf, tensors_point_at_their_bytes_under_canonical_names) {
  const TempFolder folder;
  TinyGguf gguf;
  const auto opened = open_model(folder.write("tiny.gguf", gguf.file()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->tensors().size(), gguf.tensors.size());
  const NamedTensor* k = (*opened)->find("layers.1.k");
  ASSERT_NE(k, nullptr);
  EXPECT_EQ(k->source.dtype, DType::kQ4_0);
  EXPECT_EQ(k->source.rows, 16);
  EXPECT_EQ(k->source.cols, 32);
  EXPECT_EQ(static_cast<std::uint64_t>(k->source.data[7]), (gguf.tensor("blk.1.attn_k.weight").offset + 7) % 251);
  EXPECT_EQ((*opened)->find("layers.2.k"), nullptr);
  EXPECT_EQ((*opened)->find("head"), nullptr);
}

TEST(Gguf, tokenizer_is_what_the_metadata_says) {
  const TempFolder folder;
  TinyGguf gguf;
  gguf.set("tokenizer.ggml.merges", TinyGguf::texts({"a b", "  c"}));
  gguf.set("tokenizer.ggml.eot_token_id", TinyGguf::u32(5));
  gguf.set("tokenizer.ggml.add_bos_token", TinyGguf::boolean(1));
  const auto opened = open_model(folder.write("tiny.gguf", gguf.file()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TokenizerSpec& spec = (*opened)->tokenizer();
  ASSERT_EQ(spec.tokens.size(), 6U);
  EXPECT_EQ(spec.tokens[4], "ab");
  EXPECT_EQ(spec.kinds[0], TokenKind::kControl);
  EXPECT_EQ(spec.kinds[2], TokenKind::kNormal);
  EXPECT_EQ(spec.kinds[5], TokenKind::kControl);  // user-defined, but it ends turns
  ASSERT_EQ(spec.merges.size(), 2U);
  EXPECT_EQ(spec.merges[1], (std::pair<std::string, std::string>(" ", "c")));
  ASSERT_EQ(spec.pre_tokenizer.size(), 2U);
  EXPECT_EQ(spec.pre_tokenizer[0].kind, PreTokenizerStep::Kind::kIndividualDigits);
  EXPECT_EQ(spec.pre_tokenizer[1].pattern, kGpt2Pattern);
  EXPECT_TRUE(spec.add_bos);
  EXPECT_EQ(spec.bos, 0);
  EXPECT_EQ(spec.eos, 1);
  EXPECT_EQ(spec.end_of_generation, (std::vector<TokenId>{0, 1, 5}));  // known text, eos, eot
  EXPECT_EQ(spec.chat_template, "{{ messages }}");
}

TEST(Gguf, llama3_pre_tokenizer_takes_whole_tokens_and_begins_with_bos) {
  const TempFolder folder;
  TinyGguf gguf;
  gguf.set("tokenizer.ggml.pre", TinyGguf::text("llama-bpe"));
  const auto opened = open_model(folder.write("tiny.gguf", gguf.file()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE((*opened)->tokenizer().ignore_merges);
  EXPECT_TRUE((*opened)->tokenizer().add_bos);
}

TEST(Gguf, reads_head_biases_linear_scaling_and_frequency_factors) {
  const TempFolder folder;
  TinyGguf gguf;
  gguf.add("output.weight", {32, 6}, 0);
  gguf.add("rope_freqs.weight", {8}, 0);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    gguf.add(layer + "attn_q.bias", {32}, 0);
    gguf.add(layer + "attn_k.bias", {16}, 0);
    gguf.add(layer + "attn_v.bias", {16}, 1);
  }
  gguf.set("llama.rope.scaling.type", TinyGguf::text("linear"));
  gguf.set("llama.rope.scaling.factor", TinyGguf::f32(4.0F));
  gguf.version = 2;
  std::string file = gguf.file();
  const std::size_t data = (gguf.header().size() + 31) / 32 * 32;
  for (int i = 0; i < 8; ++i) {
    const float factor = 1.0F + static_cast<float>(i);
    std::memcpy(&file[data + gguf.tensor("rope_freqs.weight").offset + static_cast<std::size_t>(i) * 4], &factor, 4);
  }
  const auto opened = open_model(folder.write("tiny.gguf", file));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const ModelSpec& spec = (*opened)->spec();
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_TRUE(spec.attention_bias);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kLinear);
  EXPECT_FLOAT_EQ(spec.rope.factor, 4.0F);
  EXPECT_EQ(spec.rope.frequency_factors, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Gguf, reads_the_types_of_a_mixed_quantisation) {
  const TempFolder folder;
  TinyGguf gguf;
  std::erase_if(gguf.tensors, [](const TinyGguf::Tensor& tensor) {
    return tensor.name.find("ffn_down") != std::string::npos || tensor.name.find("ffn_up") != std::string::npos ||
           tensor.name.find("ffn_gate") != std::string::npos;
  });
  gguf.set("llama.feed_forward_length", TinyGguf::u32(256));
  for (const auto& [layer, down_type] : {std::pair("blk.0.", 12U), std::pair("blk.1.", 14U)}) {
    gguf.add(std::string(layer) + "ffn_gate.weight", {32, 256}, 6);
    gguf.add(std::string(layer) + "ffn_up.weight", {32, 256}, 8);
    gguf.add(std::string(layer) + "ffn_down.weight", {256, 32}, down_type);
  }
  const auto opened = open_model(folder.write("tiny.gguf", gguf.file()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->find("layers.0.gate")->source.dtype, DType::kQ5_0);
  EXPECT_EQ((*opened)->find("layers.0.down")->source.dtype, DType::kQ4_K);
  EXPECT_EQ((*opened)->find("layers.1.down")->source.dtype, DType::kQ6_K);
  const std::byte* data = (*opened)->find("layers.1.down")->source.data;
  const std::uint64_t offset = gguf.tensor("blk.1.ffn_down.weight").offset;
  EXPECT_EQ(static_cast<std::uint64_t>(data[32 * 210 - 1]), (offset + 32 * 210 - 1) % 251);
}

TEST(Gguf, context_is_limited_to_the_attention_window) {
  const TempFolder folder;
  TinyGguf gguf;
  gguf.set("llama.attention.sliding_window", TinyGguf::u32(64));
  const auto opened = open_model(folder.write("tiny.gguf", gguf.file()));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->spec().context_length, 64);
}

struct BadFile {
  std::string_view name;
  std::function<void(TinyGguf&)> spoil;
  std::string_view expected;  // part of the message
};

const BadFile kBadFiles[] = {
    {"magic", [](TinyGguf& g) { g.magic = "GGML"; }, "does not begin with \"GGUF\""},
    {"version 0", [](TinyGguf& g) { g.version = 0; }, "version is 0"},
    {"version 1", [](TinyGguf& g) { g.version = 1; }, "version is 1"},
    {"version 99", [](TinyGguf& g) { g.version = 99; }, "version is 99"},
    {"byte order", [](TinyGguf& g) { g.version = 0x03000000; }, "big endian"},
    {"alignment 0", [](TinyGguf& g) { g.set("general.alignment", TinyGguf::u32(0)); }, "general.alignment is 0"},
    {"alignment 3", [](TinyGguf& g) { g.set("general.alignment", TinyGguf::u32(3)); }, "general.alignment is 3"},
    {"alignment 1", [](TinyGguf& g) { g.set("general.alignment", TinyGguf::u32(1)); }, "general.alignment is 1"},
    {"alignment 2^31", [](TinyGguf& g) { g.set("general.alignment", TinyGguf::u32(1U << 31)); }, "is 2147483648"},
    {"alignment as text", [](TinyGguf& g) { g.set("general.alignment", TinyGguf::text("32")); },
     "an integer is expected"},
    {"dimension 0", [](TinyGguf& g) { g.tensor("blk.0.attn_q.weight").dims[1] = 0; }, "blk.0.attn_q.weight is 0"},
    {"dimension -1", [](TinyGguf& g) { g.tensor("blk.0.attn_q.weight").dims[1] = UINT64_MAX; },
     "is -1; it must be positive"},
    {"dimension 2^63-1", [](TinyGguf& g) { g.tensor("blk.0.ffn_down.weight").dims[0] = INT64_MAX; },
     "cannot have the shape"},
    {"product wraps to 0", [](TinyGguf& g) { g.tensor("blk.0.ffn_down.weight").dims = {1ULL << 42, 1ULL << 22}; },
     "cannot have the shape"},
    {"size beyond the file", [](TinyGguf& g) { g.tensor("blk.0.ffn_down.weight").dims = {1ULL << 20, 1ULL << 20}; },
     "more than the file's"},
    {"n_dims 0", [](TinyGguf& g) { g.tensor("blk.0.attn_q.weight").num_dims = 0; }, "has 0 dimensions"},
    {"n_dims 5", [](TinyGguf& g) { g.tensor("blk.0.attn_q.weight").num_dims = 5; }, "has 5 dimensions"},
    {"n_dims 255", [](TinyGguf& g) { g.tensor("blk.0.attn_q.weight").num_dims = 255; }, "has 255 dimensions"},
    {"rank 3",
     [](TinyGguf& g) {
       g.tensor("blk.0.attn_q.weight").dims = {32, 16, 2}, g.tensor("blk.0.attn_q.weight").num_dims = 3;
     },
     "matrices and vectors are read"},
    {"row not in blocks", [](TinyGguf& g) { g.tensor("blk.0.attn_q.weight").dims = {33, 32}; },
     "cannot have the shape [32, 33]"},
    {"wrong shape", [](TinyGguf& g) { g.tensor("blk.1.ffn_gate.weight").dims = {64, 32}; },
     "tensor blk.1.ffn_gate.weight has shape [32, 64]; the model's sizes ask for [64, 32]"},
    {"quantised norm", [](TinyGguf& g) { g.tensor("output_norm.weight").type = 8; }, "vectors are read as F32"},
    {"tensor type Q3_K", [](TinyGguf& g) { g.tensor("blk.0.ffn_down.weight").type = 11; },
     "tensor blk.0.ffn_down.weight has type Q3_K (11); tandem reads F32"},
    {"row not in superblocks", [](TinyGguf& g) { g.tensor("blk.0.ffn_down.weight").type = 14; },
     "tensor blk.0.ffn_down.weight of type Q6_K cannot have the shape [32, 64]"},
    {"tensor type unknown", [](TinyGguf& g) { g.tensor("blk.0.ffn_down.weight").type = 4711; },
     "has type unknown (4711)"},
    {"duplicate tensor", [](TinyGguf& g) { g.tensor("blk.0.attn_v.weight").name = "blk.0.attn_k.weight"; },
     "tensor blk.0.attn_k.weight is there twice"},
    {"second name for a layer", [](TinyGguf& g) { g.tensor("blk.1.attn_v.weight").name = "blk.01.attn_v.weight"; },
     "blk.01.attn_v.weight is not one"},
    {"missing tensor", [](TinyGguf& g) { g.tensors.pop_back(); },
     "tensor blk.1.ffn_down.weight of shape [32, 64] is missing"},
    {"missing embedding", [](TinyGguf& g) { g.tensors.erase(g.tensors.begin()); }, "token_embd.weight is missing"},
    {"foreign tensor", [](TinyGguf& g) { g.add("blk.0.attn_q_norm.weight", {16}, 0); },
     "blk.0.attn_q_norm.weight is not one"},
    {"layer too many", [](TinyGguf& g) { g.add("blk.2.attn_norm.weight", {32}, 0); },
     "tensor blk.2.attn_norm.weight of shape [1, 32] has no place"},
    {"empty tensor name", [](TinyGguf& g) { g.tensor("blk.0.attn_v.weight").name.clear(); }, "has an empty name"},
    {"long tensor name", [](TinyGguf& g) { g.tensor("blk.0.attn_v.weight").name.assign(300, 'x'); }, "at most 255"},
    {"offset not aligned", [](TinyGguf& g) { g.tensor("output_norm.weight").offset += 4; },
     "no multiple of the alignment 32"},
    {"offset overlapping", [](TinyGguf& g) { g.tensor("blk.0.attn_norm.weight").offset -= 32; }, "inside another"},
    {"offset past the end", [](TinyGguf& g) { g.tensor("blk.0.attn_norm.weight").offset = 1ULL << 40; },
     "more than the file's"},
    {"offset that wraps", [](TinyGguf& g) { g.tensor("blk.0.attn_norm.weight").offset = UINT64_MAX - 31; },
     "more than the file's"},
    {"duplicate key", [](TinyGguf& g) { g.entries.push_back({"llama.block_count", TinyGguf::u32(1)}); },
     "metadata key \"llama.block_count\" is there twice"},
    {"empty key", [](TinyGguf& g) { g.entries.push_back({"", TinyGguf::u32(1)}); }, "has an empty key"},
    {"unknown value type", [](TinyGguf& g) { g.set("x", raw<std::uint32_t>(13) + raw<std::uint64_t>(0)); },
     "unknown value type 13"},
    {"nested array", [](TinyGguf& g) { g.set("x", TinyGguf::array(9, 1, TinyGguf::i32s({1}))); }, "array of arrays"},
    {"array of 2^60", [](TinyGguf& g) { g.set("x", TinyGguf::array(4, 1ULL << 60, "")); },
     "\"x\" claims 1152921504606846976 values"},
    {"string array of 2^60", [](TinyGguf& g) { g.set("tokenizer.ggml.tokens", TinyGguf::array(8, 1ULL << 60, "")); },
     "claims"},
    {"string past the end", [](TinyGguf& g) { g.set("x", raw<std::uint32_t>(8) + raw<std::uint64_t>(1ULL << 40)); },
     "are left in the file"},
    {"string of 2^64-1", [](TinyGguf& g) { g.set("x", raw<std::uint32_t>(8) + raw<std::uint64_t>(UINT64_MAX)); },
     "are left in the file"},
    {"boolean 2", [](TinyGguf& g) { g.set("x", TinyGguf::boolean(2)); }, "neither 0 nor 1"},
    {"block_count 0", [](TinyGguf& g) { g.set("llama.block_count", TinyGguf::u32(0)); }, "\"llama.block_count\" is 0"},
    {"block_count 2^31-1", [](TinyGguf& g) { g.set("llama.block_count", TinyGguf::u32(INT32_MAX)); },
     "number of layers is 2147483647"},
    {"block_count 2^64-1", [](TinyGguf& g) { g.set("llama.block_count", TinyGguf::u64(UINT64_MAX)); }, "must lie in"},
    {"block_count negative", [](TinyGguf& g) { g.set("llama.block_count", TinyGguf::i32(-2)); }, "is -2"},
    {"block_count as text", [](TinyGguf& g) { g.set("llama.block_count", TinyGguf::text("2")); },
     "is a string; an integer is expected"},
    {"block_count missing", [](TinyGguf& g) { g.drop("llama.block_count"); }, "\"llama.block_count\" is missing"},
    {"head_count 0", [](TinyGguf& g) { g.set("llama.attention.head_count", TinyGguf::u32(0)); }, "head_count\" is 0"},
    {"head_count 5", [](TinyGguf& g) { g.set("llama.attention.head_count", TinyGguf::u32(5)); }, "do not divide"},
    {"head_count as array", [](TinyGguf& g) { g.set("llama.attention.head_count", TinyGguf::i32s({2, 2})); },
     "an array of i32"},
    {"head_count_kv 3", [](TinyGguf& g) { g.set("llama.attention.head_count_kv", TinyGguf::u32(3)); },
     "key/value heads"},
    {"head size odd", [](TinyGguf& g) { g.set("llama.attention.key_length", TinyGguf::u32(15)); },
     "rotary dimension is 15"},
    {"value length", [](TinyGguf& g) { g.set("llama.attention.value_length", TinyGguf::u32(8)); },
     "only 16 is supported"},
    {"rotary too wide", [](TinyGguf& g) { g.set("llama.rope.dimension_count", TinyGguf::u32(18)); },
     "rotary dimension is 18"},
    {"epsilon not a number", [](TinyGguf& g) { g.set("llama.attention.layer_norm_rms_epsilon", TinyGguf::f32(NAN)); },
     "norm epsilon"},
    {"epsilon as integer", [](TinyGguf& g) { g.set("llama.attention.layer_norm_rms_epsilon", TinyGguf::u32(1)); },
     "floating-point"},
    {"theta 0", [](TinyGguf& g) { g.set("llama.rope.freq_base", TinyGguf::f32(0)); }, "rope theta is 0"},
    {"rope yarn", [](TinyGguf& g) { g.set("llama.rope.scaling.type", TinyGguf::text("yarn")); },
     "\"yarn\" is not supported"},
    {"linear without factor", [](TinyGguf& g) { g.set("llama.rope.scaling.type", TinyGguf::text("linear")); },
     "factor\" is missing"},
    {"frequency factors", [](TinyGguf& g) { g.add("rope_freqs.weight", {9}, 0); }, "F32 [1, 8] is expected"},
    {"experts", [](TinyGguf& g) { g.set("llama.expert_count", TinyGguf::u32(8)); }, "expert_count"},
    {"vocab_size", [](TinyGguf& g) { g.set("llama.vocab_size", TinyGguf::u32(7)); }, "token_embd.weight has 6"},
    {"architecture", [](TinyGguf& g) { g.set("general.architecture", TinyGguf::text("mamba")); },
     "\"mamba\" is not supported; supported: llama"},
    {"split", [](TinyGguf& g) { g.set("split.count", TinyGguf::u32(3)); }, "one of 3 parts"},
    {"tokenizer model", [](TinyGguf& g) { g.set("tokenizer.ggml.model", TinyGguf::text("llama")); }, "supported: gpt2"},
    {"pre-tokenizer", [](TinyGguf& g) { g.set("tokenizer.ggml.pre", TinyGguf::text("nobody")); },
     "\"nobody\" (tokenizer.ggml.pre) is not known"},
    {"tokens missing", [](TinyGguf& g) { g.drop("tokenizer.ggml.tokens"); }, "tokens\" is missing"},
    {"tokens as numbers", [](TinyGguf& g) { g.set("tokenizer.ggml.tokens", TinyGguf::i32s({1})); },
     "array of strings is expected"},
    {"too many tokens",
     [](TinyGguf& g) {
       g.set("tokenizer.ggml.tokens", TinyGguf::texts({"1", "2", "3", "4", "5", "6", "7"}));
       g.set("tokenizer.ggml.token_type", TinyGguf::i32s({1, 1, 1, 1, 1, 1, 1}));
     },
     "has 7 tokens, the model's embedding only 6"},
    {"types too few", [](TinyGguf& g) { g.set("tokenizer.ggml.token_type", TinyGguf::i32s({1})); }, "has 1 elements"},
    {"types empty", [](TinyGguf& g) { g.set("tokenizer.ggml.token_type", TinyGguf::i32s({})); }, "has 0 elements"},
    {"type 9", [](TinyGguf& g) { g.set("tokenizer.ggml.token_type", TinyGguf::i32s({1, 1, 1, 1, 1, 9})); },
     "of token 5 is 9"},
    {"merge without space", [](TinyGguf& g) { g.set("tokenizer.ggml.merges", TinyGguf::texts({"ab"})); },
     "two parts are expected"},
    {"merge empty", [](TinyGguf& g) { g.set("tokenizer.ggml.merges", TinyGguf::texts({""})); },
     "two parts are expected"},
    {"eos past the end", [](TinyGguf& g) { g.set("tokenizer.ggml.eos_token_id", TinyGguf::u32(6)); },
     "eos_token_id\" is 6"},
    {"bos as flag", [](TinyGguf& g) { g.set("tokenizer.ggml.add_bos_token", TinyGguf::u32(1)); },
     "a boolean is expected"},
};

TEST(Gguf, refuses_every_known_corruption_by_name) {
  const TempFolder folder;
  for (const BadFile& bad : kBadFiles) {
    SCOPED_TRACE(bad.name);
    TinyGguf gguf;
    bad.spoil(gguf);
    const std::string path = folder.write("bad.gguf", gguf.file());
    const std::string text = refusal(path);
    EXPECT_NE(text.find(bad.expected), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with(path)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Gguf, a_refusal_is_one_short_line_whatever_the_file_calls_things) {
  const TempFolder folder;
  TinyGguf gguf;
  gguf.entries.push_back({std::string(60000, '\n'), raw<std::uint32_t>(99)});
  const std::string text = refusal(folder.write("bad.gguf", gguf.file()));
  EXPECT_LE(text.size(), 1000U);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Gguf, refuses_counts_that_the_file_cannot_hold) {
  const TempFolder folder;
  for (const std::size_t at : {8U, 16U}) {
    for (const std::uint64_t count : {std::uint64_t{1} << 60, UINT64_MAX, std::uint64_t{65000}, UINT64_MAX / 14 + 1}) {
      std::string file = TinyGguf().file();
      std::memcpy(&file[at], &count, sizeof count);
      const std::string text = refusal(folder.write("bad.gguf", file));
      EXPECT_NE(text.find("the file claims"), std::string::npos) << text;
    }
  }
}

TEST(Gguf, refuses_what_is_no_gguf_file_at_all) {
  const TempFolder folder;
  EXPECT_NE(refusal(folder.write("a.gguf", "")).find("is empty"), std::string::npos);
  EXPECT_NE(refusal(folder.write("a.gguf", "GG")).find("ends inside the magic number"), std::string::npos);
  EXPECT_NE(refusal(folder.write("a.gguf", "version https://git-lfs.example/spec/v1\noid sha256:0\nsize 98362432\n"))
                .find("git-lfs pointer"),
            std::string::npos);
  EXPECT_NE(refusal(folder / "none.gguf").find("does not exist"), std::string::npos);
  EXPECT_NE(refusal("/dev/zero").find("neither a regular file nor a folder"), std::string::npos);
}

TEST(Gguf, refuses_every_truncation) {
  const MemoryFile memory;
  const std::string file = TinyGguf().file();
  const std::size_t header = TinyGguf().header().size();
  for (std::size_t size = 0; size < file.size(); size += size < header ? 1 : 97) {
    const auto model = open_model(memory.write(std::string_view(file).substr(0, size)));
    ASSERT_FALSE(model.ok()) << size;
  }
  EXPECT_FALSE(open_model(memory.write(std::string_view(file).substr(0, file.size() - 1))).ok());
}

TEST(Gguf, survives_random_changes) {
  constexpr unsigned kSeed = 20240817;
  const MemoryFile memory;
  const std::string good = TinyGguf().file();
  const std::size_t header = TinyGguf().header().size();
  std::mt19937 random(kSeed);
  int refused = 0;
  std::uint64_t last_bytes = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string file = good;
    file[random() % header] = static_cast<char>(random());
    const auto model = open_model(memory.write(file));
    if (!model.ok()) {
      ++refused;
      ASSERT_NE(message(model.status()).find("/proc/self/fd/"), std::string_view::npos) << message(model.status());
      continue;
    }
    // What opened is whole: its bytes can be read to the last one.
    for (const NamedTensor& tensor : (*model)->tensors()) {
      const auto bytes = tensor_bytes(tensor.source.dtype, tensor.source.rows, tensor.source.cols);
      ASSERT_TRUE(bytes.has_value());
      last_bytes += static_cast<std::uint64_t>(tensor.source.data[*bytes - 1]);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(last_bytes, 0U);
}

}  // namespace
}  // namespace tandem
