// How many file descriptors this process has and may have. Clients' connections are descriptors too: whoever limits
// them keeps some for everything else.
#pragma once

#include <cstdint>

namespace tandem {

struct Descriptors {
  std::uint64_t limit = 0;  // RLIMIT_NOFILE, the soft one
  std::uint64_t open = 0;
};

// Raises the soft limit to `wanted`, as far as the hard limit lets it, and never lowers it. What is in effect then.
Descriptors raise_descriptor_limit(std::uint64_t wanted);

}  // namespace tandem
