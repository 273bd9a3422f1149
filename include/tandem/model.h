// A model as data: ModelSpec says what it is, ModelFile is its opened and checked file, ForwardBatch is the input of
// one forward pass (model/decoder.h). A model sees KV blocks as plain views. It knows no queues, requests or
// processes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/backend.h"
#include "tandem/tokenizer.h"
#include "tandem/types.h"

namespace tandem {

struct RopeSpec {
  enum class Scaling : std::uint8_t { kNone, kLinear, kLlama3 };
  RopeStyle style = RopeStyle::kHalf;
  float theta = 10000.0F;
  std::int32_t rotary_dim = 0;
  Scaling scaling = Scaling::kNone;
  float factor = 1.0F;
  float low_freq_factor = 1.0F;   // llama3
  float high_freq_factor = 4.0F;  // llama3
  std::int32_t original_context = 0;  // llama3
  std::vector<float> frequency_factors;  // divide the inverse frequencies (GGUF rope_freqs.weight), or empty
};

struct ModelSpec {
  std::string family;  // "llama"
  std::string name;    // for /v1/models when none is configured
  std::int32_t num_layers = 0;
  std::int32_t hidden_size = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t ffn_size = 0;
  std::int32_t vocab_size = 0;
  std::int32_t context_length = 0;
  float norm_epsilon = 1e-5F;
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool attention_bias = false;  // q, k, v have biases
  RopeSpec rope;
};

// How the pool stores this model's keys and values.
inline KvLayout kv_layout(const ModelSpec& spec, DType dtype, std::int32_t block_tokens) {
  return {dtype, spec.num_layers, spec.num_kv_heads, spec.head_dim, block_tokens};
}

// One tensor of a file: a matrix [rows, cols] or a vector (rows = 1). Valid while its ModelFile lives.
struct NamedTensor {
  std::string name;  // canonical, whatever the format; see the list in model/spec.h
  WeightSource source;
};

// An opened, fully checked model file or folder. Immutable.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual const TokenizerSpec& tokenizer() const = 0;
  virtual std::span<const NamedTensor> tensors() const = 0;
  // The tensor of that canonical name or null.
  virtual const NamedTensor* find(std::string_view name) const = 0;
};

// A .gguf file, or a folder with config.json and *.safetensors. The error names the file, the field and the
// offset at fault; nothing larger than the file itself is ever allocated on its word.
absl::StatusOr<std::unique_ptr<ModelFile>> open_model(const std::string& path);

// One step's work: rows of several sequences, one after the other.
struct ForwardBatch {
  std::span<const TokenId> tokens;          // [rows]
  std::span<const std::int32_t> positions;  // [rows]
  std::span<const SequenceRows> sequences;
  std::span<const BlockId> blocks;          // flat block tables
  KvView kv;
};

struct LayerRange {
  std::int32_t begin = 0;  // 0: the embedding runs first
  std::int32_t end = 0;
};

}  // namespace tandem
