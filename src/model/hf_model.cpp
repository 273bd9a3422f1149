#include "model/hf_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "fmt/core.h"
#include "fmt/ranges.h"

#include "base/log.h"
#include "model/hf_tensors.h"
#include "model/json_file.h"
#include "model/opened_model.h"
#include "model/spec.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

constexpr TensorRename kLlamaTensors[] = {
    {"model.embed_tokens.weight", "embed"},
    {"model.norm.weight", "norm"},
    {"lm_head.weight", "head"},
    {"model.layers.*.input_layernorm.weight", "layers.*.attn_norm"},
    {"model.layers.*.self_attn.q_proj.weight", "layers.*.q"},
    {"model.layers.*.self_attn.k_proj.weight", "layers.*.k"},
    {"model.layers.*.self_attn.v_proj.weight", "layers.*.v"},
    {"model.layers.*.self_attn.o_proj.weight", "layers.*.o"},
    {"model.layers.*.self_attn.q_proj.bias", "layers.*.q_bias"},
    {"model.layers.*.self_attn.k_proj.bias", "layers.*.k_bias"},
    {"model.layers.*.self_attn.v_proj.bias", "layers.*.v_bias"},
    {"model.layers.*.post_attention_layernorm.weight", "layers.*.ffn_norm"},
    {"model.layers.*.mlp.gate_proj.weight", "layers.*.gate"},
    {"model.layers.*.mlp.up_proj.weight", "layers.*.up"},
    {"model.layers.*.mlp.down_proj.weight", "layers.*.down"},
    {"model.layers.*.self_attn.rotary_emb.inv_freq", ""},  // old exports; they follow from theta
};

// A new family is a line here and its names above.
struct HfFamily {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view family;
  bool tied_by_default;
  std::span<const TensorRename> tensors;
};

constexpr HfFamily kFamilies[] = {
    {"llama", "LlamaForCausalLM", "llama", false, kLlamaTensors},
    {"mistral", "MistralForCausalLM", "llama", false, kLlamaTensors},
};

// Reads config.json into a spec; every error names the file and the key.
class ConfigReader final {
 public:
  ConfigReader(std::string path, const json& config) : path_(std::move(path)), config_(config) {}

  absl::StatusOr<const HfFamily*> family() const {
    TANDEM_ASSIGN(const auto type, json_text(path_, config_, "model_type"));
    if (!type) return fail("\"model_type\" is missing");
    const auto family = std::ranges::find(kFamilies, *type, &HfFamily::model_type);
    if (family == std::end(kFamilies)) {
      std::vector<std::string_view> known;
      for (const HfFamily& each : kFamilies) known.push_back(each.model_type);
      return unsupported(
          fmt::format("model_type \"{}\" is not supported; supported: {}", *type, fmt::join(known, ", ")));
    }
    const json* architectures = json_member(config_, "architectures");
    if (architectures != nullptr && *architectures != json::array({family->architecture})) {
      return unsupported(fmt::format("\"architectures\" is not [\"{}\"], the only one supported for this model_type",
                                     family->architecture));
    }
    return &*family;
  }

  absl::Status read(const HfFamily& family, ModelSpec& spec) const {
    spec.family = family.family;
    TANDEM_TRY(size("num_hidden_layers", std::nullopt, spec.num_layers));
    TANDEM_TRY(size("hidden_size", std::nullopt, spec.hidden_size));
    TANDEM_TRY(size("intermediate_size", std::nullopt, spec.ffn_size));
    TANDEM_TRY(size("num_attention_heads", std::nullopt, spec.num_heads));
    TANDEM_TRY(size("num_key_value_heads", spec.num_heads, spec.num_kv_heads));
    TANDEM_TRY(size("vocab_size", std::nullopt, spec.vocab_size));
    TANDEM_TRY(size("max_position_embeddings", std::nullopt, spec.context_length));
    if (json_member(config_, "head_dim") == nullptr && spec.hidden_size % spec.num_heads != 0) {
      return fail(fmt::format("num_attention_heads {} does not divide hidden_size {}, and head_dim is missing",
                              spec.num_heads, spec.hidden_size));
    }
    TANDEM_TRY(size("head_dim", spec.hidden_size / spec.num_heads, spec.head_dim));
    TANDEM_TRY(number(config_, "rms_norm_eps", 1e-6, spec.norm_epsilon));
    TANDEM_TRY(only_supported());
    TANDEM_ASSIGN(const auto tied, json_boolean(path_, config_, "tie_word_embeddings"));
    spec.tied_embeddings = tied.value_or(family.tied_by_default);
    TANDEM_ASSIGN(const auto bias, json_boolean(path_, config_, "attention_bias"));
    spec.attention_bias = bias.value_or(false);
    spec.rope.style = RopeStyle::kHalf;
    spec.rope.rotary_dim = spec.head_dim;
    return rope(spec.rope);
  }

  // Attention over a window is full attention as long as the context fits in it.
  absl::Status limit_to_window(ModelSpec& spec) const {
    std::int32_t window = 0;
    TANDEM_TRY(size("sliding_window", spec.context_length, window));
    if (window >= spec.context_length) return absl::OkStatus();
    TANDEM_LOG(kWarning, "{}: context is limited to the sliding_window of {} tokens, from {}", path_, window,
               spec.context_length);
    spec.context_length = window;
    return absl::OkStatus();
  }

 private:
  absl::Status fail(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path_, what));
  }
  absl::Status unsupported(std::string_view what) const {
    return absl::UnimplementedError(fmt::format("{}: {}", path_, what));
  }

  absl::Status size_of(const json& object, const char* key, std::optional<std::int32_t> fallback,
                       std::int32_t& value) const {
    TANDEM_ASSIGN(const auto read, json_integer(path_, object, key));
    if (!read && !fallback) return fail(fmt::format("\"{}\" is missing", key));
    const std::int64_t size = read ? *read : *fallback;
    if (size < 1 || size > INT32_MAX) {
      return fail(fmt::format("\"{}\" is {}; it must lie in [1, {}]", key, size, INT32_MAX));
    }
    value = static_cast<std::int32_t>(size);
    return absl::OkStatus();
  }
  absl::Status size(const char* key, std::optional<std::int32_t> fallback, std::int32_t& value) const {
    return size_of(config_, key, fallback, value);
  }
  absl::Status number(const json& object, const char* key, std::optional<double> fallback, float& value) const {
    TANDEM_ASSIGN(const auto read, json_number(path_, object, key));
    if (!read && !fallback) return fail(fmt::format("\"{}\" is missing", key));
    value = static_cast<float>(read ? *read : *fallback);
    return absl::OkStatus();
  }

  // Settings that change the computation and of which the decoder knows one value.
  absl::Status only_supported() const {
    TANDEM_ASSIGN(const auto activation, json_text(path_, config_, "hidden_act"));
    if (activation && *activation != "silu" && *activation != "swish") {
      return unsupported(fmt::format("hidden_act \"{}\" is not supported; supported: silu", *activation));
    }
    TANDEM_ASSIGN(const auto mlp_bias, json_boolean(path_, config_, "mlp_bias"));
    if (mlp_bias.value_or(false)) return unsupported("mlp_bias true is not supported");
    TANDEM_ASSIGN(const auto partial, json_number(path_, config_, "partial_rotary_factor"));
    if (partial.value_or(1.0) != 1.0) return unsupported("partial_rotary_factor other than 1 is not supported");
    if (json_member(config_, "quantization_config") != nullptr) {
      return unsupported("quantization_config is not supported; use the model in BF16, F16 or F32, or a GGUF file");
    }
    return absl::OkStatus();
  }

  absl::Status rope(RopeSpec& rope) const {
    TANDEM_TRY(number(config_, "rope_theta", 10000.0, rope.theta));
    const json* block = json_member(config_, "rope_parameters");
    if (block == nullptr) block = json_member(config_, "rope_scaling");
    if (block == nullptr) return absl::OkStatus();
    if (!block->is_object()) return fail("the rope settings must be an object");
    TANDEM_TRY(number(*block, "rope_theta", rope.theta, rope.theta));
    TANDEM_ASSIGN(auto type, json_text(path_, *block, "rope_type"));
    if (!type) {
      TANDEM_ASSIGN(type, json_text(path_, *block, "type"));
    }
    if (!type && json_member(*block, "factor") != nullptr)
      return fail("the rope settings have a factor and no rope_type");
    const std::string kind = type.value_or("default");
    if (kind == "default") return absl::OkStatus();
    if (kind != "linear" && kind != "llama3") {
      return unsupported(fmt::format("rope type \"{}\" is not supported; supported: default, linear, llama3", kind));
    }
    TANDEM_TRY(number(*block, "factor", std::nullopt, rope.factor));
    rope.scaling = RopeSpec::Scaling::kLinear;
    if (kind == "linear") return absl::OkStatus();
    rope.scaling = RopeSpec::Scaling::kLlama3;
    TANDEM_TRY(number(*block, "low_freq_factor", std::nullopt, rope.low_freq_factor));
    TANDEM_TRY(number(*block, "high_freq_factor", std::nullopt, rope.high_freq_factor));
    return size_of(*block, "original_max_position_embeddings", std::nullopt, rope.original_context);
  }

  const std::string path_;
  const json& config_;
};

absl::StatusOr<TokenId> read_token_id(const std::string& path, const char* key, const json& value) {
  if (value.is_number_integer() && value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() < kMaxVocab) {
    return static_cast<TokenId>(value.get<std::int64_t>());
  }
  return absl::InvalidArgumentError(fmt::format("{}: \"{}\" is not a token id or a list of them", path, key));
}

// "eos_token_id": an integer, a list, or absent.
absl::Status add_end_tokens(const std::string& path, const json& config, std::vector<TokenId>& ends) {
  const json* value = json_member(config, "eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& each : list) {
    TANDEM_ASSIGN(const TokenId id, read_token_id(path, "eos_token_id", each));
    ends.push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<ConfigTokens> read_config_tokens(const std::string& folder, const std::string& config_path,
                                                const json& config) {
  ConfigTokens tokens;
  const std::string generation_path = folder + "/generation_config.json";
  TANDEM_ASSIGN(const auto generation, read_json_file(generation_path, kMaxConfigBytes));
  if (generation) TANDEM_TRY(add_end_tokens(generation_path, *generation, tokens.ends));
  TANDEM_TRY(add_end_tokens(config_path, config, tokens.ends));
  if (const json* bos = json_member(config, "bos_token_id"); bos != nullptr) {
    TANDEM_ASSIGN(tokens.bos, read_token_id(config_path, "bos_token_id", *bos));
  }
  return tokens;
}

// Translates names, and settles what tie_word_embeddings means beside a head in the file: tied, the head is
// ignored, as the reference library does, with a warning where its values differ; not tied, it must be there.
absl::Status take_tensors(const std::string& folder, const HfFamily& family, ModelParts& parts) {
  TANDEM_ASSIGN(HfTensors found, open_hf_tensors(folder));
  parts.mappings = std::move(found.mappings);
  parts.table = family.tensors;
  std::optional<WeightSource> embed;
  std::optional<WeightSource> head;
  for (const SafetensorsTensor& tensor : found.tensors) {
    const std::optional<std::string> name = canonical_name(family.tensors, tensor.name);
    if (!name) {
      return absl::UnimplementedError(
          fmt::format("{}: tensor {} is not one that a model of type \"{}\" is read with; "
                      "ignoring it would change the answers",
                      folder, tensor.name, family.model_type));
    }
    if (name->empty()) continue;
    if (*name == "embed") embed = tensor.source;
    if (*name == "head") head = tensor.source;
    if (*name == "head" && parts.spec.tied_embeddings) continue;
    parts.tensors.push_back({*name, tensor.source});
  }
  if (!embed || embed->rows != parts.spec.vocab_size) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor model.embed_tokens.weight has {} rows, config.json a "
                    "vocab_size of {}",
                    folder, embed ? embed->rows : 0, parts.spec.vocab_size));
  }
  if (!parts.spec.tied_embeddings && !head) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor lm_head.weight is missing and config.json does not tie it to the embedding; set "
                    "\"tie_word_embeddings\": true if the model shares them",
                    folder));
  }
  if (!parts.spec.tied_embeddings || !head) return absl::OkStatus();
  const std::optional<std::uint64_t> bytes = tensor_bytes(embed->dtype, embed->rows, embed->cols);
  const bool equal = head->dtype == embed->dtype && head->rows == embed->rows && head->cols == embed->cols &&
                     std::memcmp(head->data, embed->data, *bytes) == 0;
  if (!equal) {
    TANDEM_LOG(kWarning,
               "{}: lm_head.weight differs from the embedding, but config.json ties them: the embedding is used",
               folder);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> open_hf_model(const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  TANDEM_ASSIGN(const auto config, read_json_file(config_path, kMaxConfigBytes));
  if (!config) {
    return absl::NotFoundError(
        fmt::format("{} is missing; a model folder has config.json, tokenizer.json and "
                    "*.safetensors",
                    config_path));
  }
  ModelParts parts;
  const ConfigReader reader(config_path, *config);
  TANDEM_ASSIGN(const HfFamily* family, reader.family());
  TANDEM_TRY(reader.read(*family, parts.spec));
  TANDEM_TRY(annotate(check_spec(parts.spec), config_path));
  TANDEM_TRY(reader.limit_to_window(parts.spec));
  std::filesystem::path named = std::filesystem::path(folder).lexically_normal();
  if (named.filename().empty()) named = named.parent_path();
  parts.spec.name = named.filename().string();
  TANDEM_TRY(take_tensors(folder, *family, parts));
  TANDEM_ASSIGN(const ConfigTokens tokens, read_config_tokens(folder, config_path, *config));
  TANDEM_ASSIGN(parts.tokenizer, read_hf_tokenizer(folder, tokens, parts.spec.vocab_size));
  absl::StatusOr<std::unique_ptr<ModelFile>> model = OpenedModel::create(std::move(parts));
  if (!model.ok()) return annotate(model.status(), folder);
  return model;
}

}  // namespace tandem
