#include "model/gguf_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "fmt/core.h"
#include "fmt/ranges.h"

#include "base/log.h"
#include "model/opened_model.h"
#include "model/spec.h"

namespace tandem {
namespace {

constexpr TensorRename kLlamaTensors[] = {
    {"token_embd.weight", "embed"},
    {"output_norm.weight", "norm"},
    {"output.weight", "head"},
    {"rope_freqs.weight", "rope_frequencies"},
    {"blk.*.attn_norm.weight", "layers.*.attn_norm"},
    {"blk.*.attn_q.weight", "layers.*.q"},
    {"blk.*.attn_k.weight", "layers.*.k"},
    {"blk.*.attn_v.weight", "layers.*.v"},
    {"blk.*.attn_output.weight", "layers.*.o"},
    {"blk.*.attn_q.bias", "layers.*.q_bias"},
    {"blk.*.attn_k.bias", "layers.*.k_bias"},
    {"blk.*.attn_v.bias", "layers.*.v_bias"},
    {"blk.*.ffn_norm.weight", "layers.*.ffn_norm"},
    {"blk.*.ffn_gate.weight", "layers.*.gate"},
    {"blk.*.ffn_up.weight", "layers.*.up"},
    {"blk.*.ffn_down.weight", "layers.*.down"},
    {"blk.*.attn_rot_embd.weight", ""},  // inverse frequencies that old converters wrote; they follow from theta
};

// A new family is a line here and its names above.
struct GgufFamily {
  std::string_view architecture;  // general.architecture, and the prefix of its keys
  std::string_view family;
  RopeStyle rope_style;
  Activation activation;
  std::span<const TensorRename> tensors;
};

// The llama converter reorders the rows of q and k, so that pairs to rotate are neighbours.
constexpr GgufFamily kFamilies[] = {
    {"llama", "llama", RopeStyle::kInterleaved, Activation::kSilu, kLlamaTensors},
};

absl::StatusOr<const GgufFamily*> find_family(const GgufFile& file) {
  TANDEM_ASSIGN(const auto architecture, file.text("general.architecture"));
  if (!architecture) {
    return absl::InvalidArgumentError(fmt::format("{}: metadata \"general.architecture\" is missing", file.path()));
  }
  const auto family = std::ranges::find(kFamilies, *architecture, &GgufFamily::architecture);
  if (family != std::end(kFamilies)) return &*family;
  std::vector<std::string_view> known;
  for (const GgufFamily& each : kFamilies) known.push_back(each.architecture);
  return absl::UnimplementedError(fmt::format("{}: architecture \"{}\" is not supported; supported: {}", file.path(),
                                              *architecture, fmt::join(known, ", ")));
}

// Reads "<architecture>.<key>" with the file's name in every error.
class SpecReader final {
 public:
  SpecReader(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(architecture) {}

  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }

  absl::Status size(std::string_view name, std::int32_t& value) const {
    TANDEM_ASSIGN(const auto read, file_.integer(key(name), 1, INT32_MAX));
    if (!read) return missing(name);
    value = static_cast<std::int32_t>(*read);
    return absl::OkStatus();
  }
  absl::Status size_or(std::string_view name, std::int32_t fallback, std::int32_t& value) const {
    if (file_.has(key(name))) return size(name, value);
    value = fallback;
    return absl::OkStatus();
  }
  absl::Status number(std::string_view name, float& value) const {
    if (!file_.has(key(name))) return missing(name);
    return number_or(name, value, value);
  }
  absl::Status number_or(std::string_view name, float fallback, float& value) const {
    TANDEM_ASSIGN(const auto read, file_.number(key(name)));
    value = read ? static_cast<float>(*read) : fallback;
    return absl::OkStatus();
  }
  // A setting whose only value the decoder computes is `neutral`.
  absl::Status only(std::string_view name, std::int64_t neutral) const {
    TANDEM_ASSIGN(const auto read, file_.integer(key(name), INT64_MIN, INT64_MAX));
    if (!read || *read == neutral) return absl::OkStatus();
    return absl::UnimplementedError(
        fmt::format("{}: metadata \"{}\" is {}; only {} is supported", file_.path(), key(name), *read, neutral));
  }

 private:
  absl::Status missing(std::string_view name) const {
    return absl::InvalidArgumentError(fmt::format("{}: metadata \"{}\" is missing", file_.path(), key(name)));
  }
  const GgufFile& file_;
  std::string prefix_;
};

absl::Status read_rope(const GgufFile& file, const SpecReader& reader, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  TANDEM_TRY(reader.number_or("rope.freq_base", 10000.0F, rope.theta));
  TANDEM_TRY(reader.size_or("rope.dimension_count", spec.head_dim, rope.rotary_dim));
  TANDEM_ASSIGN(const auto scaling, file.text(reader.key("rope.scaling.type")));
  if (scaling && *scaling != "none" && *scaling != "linear") {
    return absl::UnimplementedError(
        fmt::format("{}: rope scaling \"{}\" is not supported; supported: none, linear, and "
                    "frequency factors in rope_freqs.weight",
                    file.path(), *scaling));
  }
  if (scaling == "linear") {
    rope.scaling = RopeSpec::Scaling::kLinear;
    TANDEM_TRY(reader.number("rope.scaling.factor", rope.factor));
  } else if (!scaling && file.has(reader.key("rope.scale_linear"))) {  // the key's name in old files
    rope.scaling = RopeSpec::Scaling::kLinear;
    TANDEM_TRY(reader.number("rope.scale_linear", rope.factor));
  }
  return absl::OkStatus();
}

absl::Status read_context(const SpecReader& reader, ModelParts& parts) {
  TANDEM_TRY(reader.size("context_length", parts.spec.context_length));
  std::int32_t window = 0;
  TANDEM_TRY(reader.size_or("attention.sliding_window", parts.spec.context_length, window));
  if (window < parts.spec.context_length) {
    TANDEM_LOG(kWarning, "{}: context is limited to the model's attention window of {} tokens, from {}",
               parts.spec.name, window, parts.spec.context_length);
    parts.spec.context_length = window;
  }
  return absl::OkStatus();
}

absl::Status read_spec(const GgufFile& file, const GgufFamily& family, ModelParts& parts) {
  const SpecReader reader(file, family.architecture);
  ModelSpec& spec = parts.spec;
  spec.family = family.family;
  spec.name = std::filesystem::path(file.path()).stem().string();
  spec.activation = family.activation;
  spec.rope.style = family.rope_style;
  TANDEM_TRY(reader.only("expert_count", 0));
  TANDEM_TRY(reader.size("block_count", spec.num_layers));
  TANDEM_TRY(reader.size("embedding_length", spec.hidden_size));
  TANDEM_TRY(reader.size("feed_forward_length", spec.ffn_size));
  TANDEM_TRY(reader.size("attention.head_count", spec.num_heads));
  TANDEM_TRY(reader.size_or("attention.head_count_kv", spec.num_heads, spec.num_kv_heads));
  TANDEM_TRY(reader.number("attention.layer_norm_rms_epsilon", spec.norm_epsilon));
  TANDEM_TRY(read_context(reader, parts));
  const std::string head_key = reader.key("attention.key_length");
  if (!file.has(head_key) && spec.hidden_size % spec.num_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} attention heads do not divide the embedding length {}, and \"{}\" is missing", file.path(),
                    spec.num_heads, spec.hidden_size, head_key));
  }
  TANDEM_TRY(reader.size_or("attention.key_length", spec.hidden_size / spec.num_heads, spec.head_dim));
  TANDEM_TRY(reader.only("attention.value_length", spec.head_dim));
  return read_rope(file, reader, spec);
}

// rope_freqs.weight divides the inverse frequencies, one factor for each pair.
absl::Status read_frequency_factors(const NamedTensor& tensor, RopeSpec& rope) {
  const WeightSource& source = tensor.source;
  if (source.dtype != DType::kF32 || source.rows != 1 || source.cols != rope.rotary_dim / 2) {
    return absl::InvalidArgumentError(
        fmt::format("tensor rope_freqs.weight is {} [{}, {}]; F32 [1, {}] is expected for a rotary dimension of {}",
                    dtype_name(source.dtype), source.rows, source.cols, rope.rotary_dim / 2, rope.rotary_dim));
  }
  rope.frequency_factors.resize(static_cast<std::size_t>(source.cols));
  std::memcpy(rope.frequency_factors.data(), source.data, rope.frequency_factors.size() * sizeof(float));
  return absl::OkStatus();
}

absl::Status read_tensors(const GgufFile& file, const GgufFamily& family, ModelParts& parts) {
  ModelSpec& spec = parts.spec;
  parts.table = family.tensors;
  spec.tied_embeddings = true;  // unless there is a head
  for (const GgufTensor& tensor : file.tensors()) {
    const std::optional<std::string> name = canonical_name(family.tensors, tensor.name);
    if (!name) {
      return absl::UnimplementedError(
          fmt::format("{}: tensor {} is not one that a model of architecture \"{}\" is read "
                      "with; ignoring it would change the answers",
                      file.path(), tensor.name, family.architecture));
    }
    if (name->empty()) continue;
    parts.tensors.push_back({*name, {tensor.dtype, tensor.rows, tensor.cols, tensor.data.data()}});
    const NamedTensor& added = parts.tensors.back();
    if (*name == "embed") spec.vocab_size = static_cast<std::int32_t>(std::min<std::int64_t>(tensor.rows, INT32_MAX));
    if (*name == "head") spec.tied_embeddings = false;
    if (*name == "layers.0.q_bias") spec.attention_bias = true;
    if (*name == "rope_frequencies") TANDEM_TRY(annotate(read_frequency_factors(added, spec.rope), file.path()));
  }
  if (spec.vocab_size == 0) {
    return absl::InvalidArgumentError(fmt::format("{}: tensor token_embd.weight is missing", file.path()));
  }
  TANDEM_ASSIGN(const auto stated, file.integer(fmt::format("{}.vocab_size", family.architecture), 1, INT32_MAX));
  if (stated && *stated != spec.vocab_size) {
    return absl::InvalidArgumentError(
        fmt::format("{}: metadata \"{}.vocab_size\" is {}, but token_embd.weight has {} "
                    "rows",
                    file.path(), family.architecture, *stated, spec.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> open_gguf_model(const std::string& path) {
  TANDEM_ASSIGN(GgufFile file, GgufFile::open(path));
  TANDEM_ASSIGN(const auto parts_of_split, file.integer("split.count", 0, INT32_MAX));
  if (parts_of_split.value_or(0) > 1) {
    return absl::UnimplementedError(
        fmt::format("{}: one of {} parts of a split model; merge them into one file first", path, *parts_of_split));
  }
  ModelParts parts;
  TANDEM_ASSIGN(const GgufFamily* family, find_family(file));
  TANDEM_TRY(read_spec(file, *family, parts));
  TANDEM_TRY(read_tensors(file, *family, parts));
  TANDEM_ASSIGN(parts.tokenizer, read_gguf_tokenizer(file));
  parts.mappings.push_back(file.release_mapping());
  absl::StatusOr<std::unique_ptr<ModelFile>> model = OpenedModel::create(std::move(parts));
  if (!model.ok()) return annotate(model.status(), path);
  return model;
}

}  // namespace tandem
