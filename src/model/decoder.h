// The one forward pass: a decoder-only transformer driven by ModelSpec. Owns its activation buffers, sized once;
// owned and used by one lane's thread. It knows no requests: rows, positions and block tables come as views.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "model/weights.h"
#include "tandem/backend.h"
#include "tandem/model.h"

namespace tandem {

struct DecoderLimits {
  std::int32_t max_rows = 0;        // tokens in one step
  std::int32_t max_logit_rows = 0;  // rows of one logits() call
};

class Decoder final {
 public:
  static absl::StatusOr<std::unique_ptr<Decoder>> create(const ModelSpec& spec, DecoderWeights weights,
                                                         Backend& backend, DecoderLimits limits);

  // Runs layers [begin, end) over the batch: writes its keys and values, leaves the hidden rows for the next range
  // or for logits(). Ranges of one batch are run in ascending order.
  void forward(const ForwardBatch& batch, LayerRange layers, Stream& stream);
  // Logits [rows.size(), vocab] in float32 of those rows of the last batch; valid until the next call.
  Tensor logits(std::span<const std::int32_t> rows, Stream& stream);

  const ModelSpec& spec() const { return spec_; }
  const DecoderLimits& limits() const { return limits_; }

 private:
  Decoder(const ModelSpec& spec, DecoderWeights weights, Backend& backend, DecoderLimits limits);
  void layer(std::int32_t index, const ForwardBatch& batch, Stream& stream);
  Tensor rows_of(const Tensor& buffer, std::int64_t rows) const;

  ModelSpec spec_;
  DecoderWeights weights_;
  Backend& backend_;
  DecoderLimits limits_;
  std::vector<float> inverse_frequency_;  // [rotary_dim / 2]
  Backend::Buffer memory_;
  Tensor hidden_, pending_, normed_, qkv_, attended_, gate_up_, gated_, cos_sin_;  // [max_rows, ...]
  Tensor head_hidden_, logits_;                                                    // [max_logit_rows, ...]
  std::int64_t batch_rows_ = 0;
  bool has_pending_ = false;  // pending_ is still to be added to hidden_
};

// The rotary inverse frequencies of a spec, in float32, scaling applied. [rotary_dim / 2]
std::vector<float> rope_inverse_frequencies(const RopeSpec& rope);

}  // namespace tandem
