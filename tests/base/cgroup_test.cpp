#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/system_memory.h"
#include "fmt/format.h"

namespace tandem {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// A made-up /proc and /sys.
class Cgroup : public testing::Test {
 protected:
  Cgroup() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-cgroup-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 100 kB\nMemAvailable: 33554432 kB\nBuffers: 1 kB\n");
  }
  ~Cgroup() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void use_v2(const std::string& group, const std::string& mounted = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo",
          "22 1 0:20 / / rw - overlay overlay rw\n"
          "31 22 0:26 " +
              mounted + " /sys/fs/cgroup rw,nosuid,nodev shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void use_v1(const std::string& group, const std::string& mounted = "/") {
    write("proc/self/cgroup", "9:name=systemd:/x\n4:memory:" + group + "\n3:cpu,cpuacct:" + group + "\n0::/\n");
    write("proc/self/mountinfo",
          "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
          "32 31 0:29 " +
              mounted + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:30 " + mounted +
              " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
              "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }
  CgroupLimits read() const { return read_cgroup_limits(root_); }

  std::filesystem::path root_;
};

TEST_F(Cgroup, nothing_is_limited_without_groups) {
  for (const char* group : {"", "0::/a/b\n", "nonsense\n\n:::::\n"}) {
    write("proc/self/cgroup", group);
    EXPECT_FALSE(read().cpus || read().memory_bytes || read().memory_left_bytes);
    EXPECT_EQ(available_memory_bytes(root_), 32 * kGiB);
  }
  write("proc/self/mountinfo", "1 2 3\n- - - -\n31 22 0:26 / /sys/fs/cgroup rw -\n31 22 0:26 / /a - cgroup2\n");
  EXPECT_FALSE(read().memory_bytes);
}

TEST_F(Cgroup, v2_limits_at_the_own_path) {
  use_v2("/system.slice/tandem.service");
  write("sys/fs/cgroup/system.slice/tandem.service/memory.max", "1073741824\n");
  write("sys/fs/cgroup/system.slice/tandem.service/memory.current", "524288000\n");
  write("sys/fs/cgroup/system.slice/tandem.service/memory.stat",
        "anon 1\nfile 300000000\ninactive_file 100000000\nactive_file 200000000\n");
  write("sys/fs/cgroup/system.slice/tandem.service/cpu.max", "250000 100000\n");
  EXPECT_EQ(read().memory_bytes, kGiB);
  EXPECT_EQ(read().memory_left_bytes, kGiB - 224288000) << "cached files can be had back";
  EXPECT_EQ(read().cpus, 2.5);
  EXPECT_EQ(available_memory_bytes(root_), kGiB - 224288000);
}

TEST_F(Cgroup, v2_limits_at_the_root_of_a_container) {
  use_v2("/");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.current", "1048576\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(read().memory_left_bytes, kGiB - kMiB);
  EXPECT_FALSE(read().cpus);
}

TEST_F(Cgroup, the_tightest_group_counts) {
  use_v2("/a/b/c");
  write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  write("sys/fs/cgroup/a/memory.current", "4190109696\n");  // 100 MiB left: others use it, too
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/a/b/c/memory.max", "1073741824\n");
  write("sys/fs/cgroup/a/b/c/memory.current", "0\n");
  write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  EXPECT_EQ(read().memory_bytes, kGiB);
  EXPECT_EQ(read().memory_left_bytes, 100 * kMiB);
  EXPECT_EQ(read().cpus, 1.5);
  write("sys/fs/cgroup/a/b/memory.high", "536870912\n");
  EXPECT_EQ(read().memory_bytes, kGiB / 2);
}

TEST_F(Cgroup, a_group_over_its_limit_has_nothing_left) {
  use_v2("/a");
  write("sys/fs/cgroup/a/memory.max", "1000\n");
  write("sys/fs/cgroup/a/memory.current", "5000\n");
  EXPECT_EQ(read().memory_left_bytes, 0U);
  EXPECT_EQ(available_memory_bytes(root_), 0U);
  write("sys/fs/cgroup/a/memory.stat", "inactive_file 9000\n");  // read a moment later
  EXPECT_EQ(read().memory_left_bytes, 1000U);
}

TEST_F(Cgroup, v1_limits_of_a_container) {
  for (const char* mounted : {"/", "/docker/abc"}) {  // with a cgroup namespace, and as its host sees it
    use_v1(std::string(mounted) == "/" ? "/" : "/docker/abc", mounted);
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "314572800\n");
    write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\ntotal_active_file 0\n");
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(read().memory_left_bytes, kGiB - 200 * kMiB) << mounted;
    EXPECT_EQ(read().cpus, 0.5) << mounted;
  }
}

TEST_F(Cgroup, v1_limits_of_nested_groups) {
  use_v1("/outer/inner");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  write("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "0\n");
  write("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu,cpuacct/outer/inner/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/outer/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read().memory_bytes, 2 * kGiB);
  EXPECT_FALSE(read().cpus);
}

TEST_F(Cgroup, a_path_that_cannot_be_seen_stands_for_the_mounted_group) {
  for (const char* group : {"/../../other", "/docker/of-the-host", "/"}) {
    use_v2(group, "/kubepods/pod1");
    write("sys/fs/cgroup/memory.max", "1073741824\n");
    write("sys/fs/cgroup/memory.current", "0\n");
    EXPECT_EQ(read().memory_left_bytes, kGiB) << group;
  }
}

TEST_F(Cgroup, mount_points_may_hold_blanks) {
  write("proc/self/cgroup", "0::/a b\n");
  write("proc/self/mountinfo", "31 22 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
  write("my groups/a b/cpu.max", "300000 100000\n");
  EXPECT_EQ(read().cpus, 3.0);
}

TEST(SystemMemory, is_that_of_this_machine) {
  EXPECT_GT(available_memory_bytes(), kMiB);
  EXPECT_LT(available_memory_bytes(), std::uint64_t{1} << 50);
}

}  // namespace
}  // namespace tandem
