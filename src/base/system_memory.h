// How much memory this process may still take: what the machine has available, or what its control groups
// (base/cgroup.h) have left, whichever is less.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tandem {

// `root`: where /proc and /sys are, for tests.
std::uint64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace tandem
