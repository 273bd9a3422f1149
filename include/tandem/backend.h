// What a device offers: shareable memory, streams with a share of the compute, and the ops of a decoder.
// kernels/cpu implements it over memfds and a thread team; a CUDA backend implements the same with
// cuMemCreate descriptors, green-context streams and graphs (src/ and this header know neither).
//
// Rules every op keeps: one argument struct and a stream; never synchronises; allocates nothing after the
// stream is open; the value of an output row depends on its inputs alone, never on the other rows of the
// batch or on the share (.github/CONTRIBUTING.md, "Determinism"). Pointers are device pointers. Shapes are [rows,
// cols].
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "tandem/sampling.h"
#include "tandem/types.h"

namespace tandem {

// ---- memory ------------------------------------------------------------------------------------

// Shareable device memory. `allocate` is all the owner process ever calls: it makes bytes and maps nothing.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual absl::StatusOr<FileDescriptor> allocate(std::string_view name, std::size_t bytes) = 0;
  // After this nobody can write the region. Fails while a writable mapping exists anywhere.
  virtual absl::Status seal(const FileDescriptor& region) = 0;
  virtual absl::StatusOr<Mapping> map(const FileDescriptor& region, std::size_t bytes, Access access) = 0;
};

// ---- tensors -----------------------------------------------------------------------------------

// A borrowed row-major view. `stride` is the distance between rows, in elements.
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  float* f32(std::int64_t row = 0) const { return reinterpret_cast<float*>(data) + row * stride; }
};

// A matrix as a model file stores it: `rows` output features of `cols` input features, row after row.
struct WeightSource {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* data = nullptr;
};

// The same matrix in the backend's own layout, inside the weights region.
struct Weight {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* data = nullptr;
};

// KV memory: block-major, blocks padded to 64 bytes; within a block [layer][K, V][kv_head][token in block][head_dim].
// kQ8_0 has int8 there, and behind the tokens of a head their scales in f16, [token in block][ceil(head_dim / 32)]:
// one for every 32 dimensions, the last for what is left.
struct KvLayout {
  DType dtype = DType::kF16;
  std::int32_t num_layers = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t block_tokens = 16;

  std::int32_t scales_per_row() const { return dtype == DType::kQ8_0 ? (head_dim + 31) / 32 : 0; }
  std::int64_t row_bytes() const {  // of one head and token, scales included
    const std::int64_t element = dtype == DType::kF32 ? 4 : dtype == DType::kQ8_0 ? 1 : 2;
    return head_dim * element + 2 * scales_per_row();
  }
  std::int64_t head_bytes() const { return block_tokens * row_bytes(); }
  std::int64_t plane_bytes() const { return num_kv_heads * head_bytes(); }  // K or V of one layer
  std::int64_t block_bytes() const { return (2 * num_layers * plane_bytes() + 63) / 64 * 64; }
};

struct KvView {
  std::byte* base = nullptr;
  KvLayout layout;
};

// The rows of one sequence in a ragged batch. Its row i is the token at absolute position
// `position + i` and attends to positions [0, position + i].
struct SequenceRows {
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t position = 0;
  std::int32_t first_block = 0;  // offset of its block table in the batch's flat block list
};

// ---- op arguments ------------------------------------------------------------------------------

struct EmbedArgs {
  Weight table;                        // [vocab, hidden]
  std::span<const TokenId> tokens;     // [rows]
  Tensor out;                          // [rows, hidden]
};

// hidden += delta (when delta.data is set); out = hidden / rms(hidden) * weight.
struct RmsNormArgs {
  Tensor hidden;              // [rows, width], updated in place
  Tensor delta;               // [rows, width] or empty
  const float* weight = nullptr;  // [width]
  float epsilon = 1e-5F;
  Tensor out;                 // [rows, width]; may be empty: then only the addition is done
};

// y = x * W^T (+ bias), for one to three matrices that read the same x; their outputs stand side by side in y.
struct LinearArgs {
  Tensor x;                           // [rows, cols]
  std::span<const Weight> weights;    // 1..3, equal cols
  const float* bias = nullptr;        // [sum of rows] or null
  Tensor y;                           // [rows, sum of weight rows]
};

enum class RopeStyle : std::uint8_t { kHalf, kInterleaved };  // HF's rotate_half; GGUF llama's neighbouring pairs

// cos_sin[row] = cos(position * f_0), sin(position * f_0), cos(position * f_1), ... in float32.
struct RopeAnglesArgs {
  std::span<const std::int32_t> positions;   // [rows]
  std::span<const float> inverse_frequency;  // [rotary_dim / 2]
  float scale = 1.0F;                        // multiplies cos and sin
  Tensor cos_sin;                            // [rows, rotary_dim]
};

// Rotates the query and key heads of qkv in place.
struct RopeArgs {
  Tensor qkv;       // [rows, (num_heads + 2 * num_kv_heads) * head_dim]
  Tensor cos_sin;   // [rows, rotary_dim]
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  RopeStyle style = RopeStyle::kHalf;
};

// Stores the key and value heads of qkv at their positions in the sequences' blocks.
struct KvWriteArgs {
  Tensor qkv;
  std::int32_t num_heads = 0;
  KvView kv;
  std::int32_t layer = 0;
  std::span<const SequenceRows> sequences;
  std::span<const BlockId> blocks;
};

// Causal attention over paged KV; keys are read in order of absolute position.
struct AttentionArgs {
  Tensor qkv;                 // queries are its first num_heads * head_dim columns
  std::int32_t num_heads = 0;
  KvView kv;
  std::int32_t layer = 0;
  float scale = 1.0F;
  std::span<const SequenceRows> sequences;
  std::span<const BlockId> blocks;
  Tensor out;                 // [rows, num_heads * head_dim]
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh };

// out = activation(gate) * up, with gate and up side by side.
struct GateArgs {
  Tensor gate_up;  // [rows, 2 * width]
  Activation activation = Activation::kSilu;
  Tensor out;      // [rows, width]
};

struct GatherRowsArgs {
  Tensor x;
  std::span<const std::int32_t> rows;
  Tensor out;  // [rows.size(), x.cols]
};

struct SampleArgs {
  Tensor logits;                      // [rows.size(), vocab]; may be overwritten
  std::span<const SampleRow> rows;    // host memory
  std::span<Sampled> out;             // host memory; valid after synchronize()
};

// ---- streams and the backend -------------------------------------------------------------------

// An ordered queue of ops with a share of the compute; owned and used by one lane's thread.
class Stream {
 public:
  virtual ~Stream() = default;
  // Takes effect at the next op; a pre-made layout on a GPU, the active part of the team on a CPU.
  virtual absl::Status set_share(Share share) = 0;
  virtual absl::Status synchronize() = 0;
};

struct BackendInfo {
  std::string name;          // "cpu"
  std::string description;   // kernels chosen and why, one line for the log
  std::string kernels;       // which, in a word: other kernels may round differently
  std::int32_t num_units = 0;  // shares are counted in these
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;
  virtual MemorySource& memory() = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> open_stream(Share share) = 0;
  // Private device memory for activations, 64-byte aligned, freed with the pointer.
  using Buffer = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;
  virtual absl::StatusOr<Buffer> allocate(std::size_t bytes) = 0;

  // Layout of a weight in device memory; `packed_bytes` is a multiple of 64. A norm or bias vector needs none.
  virtual absl::StatusOr<std::size_t> packed_bytes(const WeightSource& source) const = 0;
  virtual void pack_weight(const WeightSource& source, std::byte* destination, Stream& stream) = 0;

  virtual void copy(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Order across streams and processes: counter := value once all earlier work on the stream is done;
  // and: later work starts once counter >= value. The counter lies in memory both sides map.
  virtual void signal(Stream& stream, std::atomic<std::uint64_t>& counter, std::uint64_t value) = 0;
  virtual void wait(Stream& stream, const std::atomic<std::uint64_t>& counter, std::uint64_t value) = 0;
  // Runs `body`, whose ops have shapes fixed by `key`. A backend may capture it once and replay it.
  virtual void launch(Stream& stream, std::uint64_t key, const std::function<void()>& body) = 0;

  virtual void embed(const EmbedArgs& args, Stream& stream) = 0;
  virtual void rms_norm(const RmsNormArgs& args, Stream& stream) = 0;
  virtual void linear(const LinearArgs& args, Stream& stream) = 0;
  virtual void rope_angles(const RopeAnglesArgs& args, Stream& stream) = 0;
  virtual void rope(const RopeArgs& args, Stream& stream) = 0;
  virtual void kv_write(const KvWriteArgs& args, Stream& stream) = 0;
  virtual void attention(const AttentionArgs& args, Stream& stream) = 0;
  virtual void gate(const GateArgs& args, Stream& stream) = 0;
  virtual void gather_rows(const GatherRowsArgs& args, Stream& stream) = 0;
  virtual void sample(const SampleArgs& args, Stream& stream) = 0;
};

}  // namespace tandem
