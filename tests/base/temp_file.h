// A file with the given text under the test's temporary folder, removed with the object.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace tandem {

class TempFile final {
 public:
  explicit TempFile(std::string_view text) : path_(testing::TempDir() + "/tandem-XXXXXX") {
    const int fd = ::mkstemp(path_.data());
    const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    EXPECT_TRUE(written) << path_;
    if (fd >= 0) ::close(fd);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tandem
