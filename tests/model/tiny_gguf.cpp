#include "model/tiny_gguf.h"

#include <algorithm>
#include <utility>

namespace tandem::testing {

TinyGguf::TinyGguf() {
  entries = {
      {"general.architecture", text("llama")},
      {"llama.block_count", u32(2)},
      {"llama.context_length", u32(128)},
      {"llama.embedding_length", u32(32)},
      {"llama.feed_forward_length", u32(64)},
      {"llama.attention.head_count", u32(2)},
      {"llama.attention.head_count_kv", u32(1)},
      {"llama.attention.layer_norm_rms_epsilon", f32(1e-5F)},
      {"llama.rope.freq_base", f32(20000.0F)},
      {"tokenizer.ggml.model", text("gpt2")},
      {"tokenizer.ggml.pre", text("smollm")},
      {"tokenizer.ggml.tokens", texts({"<|endoftext|>", "<|im_end|>", "a", "b", "ab", "<tool>"})},
      {"tokenizer.ggml.token_type", i32s({3, 3, 1, 1, 1, 4})},
      {"tokenizer.ggml.merges", texts({"a b"})},
      {"tokenizer.ggml.bos_token_id", u32(0)},
      {"tokenizer.ggml.eos_token_id", u32(1)},
      {"tokenizer.chat_template", text("{{ messages }}")},
  };
  add("token_embd.weight", {32, 6}, 8);
  add("output_norm.weight", {32}, 0);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    add(layer + "attn_norm.weight", {32}, 0);
    add(layer + "attn_q.weight", {32, 32}, 3);
    add(layer + "attn_k.weight", {32, 16}, 2);
    add(layer + "attn_v.weight", {32, 16}, 1);
    add(layer + "attn_output.weight", {32, 32}, 30);
    add(layer + "ffn_norm.weight", {32}, 0);
    add(layer + "ffn_gate.weight", {32, 64}, 3);
    add(layer + "ffn_up.weight", {32, 64}, 3);
    add(layer + "ffn_down.weight", {64, 32}, 0);
  }
}

void TinyGguf::add(std::string name, std::vector<std::uint64_t> dims, std::uint32_t type) {
  std::uint64_t values = 1;
  for (const std::uint64_t dim : dims) values *= dim;
  const std::uint64_t bytes = type == 0    ? values * 4
                              : type == 8  ? values / 32 * 34
                              : type == 2  ? values / 32 * 18
                              : type == 3  ? values / 32 * 20
                              : type == 6  ? values / 32 * 22
                              : type == 12 ? values / 256 * 144
                              : type == 14 ? values / 256 * 210
                                           : values * 2;
  const std::uint64_t end = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  const auto num_dims = static_cast<std::uint32_t>(dims.size());
  tensors.push_back({std::move(name), std::move(dims), type, bytes, (end + 31) / 32 * 32, num_dims});
}

void TinyGguf::set(std::string_view key, std::string value) {
  for (Entry& entry : entries) {
    if (entry.key == key) {
      entry.value = std::move(value);
      return;
    }
  }
  entries.push_back({std::string(key), std::move(value)});
}

void TinyGguf::drop(std::string_view key) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

TinyGguf::Tensor& TinyGguf::tensor(std::string_view name) {
  for (Tensor& each : tensors) {
    if (each.name == name) return each;
  }
  return tensors.front();
}

std::string TinyGguf::header() const {
  std::string out = magic + raw(version) + raw<std::uint64_t>(tensors.size()) + raw<std::uint64_t>(entries.size());
  for (const Entry& entry : entries) out += raw_text(entry.key) + entry.value;
  for (const Tensor& tensor : tensors) {
    out += raw_text(tensor.name) + raw(tensor.num_dims);
    for (const std::uint64_t dim : tensor.dims) out += raw(dim);
    out += raw(tensor.type) + raw(tensor.offset);
  }
  return out;
}

std::string TinyGguf::file() const {
  std::string out = header();
  out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
  std::uint64_t size = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes < (1U << 20) && tensor.offset < (1U << 20)) size = std::max(size, tensor.offset + tensor.bytes);
  }
  for (std::uint64_t i = 0; i < size; ++i) out += static_cast<char>(i % 251);
  return out;
}

}  // namespace tandem::testing
