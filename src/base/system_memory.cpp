#include "base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/cgroup.h"

namespace tandem {

std::uint64_t available_memory_bytes(const std::filesystem::path& root) {
  std::uint64_t available = 0;
  std::ifstream meminfo(root / "proc/meminfo");
  std::string key;
  std::string rest;
  for (std::uint64_t kib = 0; meminfo >> key >> kib && std::getline(meminfo, rest);) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, read_cgroup_limits(root).memory_left_bytes.value_or(available));
}

}  // namespace tandem
