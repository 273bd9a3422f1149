#include "kernels/cpu/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tandem {
namespace {

constexpr std::size_t kPageBytes = 4096;

// Whether this process has a page table entry for the page of an address: bit 63 of its word in pagemap.
bool is_mapped(const FileDescriptor& pagemap, const std::byte* address) {
  std::uint64_t word = 0;
  const auto offset = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(address) / kPageBytes * sizeof(word));
  EXPECT_EQ(::pread(pagemap.get(), &word, sizeof(word), offset), static_cast<ssize_t>(sizeof(word)));
  return word >> 63 != 0;
}

std::int64_t taken_blocks(const FileDescriptor& region) {
  struct stat info = {};
  EXPECT_EQ(::fstat(region.get(), &info), 0);
  return info.st_blocks;
}

TEST(MemfdSource, makes_regions_that_are_shared_and_can_be_sealed) {
  cpu::MemfdSource source;
  const FileDescriptor region = source.allocate("weights", 8192).value();
  {
    const Mapping writer = source.map(region, 8192, Access::kReadWrite).value();
    const Mapping reader = source.map(region, 8192, Access::kRead).value();
    writer.data()[8191] = std::byte{7};
    EXPECT_EQ(reader.data()[8191], std::byte{7});
    EXPECT_FALSE(source.seal(region).ok()) << "while a writable mapping exists";
  }
  ASSERT_TRUE(source.seal(region).ok());
  EXPECT_FALSE(source.map(region, 8192, Access::kReadWrite).ok());
  EXPECT_EQ(source.map(region, 8192, Access::kRead)->data()[8191], std::byte{7});
}

TEST(MemfdSource, maps_the_pages_that_are_there_and_takes_none) {
  constexpr std::size_t kWritten[] = {0, 1, 17, 40, 63};
  cpu::MemfdSource source;
  const FileDescriptor region = source.allocate("pool", 64 * kPageBytes).value();
  const Mapping writer = source.map(region, 64 * kPageBytes, Access::kReadWrite).value();
  const FileDescriptor pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(pagemap.valid());
  EXPECT_EQ(taken_blocks(region), 0);
  for (const std::size_t page : kWritten) writer.data()[page * kPageBytes] = std::byte{7};
  const std::int64_t taken = taken_blocks(region);
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    const Mapping late = source.map(region, 64 * kPageBytes, access).value();
    for (const std::size_t page : kWritten) EXPECT_TRUE(is_mapped(pagemap, late.data() + page * kPageBytes)) << page;
  }
  EXPECT_EQ(taken_blocks(region), taken);
}

TEST(MemfdSource, maps_no_more_than_there_is) {
  cpu::MemfdSource source;
  const FileDescriptor region = source.allocate("small", 4096).value();
  EXPECT_FALSE(source.map(region, 8192, Access::kRead).ok());
}

}  // namespace
}  // namespace tandem
