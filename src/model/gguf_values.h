// The value types of GGUF metadata: their sizes, their names, and loads from unaligned bytes. Used by gguf.cpp and
// gguf_parse.cpp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "model/gguf.h"

namespace tandem {

// Bytes of one value; 0 for a string, nothing for a code that is no type (an array's included).
inline std::optional<std::uint64_t> value_bytes(std::uint32_t code) {
  constexpr std::array<std::uint8_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (code >= kBytes.size() || code == static_cast<std::uint32_t>(GgufType::kArray)) return std::nullopt;
  return kBytes[code];
}

inline std::string_view type_name(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                       "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline std::string_view view_text(std::span<const std::byte> bytes, std::uint64_t offset, std::uint64_t length) {
  return {reinterpret_cast<const char*>(bytes.data()) + offset, static_cast<std::size_t>(length)};
}

}  // namespace tandem
