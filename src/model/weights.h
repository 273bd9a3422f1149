// Where every tensor of a model lies in the weights region, how the region is filled, and the bound views the
// decoder reads. The layout is a function of the model file and the backend alone, so each worker computes it for
// itself; a checksum of it at the region's start proves that the filler computed the same.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/backend.h"
#include "tandem/model.h"

namespace tandem {

struct LayerWeights {
  const float* attn_norm = nullptr;  // [hidden]
  const float* qkv_bias = nullptr;   // [(num_heads + 2 * num_kv_heads) * head_dim] or null
  Weight qkv[3];                     // q, k, v
  Weight output;
  const float* ffn_norm = nullptr;  // [hidden]
  Weight gate_up[2];
  Weight down;
};

struct DecoderWeights {
  Weight embedding;  // [vocab, hidden]
  Weight head;       // the embedding itself when tied
  const float* norm = nullptr;
  std::vector<LayerWeights> layers;
};

class WeightsLayout final {
 public:
  static absl::StatusOr<WeightsLayout> create(const ModelFile& model, const Backend& backend);

  std::size_t bytes() const { return bytes_; }
  // Packs every tensor into `region` (zero-filled, bytes() long). `progress` receives done and total bytes.
  void fill(std::span<std::byte> region, Backend& backend, Stream& stream,
            const std::function<void(std::size_t, std::size_t)>& progress) const;
  // Views into a filled region. FailedPrecondition when another model or layout filled it.
  absl::StatusOr<DecoderWeights> bind(std::span<const std::byte> region) const;

 private:
  // A matrix in the backend's layout, or `vectors` widened to float32 one after the other.
  struct Entry {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    WeightSource matrix;
    std::vector<WeightSource> vectors;
  };
  struct LayerEntries {
    Entry attn_norm, qkv_bias, q, k, v, output, ffn_norm, gate, up, down;
  };

  template <class Visit>
  void for_each_entry(const Visit& visit) const;

  Entry embedding_, head_, norm_;
  bool tied_ = false;
  std::vector<LayerEntries> layers_;
  std::size_t bytes_ = 0;
  std::uint64_t checksum_ = 0;
};

}  // namespace tandem
