// The limits that control groups put on this process, as containers and service managers set them: of its own group and
// of each group above it, as far up as the mounted tree goes. The least limit counts. Cgroup v1 and v2, also side by
// side. Every call reads the files anew.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tandem {

// What is absent is not limited.
struct CgroupLimits {
  std::optional<double> cpus;  // CPU time per time
  std::optional<std::uint64_t> memory_bytes;  // of the tightest group
  // What the tightest group has left. Memory that the kernel gives back on demand, such as cached files, is left.
  std::optional<std::uint64_t> memory_left_bytes;
};

// `root`: where /proc and /sys are, for tests.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace tandem
