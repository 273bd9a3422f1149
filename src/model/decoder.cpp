#include "model/decoder.h"

#include <cmath>
#include <numbers>

#include "base/status.h"

namespace tandem {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t tensor_bytes(std::int64_t rows, std::int64_t cols) {
  const auto bytes = static_cast<std::size_t>(rows * cols) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// "llama3" scaling as Llama 3.1 defines it: low frequencies are divided by the factor, high ones kept, those
// between blended.
float llama3_scaled(float frequency, const RopeSpec& rope) {
  const float wavelength = 2.0F * std::numbers::pi_v<float> / frequency;
  const auto context = static_cast<float>(rope.original_context);
  if (wavelength < context / rope.high_freq_factor) return frequency;
  if (wavelength > context / rope.low_freq_factor) return frequency / rope.factor;
  const float smooth = (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0F - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeSpec& rope) {
  std::vector<float> frequencies(static_cast<std::size_t>(rope.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    float frequency = 1.0F / std::pow(rope.theta, exponent);
    if (rope.scaling == RopeSpec::Scaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeSpec::Scaling::kLlama3) frequency = llama3_scaled(frequency, rope);
    if (!rope.frequency_factors.empty()) frequency /= rope.frequency_factors[i];
    frequencies[i] = frequency;
  }
  return frequencies;
}

Decoder::Decoder(const ModelSpec& spec, DecoderWeights weights, Backend& backend, DecoderLimits limits)
    : spec_(spec),
      weights_(std::move(weights)),
      backend_(backend),
      limits_(limits),
      inverse_frequency_(rope_inverse_frequencies(spec.rope)) {}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::create(const ModelSpec& spec, DecoderWeights weights,
                                                         Backend& backend, DecoderLimits limits) {
  TANDEM_CHECK(limits.max_logit_rows <= limits.max_rows, "logit rows are rows of the batch");
  std::unique_ptr<Decoder> decoder(new Decoder(spec, std::move(weights), backend, limits));
  const std::int64_t rows = limits.max_rows;
  const std::int64_t query_width = std::int64_t{spec.num_heads} * spec.head_dim;
  const std::int64_t qkv_width = query_width + 2 * std::int64_t{spec.num_kv_heads} * spec.head_dim;
  struct Wanted {
    Tensor* tensor;
    std::int64_t rows, cols;
  };
  const Wanted wanted[] = {
      {&decoder->hidden_, rows, spec.hidden_size},
      {&decoder->pending_, rows, spec.hidden_size},
      {&decoder->normed_, rows, spec.hidden_size},
      {&decoder->qkv_, rows, qkv_width},
      {&decoder->attended_, rows, query_width},
      {&decoder->gate_up_, rows, 2 * std::int64_t{spec.ffn_size}},
      {&decoder->gated_, rows, spec.ffn_size},
      {&decoder->cos_sin_, rows, spec.rope.rotary_dim},
      {&decoder->head_hidden_, limits.max_logit_rows, spec.hidden_size},
      {&decoder->logits_, limits.max_logit_rows, spec.vocab_size},
  };
  std::size_t bytes = 0;
  for (const Wanted& item : wanted) bytes += tensor_bytes(item.rows, item.cols);
  TANDEM_ASSIGN(decoder->memory_, backend.allocate(bytes));
  std::byte* next = decoder->memory_.get();
  for (const Wanted& item : wanted) {
    *item.tensor = Tensor{next, DType::kF32, item.rows, item.cols, item.cols};
    next += tensor_bytes(item.rows, item.cols);
  }
  return decoder;
}

Tensor Decoder::rows_of(const Tensor& buffer, std::int64_t rows) const {
  Tensor view = buffer;
  view.rows = rows;
  return view;
}

void Decoder::forward(const ForwardBatch& batch, LayerRange layers, Stream& stream) {
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  TANDEM_CHECK(rows <= limits_.max_rows, "a batch has no more rows than the decoder's buffers");
  TANDEM_CHECK(layers.begin == 0 || rows == batch_rows_, "layer ranges of one batch follow each other");
  if (layers.begin == 0) {
    batch_rows_ = rows;
    backend_.embed({weights_.embedding, batch.tokens, rows_of(hidden_, rows)}, stream);
    backend_.rope_angles({batch.positions, inverse_frequency_, 1.0F, rows_of(cos_sin_, rows)}, stream);
    has_pending_ = false;
  }
  for (std::int32_t index = layers.begin; index < layers.end; ++index) layer(index, batch, stream);
}

void Decoder::layer(std::int32_t index, const ForwardBatch& batch, Stream& stream) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(index)];
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  const Tensor hidden = rows_of(hidden_, rows);
  const Tensor pending = rows_of(pending_, rows);
  const Tensor normed = rows_of(normed_, rows);
  const Tensor qkv = rows_of(qkv_, rows);
  const Tensor attended = rows_of(attended_, rows);
  const Tensor gate_up = rows_of(gate_up_, rows);
  const Tensor gated = rows_of(gated_, rows);

  backend_.rms_norm({hidden, has_pending_ ? pending : Tensor{}, weights.attn_norm, spec_.norm_epsilon, normed}, stream);
  backend_.linear({normed, weights.qkv, weights.qkv_bias, qkv}, stream);
  backend_.rope({qkv, rows_of(cos_sin_, rows), spec_.num_heads, spec_.num_kv_heads, spec_.head_dim, spec_.rope.style},
                stream);
  backend_.kv_write({qkv, spec_.num_heads, batch.kv, index, batch.sequences, batch.blocks}, stream);
  backend_.attention({qkv, spec_.num_heads, batch.kv, index, 1.0F / std::sqrt(static_cast<float>(spec_.head_dim)),
                      batch.sequences, batch.blocks, attended},
                     stream);
  backend_.linear({attended, {&weights.output, 1}, nullptr, pending}, stream);
  backend_.rms_norm({hidden, pending, weights.ffn_norm, spec_.norm_epsilon, normed}, stream);
  backend_.linear({normed, weights.gate_up, nullptr, gate_up}, stream);
  backend_.gate({gate_up, spec_.activation, gated}, stream);
  backend_.linear({gated, {&weights.down, 1}, nullptr, pending}, stream);
  has_pending_ = true;
}

Tensor Decoder::logits(std::span<const std::int32_t> rows, Stream& stream) {
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  TANDEM_CHECK(num_rows <= limits_.max_logit_rows, "logits are asked for in slices that fit");
  if (has_pending_) {  // once per batch: later slices read the finished hidden rows
    backend_.rms_norm(
        {rows_of(hidden_, batch_rows_), rows_of(pending_, batch_rows_), weights_.norm, spec_.norm_epsilon, Tensor{}},
        stream);
    has_pending_ = false;
  }
  const Tensor gathered = rows_of(head_hidden_, num_rows);
  const Tensor normed = rows_of(normed_, num_rows);
  const Tensor logits = rows_of(logits_, num_rows);
  backend_.gather_rows({rows_of(hidden_, batch_rows_), rows, gathered}, stream);
  backend_.rms_norm({gathered, Tensor{}, weights_.norm, spec_.norm_epsilon, normed}, stream);
  backend_.linear({normed, {&weights_.head, 1}, nullptr, logits}, stream);
  return logits;
}

}  // namespace tandem
