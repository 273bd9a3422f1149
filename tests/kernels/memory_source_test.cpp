#include "kernels/cpu/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace tandem {
namespace {

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

TEST(MemfdSource, maps_no_more_than_there_is) {
  cpu::MemfdSource source;
  const FileDescriptor region = source.allocate("small", 4096).value();
  EXPECT_FALSE(source.map(region, 8192, Access::kRead).ok());
}

}  // namespace
}  // namespace tandem
