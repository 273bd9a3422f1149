// What KV memory may hold beside f32, as distinct types so that overloads pick the conversion.
#pragma once

#include <cstdint>

namespace tandem::cpu {

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

// A row of quants, and a scale for every 32 of them. Rows of floats are plain pointers.
inline constexpr int kQ8Block = 32;
struct Q8Row {
  std::int8_t* quants;
  Half* scales;
};

}  // namespace tandem::cpu
