#include "base/handles.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/temp_file.h"

namespace tandem {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(FileDescriptor, closes_what_it_owns_once) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    FileDescriptor fd(raw);
    FileDescriptor moved(std::move(fd));
    EXPECT_EQ(moved.get(), raw);
    EXPECT_TRUE(is_open(raw));
    FileDescriptor assigned;
    assigned = std::move(moved);
    EXPECT_FALSE(moved.valid());  // NOLINT(bugprone-use-after-move): the moved-from state is the contract
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(FileDescriptor, assignment_closes_the_old_one) {
  FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int old = fd.get();
  FileDescriptor other(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  fd = std::move(other);
  EXPECT_FALSE(is_open(old));
  EXPECT_TRUE(fd.valid());
}

TEST(FileDescriptor, release_gives_ownership_away) {
  FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const FileDescriptor owner(fd.release());
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(is_open(owner.get()));
}

TEST(FileDescriptor, a_duplicate_is_its_own_and_closes_on_exec) {
  FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto copy = fd.duplicate();
  ASSERT_TRUE(copy.ok());
  fd = FileDescriptor();
  EXPECT_TRUE(is_open(copy->get()));
  EXPECT_TRUE((::fcntl(copy->get(), F_GETFD) & FD_CLOEXEC) != 0);
  EXPECT_FALSE(FileDescriptor().duplicate().ok());
}

TEST(Region, two_mappings_see_the_same_bytes) {
  auto fd = create_memfd("test", 4096);
  ASSERT_TRUE(fd.ok()) << message(fd.status());
  const auto writer = Mapping::map(*fd, 4096, Access::kReadWrite);
  const auto reader = Mapping::map(*fd, 4096, Access::kRead);
  ASSERT_TRUE(writer.ok() && reader.ok());
  EXPECT_EQ(std::to_integer<int>(reader->data()[4095]), 0);
  writer->bytes()[4095] = std::byte{7};
  EXPECT_EQ(std::to_integer<int>(reader->data()[4095]), 7);
}

TEST(Region, cannot_be_mapped_beyond_its_end_or_resized) {
  auto fd = create_memfd("test", 4096);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(Mapping::map(*fd, 4097, Access::kRead).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(::ftruncate(fd->get(), 8192), 0);
  EXPECT_NE(::ftruncate(fd->get(), 100), 0);
}

TEST(Region, sealing_waits_for_writers_and_then_holds) {
  auto fd = create_memfd("test", 4096);
  ASSERT_TRUE(fd.ok());
  {
    const auto writer = Mapping::map(*fd, 4096, Access::kReadWrite);
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE(seal_memfd_read_only(*fd).ok());
  }
  ASSERT_TRUE(seal_memfd_read_only(*fd).ok());
  EXPECT_FALSE(Mapping::map(*fd, 4096, Access::kReadWrite).ok());
  EXPECT_TRUE(Mapping::map(*fd, 4096, Access::kRead).ok());
}

TEST(Mapping, moves_leave_one_owner) {
  auto fd = create_memfd("test", 4096);
  ASSERT_TRUE(fd.ok());
  auto first = Mapping::map(*fd, 4096, Access::kReadWrite);
  ASSERT_TRUE(first.ok());
  std::byte* const data = first->data();
  Mapping second = *std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first->data(), nullptr);
  Mapping third;
  third = std::move(second);
  third.data()[0] = std::byte{1};
  EXPECT_EQ(third.size(), 4096U);
  EXPECT_EQ(second.size(), 0U);  // NOLINT(bugprone-use-after-move): the moved-from state is the contract
}

TEST(Mapping, maps_a_whole_file) {
  const TempFile file("hello");
  const auto mapping = Mapping::map_file(file.path().c_str());
  ASSERT_TRUE(mapping.ok()) << message(mapping.status());
  ASSERT_EQ(mapping->size(), 5U);
  EXPECT_EQ(std::memcmp(mapping->data(), "hello", 5), 0);
}

TEST(Mapping, what_cannot_be_mapped_is_named) {
  const TempFile empty("");
  EXPECT_EQ(message(Mapping::map_file(empty.path().c_str()).status()), empty.path() + " is empty");
  EXPECT_EQ(message(Mapping::map_file("/").status()), "/ is not a regular file");
  EXPECT_EQ(Mapping::map_file("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tandem
