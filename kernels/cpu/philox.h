// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random
// words as a function of a counter and a key, so that a draw needs no state that a restart could lose.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::cpu {

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// The draw of (seed, position): uniform in (0, 1), never either end.
constexpr double uniform(std::uint64_t seed, std::uint64_t position) {
  const std::array<std::uint32_t, 4> random =
      philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0},
             {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = std::uint64_t{random[0] >> 6} << 26 | random[1] >> 6;  // 52
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace tandem::cpu
