// Writes a GGUF file of a tiny llama model that opens as it is, from parts that a test may spoil one at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::testing {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string raw_text(std::string_view text) { return raw<std::uint64_t>(text.size()) + std::string(text); }

struct TinyGguf {
  struct Entry {
    std::string key;
    std::string value;  // type code and payload
  };
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  // fastest first
    std::uint32_t type = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
    std::uint32_t num_dims = 0;
  };

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::vector<Entry> entries;
  std::vector<Tensor> tensors;

  static std::string u32(std::uint32_t value) { return raw<std::uint32_t>(4) + raw(value); }
  static std::string i32(std::int32_t value) { return raw<std::uint32_t>(5) + raw(value); }
  static std::string u64(std::uint64_t value) { return raw<std::uint32_t>(10) + raw(value); }
  static std::string f32(float value) { return raw<std::uint32_t>(6) + raw(value); }
  static std::string boolean(std::uint8_t value) { return raw<std::uint32_t>(7) + raw(value); }
  static std::string text(std::string_view value) { return raw<std::uint32_t>(8) + raw_text(value); }
  static std::string array(std::uint32_t type, std::uint64_t count, std::string_view payload) {
    return raw<std::uint32_t>(9) + raw(type) + raw(count) + std::string(payload);
  }
  static std::string texts(const std::vector<std::string>& values) {
    std::string payload;
    for (const std::string& value : values) payload += raw_text(value);
    return array(8, values.size(), payload);
  }
  static std::string i32s(const std::vector<std::int32_t>& values) {
    std::string payload;
    for (const std::int32_t value : values) payload += raw(value);
    return array(5, values.size(), payload);
  }

  // Two layers, hidden 32, 2 heads of 16 over 1 key/value head, feed-forward 64, 6 tokens; tied embeddings.
  TinyGguf();

  void add(std::string name, std::vector<std::uint64_t> dims, std::uint32_t type);
  void set(std::string_view key, std::string value);
  void drop(std::string_view key);
  Tensor& tensor(std::string_view name);

  // Everything before the tensors' bytes.
  std::string header() const;
  // The file, which ends with its last tensor's last byte. Byte i of the data is i modulo 251.
  std::string file() const;
};

}  // namespace tandem::testing
