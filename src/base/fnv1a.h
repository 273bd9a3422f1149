// FNV-1a, a 64-bit hash for names, checksums and fingerprints: short, the same on every machine, and no protection
// against anybody who looks for two inputs of one hash. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tandem {

inline constexpr std::uint64_t kFnv1aStart = 0xCBF29CE484222325ULL;

// Each takes the hash of what came before, so that calls can be chained.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = kFnv1aStart) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

constexpr std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = kFnv1aStart) {
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3ULL;
  return hash;
}

// The eight bytes of `number`, the lowest first.
constexpr std::uint64_t fnv1a_number(std::uint64_t number, std::uint64_t hash) {
  for (unsigned shift = 0; shift < 64; shift += 8) hash = (hash ^ (number >> shift & 0xFFU)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace tandem
