#include "model/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "fmt/core.h"

namespace tandem {
namespace {

struct Block {
  std::int64_t values;
  std::int64_t bytes;
};

Block block_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {1, 4};
    case DType::kF16:
    case DType::kBF16: return {1, 2};
    case DType::kQ8_0: return {32, 34};
    case DType::kQ4_0: return {32, 18};
    case DType::kQ4_1: return {32, 20};
    case DType::kQ5_0: return {32, 22};
    case DType::kQ4_K: return {256, 144};
    case DType::kQ6_K: return {256, 210};
  }
  return {1, 4};
}

absl::Status out_of_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
  return absl::InvalidArgumentError(fmt::format("{} is {}; it must lie in [{}, {}]", field, value, least, most));
}

absl::Status not_positive(std::string_view field, float value) {
  return absl::InvalidArgumentError(fmt::format("{} is {}; it must be a finite positive number", field, value));
}

bool positive(float value) { return std::isfinite(value) && value > 0.0F; }

absl::Status check_rope(const ModelSpec& spec) {
  const RopeSpec& rope = spec.rope;
  if (!positive(rope.theta)) return not_positive("rope theta", rope.theta);
  if (!positive(rope.factor)) return not_positive("rope scaling factor", rope.factor);
  if (rope.rotary_dim < 2 || rope.rotary_dim > spec.head_dim || rope.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("rotary dimension is {}; it must be even, at least 2 and at most the head size of {}",
                    rope.rotary_dim, spec.head_dim));
  }
  if (rope.scaling == RopeSpec::Scaling::kLlama3) {
    if (!positive(rope.low_freq_factor)) return not_positive("rope low_freq_factor", rope.low_freq_factor);
    if (!positive(rope.high_freq_factor)) return not_positive("rope high_freq_factor", rope.high_freq_factor);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      return absl::InvalidArgumentError(fmt::format("rope high_freq_factor {} must exceed low_freq_factor {}",
                                                    rope.high_freq_factor, rope.low_freq_factor));
    }
    if (rope.original_context < 1) {
      return absl::InvalidArgumentError(fmt::format(
          "rope original_max_position_embeddings is {}; llama3 scaling needs a positive one", rope.original_context));
    }
  }
  if (!rope.frequency_factors.empty() &&
      rope.frequency_factors.size() != static_cast<std::size_t>(rope.rotary_dim / 2)) {
    return absl::InvalidArgumentError(fmt::format("{} rope frequency factors for a rotary dimension of {}; {} expected",
                                                  rope.frequency_factors.size(), rope.rotary_dim, rope.rotary_dim / 2));
  }
  for (const float factor : rope.frequency_factors) {
    if (!positive(factor)) return not_positive("a rope frequency factor", factor);
  }
  return absl::OkStatus();
}

// Checks one tensor after the other, without a list of them all: a spec may name a thousand layers.
class TensorCheck final {
 public:
  TensorCheck(std::span<const NamedTensor> tensors, std::span<const TensorRename> table)
      : tensors_(tensors), table_(table), read_(tensors.size(), false) {}

  absl::Status matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const NamedTensor* tensor = find_tensor(tensors_, name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("tensor {} of shape [{}, {}] is missing from the file", name_in_file(table_, name), rows, cols));
    }
    const WeightSource& source = tensor->source;
    if (source.rows != rows || source.cols != cols) {
      return absl::InvalidArgumentError(fmt::format("tensor {} has shape [{}, {}]; the model's sizes ask for [{}, {}]",
                                                    name_in_file(table_, name), source.rows, source.cols, rows, cols));
    }
    read_[static_cast<std::size_t>(tensor - tensors_.data())] = true;
    return absl::OkStatus();
  }

  absl::Status vector(const std::string& name, std::int64_t cols) {
    TANDEM_TRY(matrix(name, 1, cols));
    const DType dtype = find_tensor(tensors_, name)->source.dtype;
    if (block_of(dtype).values != 1) {
      return absl::InvalidArgumentError(
          fmt::format("tensor {} is a vector of type {}; vectors are read as F32, F16 or BF16",
                      name_in_file(table_, name), dtype_name(dtype)));
    }
    return absl::OkStatus();
  }

  absl::Status all_read() const {
    const auto unread = std::ranges::find(read_, false);
    if (unread == read_.end()) return absl::OkStatus();
    const NamedTensor& tensor = tensors_[static_cast<std::size_t>(unread - read_.begin())];
    return absl::InvalidArgumentError(fmt::format("tensor {} of shape [{}, {}] has no place in a model of these sizes",
                                                  name_in_file(table_, tensor.name), tensor.source.rows,
                                                  tensor.source.cols));
  }

 private:
  std::span<const NamedTensor> tensors_;
  std::span<const TensorRename> table_;
  std::vector<bool> read_;  // by index into tensors_
};

absl::Status check_layer(const ModelSpec& spec, TensorCheck& check, std::int32_t layer) {
  const std::int64_t hidden = spec.hidden_size;
  const std::int64_t q_rows = std::int64_t{spec.num_heads} * spec.head_dim;
  const std::int64_t kv_rows = std::int64_t{spec.num_kv_heads} * spec.head_dim;
  const auto name = [layer](std::string_view part) { return fmt::format("layers.{}.{}", layer, part); };
  TANDEM_TRY(check.vector(name("attn_norm"), hidden));
  TANDEM_TRY(check.matrix(name("q"), q_rows, hidden));
  TANDEM_TRY(check.matrix(name("k"), kv_rows, hidden));
  TANDEM_TRY(check.matrix(name("v"), kv_rows, hidden));
  if (spec.attention_bias) {
    TANDEM_TRY(check.vector(name("q_bias"), q_rows));
    TANDEM_TRY(check.vector(name("k_bias"), kv_rows));
    TANDEM_TRY(check.vector(name("v_bias"), kv_rows));
  }
  TANDEM_TRY(check.matrix(name("o"), hidden, q_rows));
  TANDEM_TRY(check.vector(name("ffn_norm"), hidden));
  TANDEM_TRY(check.matrix(name("gate"), spec.ffn_size, hidden));
  TANDEM_TRY(check.matrix(name("up"), spec.ffn_size, hidden));
  return check.matrix(name("down"), hidden, spec.ffn_size);
}

// `name` matched against `from`, with its layer number put into `to`.
std::optional<std::string> translate(std::string_view name, std::string_view from, std::string_view to) {
  const std::size_t star = from.find('*');
  if (star == std::string_view::npos) return name == from ? std::optional(std::string(to)) : std::nullopt;
  const std::string_view head = from.substr(0, star);
  const std::string_view tail = from.substr(star + 1);
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
  const std::string_view digits = name.substr(head.size(), name.size() - head.size() - tail.size());
  std::uint32_t layer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  // "01" would make a second name for layer 1.
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  if (to.empty()) return std::string();
  const std::size_t slot = to.find('*');
  return fmt::format("{}{}{}", to.substr(0, slot), layer, to.substr(slot + 1));
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  constexpr std::array<std::string_view, 9> kNames = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0",
                                                      "Q4_1", "Q5_0", "Q4_K", "Q6_K"};
  return kNames[static_cast<std::size_t>(dtype)];
}

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  const Block block = block_of(dtype);
  if (rows <= 0 || cols <= 0 || cols % block.values != 0) return std::nullopt;
  std::int64_t row_bytes = 0;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(cols / block.values, block.bytes, &row_bytes)) return std::nullopt;
  if (__builtin_mul_overflow(row_bytes, rows, &bytes)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::optional<std::string> canonical_name(std::span<const TensorRename> table, std::string_view name) {
  for (const TensorRename& rename : table) {
    if (auto translated = translate(name, rename.from, rename.to)) return translated;
  }
  return std::nullopt;
}

std::string name_in_file(std::span<const TensorRename> table, std::string_view canonical) {
  for (const TensorRename& rename : table) {
    if (auto translated = translate(canonical, rename.to, rename.from)) return *translated;
  }
  return std::string(canonical);
}

absl::Status check_spec(const ModelSpec& spec) {
  struct Bound {
    std::string_view field;
    std::int64_t value;
    std::int64_t most;
  };
  const Bound bounds[] = {
      {"number of layers", spec.num_layers, kMaxLayers},
      {"hidden size", spec.hidden_size, kMaxWidth},
      {"number of attention heads", spec.num_heads, kMaxWidth},
      {"number of key/value heads", spec.num_kv_heads, spec.num_heads},
      {"head size", spec.head_dim, 4096},
      {"feed-forward size", spec.ffn_size, kMaxWidth},
      {"vocabulary size", spec.vocab_size, kMaxVocab},
      {"context length", spec.context_length, INT32_MAX},
      {"number of heads times head size", std::int64_t{spec.num_heads} * spec.head_dim, kMaxWidth},
  };
  for (const Bound& bound : bounds) {
    if (bound.value < 1 || bound.value > bound.most) return out_of_range(bound.field, bound.value, 1, bound.most);
  }
  if (spec.num_heads % spec.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} attention heads cannot share {} key/value heads evenly", spec.num_heads, spec.num_kv_heads));
  }
  if (!positive(spec.norm_epsilon)) return not_positive("norm epsilon", spec.norm_epsilon);
  return check_rope(spec);
}

const NamedTensor* find_tensor(std::span<const NamedTensor> tensors, std::string_view name) {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &NamedTensor::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

absl::Status check_tensors(const ModelSpec& spec, std::span<const NamedTensor> tensors,
                           std::span<const TensorRename> table) {
  TensorCheck check(tensors, table);
  TANDEM_TRY(check.matrix("embed", spec.vocab_size, spec.hidden_size));
  for (std::int32_t layer = 0; layer < spec.num_layers; ++layer) TANDEM_TRY(check_layer(spec, check, layer));
  TANDEM_TRY(check.vector("norm", spec.hidden_size));
  if (!spec.tied_embeddings) TANDEM_TRY(check.matrix("head", spec.vocab_size, spec.hidden_size));
  if (find_tensor(tensors, "rope_frequencies") != nullptr) {
    TANDEM_TRY(check.vector("rope_frequencies", spec.rope.rotary_dim / 2));
  }
  return check.all_read();
}

}  // namespace tandem
