// The 16-bit floats KV memory may hold, as distinct types so that overloads pick the conversion.
#pragma once

#include <cstdint>

namespace tandem::cpu {

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

}  // namespace tandem::cpu
