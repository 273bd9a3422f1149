// Counts what a test binary allocates; link support/allocations.cpp, which replaces operator new and delete.
#pragma once

#include <cstdint>

namespace tandem::test {

std::uint64_t allocations_of_process();
std::uint64_t allocations_of_thread();      // the calling one
std::uint64_t bytes_allocated_by_thread();  // the calling one

}  // namespace tandem::test
