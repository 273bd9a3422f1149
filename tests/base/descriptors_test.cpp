#include "base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <vector>

#include "base/handles.h"

namespace tandem {
namespace {

class DescriptorLimit : public testing::Test {
 protected:
  DescriptorLimit() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimit() override { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void set_soft(rlim_t soft) {
    rlimit limit = before_;
    limit.rlim_cur = soft;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  rlimit before_ = {};
};

TEST_F(DescriptorLimit, is_raised_as_far_as_allowed_and_never_lowered) {
  set_soft(200);
  EXPECT_EQ(raise_descriptor_limit(100).limit, 200U);
  EXPECT_EQ(raise_descriptor_limit(250).limit, 250U);
  EXPECT_EQ(raise_descriptor_limit(UINT64_MAX).limit, before_.rlim_max);
  rlimit now = {};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
  EXPECT_EQ(now.rlim_max, before_.rlim_max);
}

TEST_F(DescriptorLimit, open_descriptors_are_counted) {
  const std::uint64_t before = raise_descriptor_limit(0).open;
  EXPECT_GE(before, 3U);
  std::vector<FileDescriptor> more;
  for (int i = 0; i < 10; ++i) more.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(raise_descriptor_limit(0).open, before + 10);
}

}  // namespace
}  // namespace tandem
