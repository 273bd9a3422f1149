#include "base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace tandem {

std::uint64_t available_memory_bytes() {
  std::uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::string rest;
  for (std::uint64_t kib = 0; meminfo >> key >> kib && std::getline(meminfo, rest);) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit - std::min(used, limit));
  }
  return available;
}

}  // namespace tandem
