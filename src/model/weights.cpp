#include "model/weights.h"

#include <cstring>
#include <string>

#include "base/fnv1a.h"
#include "base/half.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::uint64_t kMagic = 0x31574D444E4154ULL;  // "TANDMW1"

struct RegionHeader {
  std::uint64_t magic;
  std::uint64_t checksum;
};
static_assert(sizeof(RegionHeader) <= kAlignment);

std::size_t align_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

float read_element(const WeightSource& source, std::int64_t index) {
  std::uint16_t half = 0;
  float value = 0;
  switch (source.dtype) {
    case DType::kF16: std::memcpy(&half, source.data + 2 * index, 2); return f16_to_f32(half);
    case DType::kBF16: std::memcpy(&half, source.data + 2 * index, 2); return bf16_to_f32(half);
    default: std::memcpy(&value, source.data + 4 * index, 4); return value;
  }
}

// Finds tensors by name and hands out offsets, remembering the first failure.
class Placer {
 public:
  Placer(const ModelFile& model, const Backend& backend) : model_(model), backend_(backend) {}

  template <class Entry>
  void matrix(Entry& entry, const std::string& name) {
    const NamedTensor* tensor = require(name);
    if (tensor == nullptr) return;
    const auto packed = backend_.packed_bytes(tensor->source);
    if (!packed.ok()) return fail(annotate(packed.status(), name));
    entry.matrix = tensor->source;
    place(entry, *packed);
  }

  template <class Entry>
  void vectors(Entry& entry, const std::vector<std::string>& names) {
    std::size_t elements = 0;
    for (const std::string& name : names) {
      const NamedTensor* tensor = require(name);
      if (tensor == nullptr) return;
      const DType dtype = tensor->source.dtype;
      if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
        return fail(
            absl::InvalidArgumentError(fmt::format("tensor {}: a norm or bias must be F32, F16 or BF16", name)));
      }
      entry.vectors.push_back(tensor->source);
      elements += static_cast<std::size_t>(tensor->source.rows * tensor->source.cols);
    }
    place(entry, elements * sizeof(float));
  }

  const absl::Status& status() const { return status_; }
  std::size_t bytes() const { return next_; }
  std::uint64_t checksum() const { return checksum_; }

 private:
  const NamedTensor* require(const std::string& name) {
    const NamedTensor* tensor = model_.find(name);
    if (tensor == nullptr) fail(absl::InvalidArgumentError(fmt::format("the model has no tensor {}", name)));
    return tensor;
  }

  template <class Entry>
  void place(Entry& entry, std::size_t bytes) {
    entry.offset = next_;
    entry.bytes = bytes;
    next_ = align_up(next_ + bytes);
    checksum_ = fnv1a_number(bytes, fnv1a_number(entry.offset, checksum_));
    checksum_ = fnv1a_number(static_cast<std::uint64_t>(entry.matrix.dtype), checksum_);
  }

  void fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const ModelFile& model_;
  const Backend& backend_;
  std::size_t next_ = kAlignment;
  std::uint64_t checksum_ = kFnv1aStart;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<WeightsLayout> WeightsLayout::create(const ModelFile& model, const Backend& backend) {
  const ModelSpec& spec = model.spec();
  WeightsLayout layout;
  Placer placer(model, backend);
  placer.matrix(layout.embedding_, "embed");
  layout.tied_ = spec.tied_embeddings;
  if (!layout.tied_) placer.matrix(layout.head_, "head");
  placer.vectors(layout.norm_, {"norm"});
  layout.layers_.resize(static_cast<std::size_t>(spec.num_layers));
  for (std::size_t index = 0; index < layout.layers_.size(); ++index) {
    LayerEntries& layer = layout.layers_[index];
    const std::string prefix = fmt::format("layers.{}.", index);
    placer.vectors(layer.attn_norm, {prefix + "attn_norm"});
    if (spec.attention_bias) placer.vectors(layer.qkv_bias, {prefix + "q_bias", prefix + "k_bias", prefix + "v_bias"});
    placer.matrix(layer.q, prefix + "q");
    placer.matrix(layer.k, prefix + "k");
    placer.matrix(layer.v, prefix + "v");
    placer.matrix(layer.output, prefix + "o");
    placer.vectors(layer.ffn_norm, {prefix + "ffn_norm"});
    placer.matrix(layer.gate, prefix + "gate");
    placer.matrix(layer.up, prefix + "up");
    placer.matrix(layer.down, prefix + "down");
  }
  TANDEM_TRY(placer.status());
  layout.bytes_ = placer.bytes();
  layout.checksum_ = placer.checksum();
  return layout;
}

template <class Visit>
void WeightsLayout::for_each_entry(const Visit& visit) const {
  visit(embedding_);
  visit(head_);
  visit(norm_);
  for (const LayerEntries& layer : layers_) {
    for (const Entry* entry : {&layer.attn_norm, &layer.qkv_bias, &layer.q, &layer.k, &layer.v, &layer.output,
                               &layer.ffn_norm, &layer.gate, &layer.up, &layer.down}) {
      visit(*entry);
    }
  }
}

void WeightsLayout::fill(std::span<std::byte> region, Backend& backend, Stream& stream,
                         const std::function<void(std::size_t, std::size_t)>& progress) const {
  TANDEM_CHECK(region.size() >= bytes_, "the weights region is as large as its layout");
  for_each_entry([&](const Entry& entry) {
    if (entry.bytes == 0) return;
    std::byte* to = region.data() + entry.offset;
    if (entry.matrix.data != nullptr) {
      backend.pack_weight(entry.matrix, to, stream);
    } else {
      for (const WeightSource& source : entry.vectors) {
        const std::int64_t elements = source.rows * source.cols;
        for (std::int64_t index = 0; index < elements; ++index, to += sizeof(float)) {
          const float value = read_element(source, index);
          std::memcpy(to, &value, sizeof(value));
        }
      }
    }
    progress(entry.offset + entry.bytes, bytes_);
  });
  const RegionHeader header{kMagic, checksum_};
  std::memcpy(region.data(), &header, sizeof(header));
}

absl::StatusOr<DecoderWeights> WeightsLayout::bind(std::span<const std::byte> region) const {
  RegionHeader header = {};
  if (region.size() >= sizeof(header)) std::memcpy(&header, region.data(), sizeof(header));
  if (region.size() < bytes_ || header.magic != kMagic || header.checksum != checksum_) {
    return absl::FailedPreconditionError(
        "the owner's weights region was filled from another model or by another version; restart the owner");
  }
  const auto matrix = [&](const Entry& entry) {
    return Weight{entry.matrix.dtype, entry.matrix.rows, entry.matrix.cols, region.data() + entry.offset};
  };
  const auto vector = [&](const Entry& entry) {
    return entry.bytes == 0 ? nullptr : reinterpret_cast<const float*>(region.data() + entry.offset);
  };
  DecoderWeights weights;
  weights.embedding = matrix(embedding_);
  weights.head = tied_ ? weights.embedding : matrix(head_);
  weights.norm = vector(norm_);
  for (const LayerEntries& layer : layers_) {
    weights.layers.push_back({vector(layer.attn_norm),
                              vector(layer.qkv_bias),
                              {matrix(layer.q), matrix(layer.k), matrix(layer.v)},
                              matrix(layer.output),
                              vector(layer.ffn_norm),
                              {matrix(layer.gate), matrix(layer.up)},
                              matrix(layer.down)});
  }
  return weights;
}

}  // namespace tandem
