// Model folders: the reference checkpoints, config.json field by field, shards, tied embeddings, rope scaling
// (the reported cases of kinds safetensors-corrupt, tied-embeddings and rope-scaling).
#include <cstring>

#include "base/status.h"
#include "gtest/gtest.h"
#include "model/hf_folder.h"
#include "tandem/model.h"

namespace tandem {
namespace {

using nlohmann::json;
using testing::HfFolder;

std::string refusal(const HfFolder& folder) {
  const auto model = open_model(folder.path());
  return model.ok() ? "opened" : std::string(message(model.status()));
}

#define EXPECT_REFUSED(folder, part) \
  do { \
    const std::string text = refusal(folder); \
    EXPECT_NE(text.find(part), std::string::npos) << text; \
    EXPECT_TRUE(text.starts_with((folder).path())) << text; \
  } while (false)

TEST(HfModel, tiny_llama_opens_with_its_config) {
  const auto opened = open_model(TANDEM_TEST_DATA "/models/tiny-llama/");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const ModelSpec& spec = (*opened)->spec();
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.name, "tiny-llama");
  EXPECT_EQ(spec.num_layers, 3);
  EXPECT_EQ(spec.hidden_size, 64);
  EXPECT_EQ(spec.num_heads, 4);
  EXPECT_EQ(spec.num_kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.ffn_size, 160);
  EXPECT_EQ(spec.vocab_size, 512);
  EXPECT_EQ(spec.context_length, 4096);
  EXPECT_FLOAT_EQ(spec.norm_epsilon, 1e-6F);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_EQ(spec.rope.style, RopeStyle::kHalf);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kNone);
  EXPECT_EQ((*opened)->tensors().size(), 29U);
  const NamedTensor* down = (*opened)->find("layers.2.down");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->source.dtype, DType::kBF16);
  EXPECT_EQ(down->source.rows, 64);
  EXPECT_EQ(down->source.cols, 160);
}

TEST(HfModel, tiny_llama3_rope_opens_with_its_scaling_and_head) {
  const auto opened = open_model(TANDEM_TEST_DATA "/models/tiny-llama3-rope");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const RopeSpec& rope = (*opened)->spec().rope;
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::kLlama3);
  EXPECT_FLOAT_EQ(rope.theta, 500000.0F);
  EXPECT_FLOAT_EQ(rope.factor, 8.0F);
  EXPECT_FLOAT_EQ(rope.low_freq_factor, 1.0F);
  EXPECT_FLOAT_EQ(rope.high_freq_factor, 4.0F);
  EXPECT_EQ(rope.original_context, 256);
  EXPECT_FALSE((*opened)->spec().tied_embeddings);
  EXPECT_NE((*opened)->find("head"), nullptr);
}

TEST(HfModel, rope_settings_are_read_under_their_old_names) {
  const HfFolder folder("tiny-llama3-rope");
  folder.edit("config.json", [](json& config) {
    json block = config["rope_parameters"];
    config.erase("rope_parameters");
    config["rope_theta"] = block["rope_theta"];
    block.erase("rope_theta");
    block["type"] = block["rope_type"];
    block.erase("rope_type");
    config["rope_scaling"] = block;
  });
  auto opened = open_model(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->spec().rope.scaling, RopeSpec::Scaling::kLlama3);
  EXPECT_FLOAT_EQ((*opened)->spec().rope.theta, 500000.0F);
  folder.edit("config.json", [](json& config) { config["rope_scaling"] = {{"type", "linear"}, {"factor", 2}}; });
  opened = open_model(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->spec().rope.scaling, RopeSpec::Scaling::kLinear);
  EXPECT_FLOAT_EQ((*opened)->spec().rope.factor, 2.0F);
  folder.edit("config.json", [](json& config) { config["rope_scaling"]["type"] = "longrope"; });
  EXPECT_REFUSED(folder, "rope type \"longrope\" is not supported");
  folder.edit("config.json", [](json& config) { config["rope_scaling"].erase("type"); });
  EXPECT_REFUSED(folder, "a factor and no rope_type");
  folder.edit("config.json", [](json& config) { config["rope_scaling"] = {{"type", "llama3"}, {"factor", 2}}; });
  EXPECT_REFUSED(folder, "\"low_freq_factor\" is missing");
}

TEST(HfModel, refuses_configs_by_file_and_key) {
  struct Bad {
    json change;  // merged into config.json; null removes
    std::string_view expected;
  };
  const Bad bads[] = {
      {{{"model_type", "mamba"}}, "model_type \"mamba\" is not supported; supported: llama, mistral"},
      {{{"model_type", nullptr}}, "\"model_type\" is missing"},
      {{{"model_type", 3}}, "\"model_type\" must be a string"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "\"architectures\" is not [\"LlamaForCausalLM\"]"},
      {{{"hidden_size", 128}},
       "tensor model.embed_tokens.weight has shape [512, 64]; the model's sizes ask for [512, 128]"},
      {{{"hidden_size", "64"}}, "\"hidden_size\" must be an integer"},
      {{{"hidden_size", 64.5}}, "\"hidden_size\" must be an integer"},
      {{{"hidden_size", 0}}, "\"hidden_size\" is 0"},
      {{{"hidden_size", nullptr}}, "\"hidden_size\" is missing"},
      {{{"intermediate_size", 161}}, "gate_proj.weight has shape [160, 64]; the model's sizes ask for [161, 64]"},
      {{{"num_hidden_layers", 2}}, "model.layers.2.input_layernorm.weight of shape [1, 64] has no place"},
      {{{"num_hidden_layers", 4}}, "tensor model.layers.3.input_layernorm.weight of shape [1, 64] is missing"},
      {{{"num_hidden_layers", 2000000000}}, "number of layers is 2000000000"},
      {{{"num_hidden_layers", 18446744073709551615ULL}}, "\"num_hidden_layers\" is"},
      {{{"num_attention_heads", 0}}, "\"num_attention_heads\" is 0"},
      {{{"num_attention_heads", 3}}, "3 attention heads cannot share 2"},
      {{{"num_attention_heads", 5}, {"head_dim", nullptr}}, "does not divide hidden_size 64"},
      {{{"head_dim", 15}}, "rotary dimension is 15"},
      {{{"vocab_size", 513}}, "has 512 rows, config.json a vocab_size of 513"},
      {{{"max_position_embeddings", -1}}, "\"max_position_embeddings\" is -1"},
      {{{"rms_norm_eps", 0}}, "norm epsilon is 0"},
      {{{"hidden_act", "gelu"}}, "hidden_act \"gelu\" is not supported"},
      {{{"mlp_bias", true}}, "mlp_bias"},
      {{{"attention_bias", true}}, "tensor model.layers.0.self_attn.q_proj.bias of shape [1, 64] is missing"},
      {{{"tie_word_embeddings", 1}}, "\"tie_word_embeddings\" must be true or false"},
      {{{"quantization_config", {{"quant_method", "gptq"}}}}, "quantization_config"},
      {{{"rope_parameters", 5}}, "rope settings must be an object"},
      {{{"rope_parameters", {{"rope_type", "linear"}, {"factor", 0}}}}, "rope scaling factor is 0"},
      {{{"eos_token_id", "x"}}, "\"eos_token_id\" is not a token id"},
      {{{"eos_token_id", 100000000}}, "\"eos_token_id\" is not a token id"},
      {{{"eos_token_id", 600}}, "end-of-turn token id 600 is not one of the tokenizer's 512"},
  };
  for (const Bad& bad : bads) {
    SCOPED_TRACE(bad.change.dump());
    const HfFolder folder;
    folder.edit("config.json", [&](json& config) { config.merge_patch(bad.change); });
    EXPECT_REFUSED(folder, bad.expected);
  }
}

TEST(HfModel, refuses_a_config_that_is_not_json) {
  const HfFolder folder;
  folder.files().write("config.json", "{\"a\": ");
  EXPECT_REFUSED(folder, "config.json: not valid JSON near byte");
  folder.files().write("config.json", std::string(200000, '[') + std::string(200000, ']'));
  EXPECT_REFUSED(folder, "nested 200000 deep");
  folder.files().write("config.json", "{\"hidden_size\": 1, \"hidden_size\": 2}");
  EXPECT_REFUSED(folder, "one is there twice");
  folder.files().write("config.json", "{\"hidden_size\": 1e999}");
  EXPECT_REFUSED(folder, "not valid JSON");
  folder.files().write("config.json", "{\"\xFF\": 1}");
  EXPECT_REFUSED(folder, "not valid JSON near byte");
  folder.remove("config.json");
  EXPECT_REFUSED(folder, "config.json is missing");
}

TEST(HfModel, tied_embeddings_follow_the_flag) {
  // tied and absent: opens_with_its_config above
  const HfFolder tied;
  tied.add_head(1);
  ::testing::internal::CaptureStderr();
  auto opened = open_model(tied.path());
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE((*opened)->spec().tied_embeddings);
  EXPECT_EQ((*opened)->find("head"), nullptr);
  EXPECT_NE(log.find("lm_head.weight differs"), std::string::npos) << log;

  tied.edit("config.json", [](json& config) { config["tie_word_embeddings"] = false; });
  opened = open_model(tied.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE((*opened)->spec().tied_embeddings);
  ASSERT_NE((*opened)->find("head"), nullptr);
  EXPECT_NE(std::memcmp((*opened)->find("head")->source.data, (*opened)->find("embed")->source.data, 1), 0);

  const HfFolder equal;
  equal.add_head(0);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(open_model(equal.path()).ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  const HfFolder absent;
  absent.edit("config.json", [](json& config) { config.erase("tie_word_embeddings"); });  // llama: false
  EXPECT_REFUSED(absent, "lm_head.weight is missing");
}

TEST(HfModel, a_window_limits_the_context_of_mistral) {
  const HfFolder folder;
  folder.edit("config.json", [](json& config) {
    config["model_type"] = "mistral";
    config["architectures"] = {"MistralForCausalLM"};
    config["sliding_window"] = 64;
  });
  const auto opened = open_model(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->spec().family, "llama");
  EXPECT_EQ((*opened)->spec().context_length, 64);
}

bool in_first_shard(const std::string& name) { return name.find("layers.0") != std::string::npos; }

void split_in_two(const HfFolder& folder) {
  json map;
  folder.copy_tensors("model-00001-of-00002.safetensors", in_first_shard);
  folder.copy_tensors("model-00002-of-00002.safetensors", [&](const std::string& name) {
    map[name] = in_first_shard(name) ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    return !in_first_shard(name);
  });
  folder.remove("model.safetensors");
  folder.files().write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
}

TEST(HfModel, opens_from_shards_as_from_one_file) {
  const HfFolder folder;
  const auto whole = open_model(TANDEM_TEST_DATA "/models/tiny-llama");
  split_in_two(folder);
  const auto opened = open_model(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ((*opened)->tensors().size(), (*whole)->tensors().size());
  for (const NamedTensor& tensor : (*whole)->tensors()) {
    const NamedTensor* other = (*opened)->find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    const auto bytes = static_cast<std::size_t>(tensor.source.rows * tensor.source.cols * 2);
    EXPECT_EQ(std::memcmp(tensor.source.data, other->source.data, bytes), 0) << tensor.name;
  }
}

TEST(HfModel, refuses_shards_that_are_not_whole) {
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string index = "model.safetensors.index.json";
  {
    const HfFolder folder;
    split_in_two(folder);
    folder.remove(first);
    EXPECT_REFUSED(folder, first + " is missing");
  }
  {
    const HfFolder folder;
    split_in_two(folder);
    folder.files().write(first, "version https://git-lfs.example/spec/v1\noid sha256:0\nsize 4\n");
    EXPECT_REFUSED(folder, "git-lfs pointer");
  }
  {
    const HfFolder folder;
    split_in_two(folder);
    const std::string bytes = folder.files().read(first);
    folder.files().write(first, bytes.substr(0, bytes.size() - 100));
    EXPECT_REFUSED(folder, "of the data, of which the file holds");
  }
  {
    const HfFolder folder;
    split_in_two(folder);
    folder.edit(index, [&](json& value) { value["weight_map"]["model.extra.weight"] = first; });
    EXPECT_REFUSED(folder, first + ": tensor model.extra.weight is missing, which the index places there");
  }
  {
    const HfFolder folder;
    split_in_two(folder);
    folder.edit(index, [&](json& value) { value["weight_map"]["model.norm.weight"] = "../x.safetensors"; });
    EXPECT_REFUSED(folder, "not a .safetensors file of the folder");
    folder.edit(index, [&](json& value) { value["weight_map"].erase("model.norm.weight"); });
    EXPECT_REFUSED(folder, "tensor model.norm.weight of shape [1, 64] is missing");
    folder.edit(index, [&](json& value) { value.erase("weight_map"); });
    EXPECT_REFUSED(folder, "\"weight_map\" is missing");
    folder.remove(index);
    EXPECT_REFUSED(folder, "2 .safetensors files and no model.safetensors.index.json");
  }
  {
    const HfFolder folder;
    folder.remove("model.safetensors");
    EXPECT_REFUSED(folder, "no .safetensors file");
  }
}

}  // namespace
}  // namespace tandem
