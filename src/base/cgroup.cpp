#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {
namespace {

namespace fs = std::filesystem;

// v1 writes "no limit" as the largest multiple of the page size.
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 60;

struct Mount {
  std::string root;   // the group that is mounted
  std::string point;  // where
  std::string type;   // "cgroup2", "cgroup"
  std::string controllers;
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in{std::string(text)};
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

bool lists(std::string_view list, std::string_view word) { return std::ranges::count(split(list, ','), word) > 0; }

// mountinfo writes blanks and backslashes as "\040".
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// Lines of /proc/self/mountinfo: "36 35 98:0 ROOT POINT options [optional fields] - TYPE source SUPER_OPTIONS".
std::vector<Mount> cgroup_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> fields = split(line, ' ');
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 5 || fields.end() - dash < 4) continue;
    if (dash[1] != "cgroup2" && dash[1] != "cgroup") continue;
    mounts.push_back({unescaped(fields[3]), unescaped(fields[4]), dash[1], dash[3]});
  }
  return mounts;
}

// The process' group below the mounted one; the mounted one itself where the process is not below it, as in a container
// that sees the path of its host.
std::string below(std::string_view group, std::string_view mounted) {
  if (group.find("/..") != std::string_view::npos) return {};  // outside of this namespace
  if (mounted == "/") return std::string(group);
  if (group == mounted || !group.starts_with(mounted) || group[mounted.size()] != '/') return {};
  return std::string(group.substr(mounted.size()));
}

// The directories of the process' group and of those above it that are mounted, for one controller.
std::vector<fs::path> groups_of(const fs::path& root, const std::vector<Mount>& mounts, std::string_view type,
                                std::string_view controller) {
  std::vector<fs::path> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "4:memory:/path"; v2: "0::/path"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string listed = line.substr(first + 1, second - first - 1);
    if (type == "cgroup2" ? !listed.empty() : !lists(listed, controller)) continue;
    for (const Mount& mount : mounts) {
      if (mount.type != type || (type == "cgroup" && !lists(mount.controllers, controller))) continue;
      const fs::path top = root / fs::path(mount.point).relative_path();
      fs::path group = (top / fs::path(below(line.substr(second + 1), mount.root)).relative_path()).lexically_normal();
      if (!group.has_filename()) group = group.parent_path();
      for (;; group = group.parent_path()) {
        groups.push_back(group);
        if (group == top.lexically_normal() || !group.has_relative_path()) break;
      }
      break;
    }
  }
  return groups;
}

// "max", a negative number, no file: not limited.
std::optional<std::uint64_t> read_number(const fs::path& file) {
  std::int64_t number = -1;
  if (!(std::ifstream(file) >> number) || number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

std::uint64_t stat_value(const fs::path& file, std::string_view wanted) {
  std::ifstream in(file);
  std::string key;
  for (std::uint64_t value = 0; in >> key >> value;) {
    if (key == wanted) return value;
  }
  return 0;
}

template <class T>
void lower(std::optional<T>& least, T value) {
  least = std::min(least.value_or(value), value);
}

struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* cached[2];  // in memory.stat: what of the usage are cached files
};
constexpr MemoryFiles kMemoryV2{"memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr MemoryFiles kMemoryV1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

void apply_memory(const fs::path& group, const MemoryFiles& files, CgroupLimits& limits) {
  std::optional<std::uint64_t> limit;
  // v2's memory.high does not kill, but holds up whoever goes beyond it.
  for (const char* name : {files.limit, "memory.high"}) {
    const auto bytes = read_number(group / name);
    if (bytes && *bytes < kUnlimited) lower(limit, *bytes);
  }
  if (!limit) return;
  lower(limits.memory_bytes, *limit);
  std::uint64_t used = read_number(group / files.usage).value_or(0);
  for (const char* key : files.cached) used -= std::min(used, stat_value(group / "memory.stat", key));
  lower(limits.memory_left_bytes, *limit - std::min(used, *limit));
}

void apply_quota(std::optional<std::uint64_t> quota_us, std::optional<std::uint64_t> period_us, CgroupLimits& limits) {
  if (!quota_us || !period_us || *quota_us == 0 || *period_us == 0) return;
  lower(limits.cpus, static_cast<double>(*quota_us) / static_cast<double>(*period_us));
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  const std::vector<Mount> mounts = cgroup_mounts(root);
  for (const fs::path& group : groups_of(root, mounts, "cgroup2", "")) {
    apply_memory(group, kMemoryV2, limits);
    std::int64_t quota_us = -1;  // "max" is no number
    std::int64_t period_us = -1;
    if (std::ifstream(group / "cpu.max") >> quota_us >> period_us && quota_us > 0 && period_us > 0) {
      apply_quota(static_cast<std::uint64_t>(quota_us), static_cast<std::uint64_t>(period_us), limits);
    }
  }
  for (const fs::path& group : groups_of(root, mounts, "cgroup", "memory")) apply_memory(group, kMemoryV1, limits);
  for (const fs::path& group : groups_of(root, mounts, "cgroup", "cpu")) {
    apply_quota(read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us"), limits);
  }
  return limits;
}

}  // namespace tandem
