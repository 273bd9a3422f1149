// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace tandem {

// The machine's available memory or what its control group has left, whichever is less.
std::uint64_t available_memory_bytes();

}  // namespace tandem
