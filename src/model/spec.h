// What a ModelSpec must satisfy, and the tensors that go with it: one list of canonical names and shapes that
// every file format is translated to and checked against before a model counts as open. Pure functions.
//
// Canonical names (N: layer index), shapes [rows, cols] = [outputs, inputs]; a vector has rows = 1:
//   embed                    [vocab, hidden]
//   layers.N.attn_norm       [1, hidden]
//   layers.N.q               [heads * head_dim, hidden]       layers.N.q_bias   [1, heads * head_dim]
//   layers.N.k, layers.N.v   [kv_heads * head_dim, hidden]    ..._bias          [1, kv_heads * head_dim]
//   layers.N.o               [hidden, heads * head_dim]
//   layers.N.ffn_norm        [1, hidden]
//   layers.N.gate, .up       [ffn, hidden]
//   layers.N.down            [hidden, ffn]
//   norm                     [1, hidden]
//   head                     [vocab, hidden]                  only when embeddings are not tied
//   rope_frequencies         [1, rotary_dim / 2]              optional; also in RopeSpec::frequency_factors
// Biases exist when the spec says attention_bias. Vectors are F32, F16 or BF16.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tandem/model.h"

namespace tandem {

// Ceilings no real model comes near; beyond them a file is taken for damaged before anything is sized by it.
inline constexpr std::int32_t kMaxLayers = 1024;
inline constexpr std::int32_t kMaxWidth = 1 << 20;  // hidden, ffn, heads * head_dim
inline constexpr std::int32_t kMaxVocab = 1 << 20;
inline constexpr std::int32_t kMaxMerges = 1 << 20;

std::string_view dtype_name(DType dtype);

// Bytes of a row-major [rows, cols] tensor; nothing when a size is not positive, a row is not made of whole
// quantisation blocks, or the product overflows.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::int64_t rows, std::int64_t cols);

// One line of a family's name table. A '*' stands for the layer number, in both or in neither; an empty `to`
// names a tensor that may be in the file and is not read.
struct TensorRename {
  std::string_view from;
  std::string_view to;
};

// The canonical name of a file's tensor, empty for one to skip; nothing when the table does not know it.
std::optional<std::string> canonical_name(std::span<const TensorRename> table, std::string_view name);
// The other way round, for messages; the canonical name itself when the table does not know it.
std::string name_in_file(std::span<const TensorRename> table, std::string_view canonical);

// Every field in range and consistent with the others. The error names the field and its value.
absl::Status check_spec(const ModelSpec& spec);

// The tensor of that name or null; `tensors` are sorted by name.
const NamedTensor* find_tensor(std::span<const NamedTensor> tensors, std::string_view name);

// Every tensor the spec needs is there, in the shape it implies, and no other: one that nothing reads means that
// the spec is not the file's. The error gives both shapes and the tensor's name in the file, from `table`.
// `tensors` are sorted by name.
absl::Status check_tensors(const ModelSpec& spec, std::span<const NamedTensor> tensors,
                           std::span<const TensorRename> table);

}  // namespace tandem
