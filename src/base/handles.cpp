#include "base/handles.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "fmt/core.h"

namespace tandem {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<FileDescriptor> FileDescriptor::duplicate() const {
  const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return errno_status("duplicate a descriptor");
  return FileDescriptor(fd);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

absl::StatusOr<Mapping> Mapping::map(const FileDescriptor& fd, std::size_t size, Access access) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return errno_status("stat a region");
  if (info.st_size < 0 || static_cast<std::size_t>(info.st_size) < size) {
    return absl::OutOfRangeError(fmt::format("region holds {} bytes, {} were expected", info.st_size, size));
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, size, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return errno_status(fmt::format("map a region of {} bytes", size));
  return Mapping(static_cast<std::byte*>(data), size);
}

absl::StatusOr<Mapping> Mapping::map_file(const char* path) {
  const FileDescriptor fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(fmt::format("open {}", path));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return errno_status(fmt::format("stat {}", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(fmt::format("{} is not a regular file", path));
  if (info.st_size == 0) return absl::InvalidArgumentError(fmt::format("{} is empty", path));
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return errno_status(fmt::format("map {}", path));
  return Mapping(static_cast<std::byte*>(data), size);
}

absl::StatusOr<FileDescriptor> create_memfd(std::string_view name, std::size_t size) {
  FileDescriptor fd(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_status(fmt::format("create memory region {}", name));
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return errno_status(fmt::format("size memory region {} to {} bytes", name, size));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_status(fmt::format("fix the size of memory region {}", name));
  }
  return fd;
}

absl::Status seal_memfd_read_only(const FileDescriptor& fd) {
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0) return errno_status("seal a region read-only");
  return absl::OkStatus();
}

}  // namespace tandem
