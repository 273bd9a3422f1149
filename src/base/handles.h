// Move-only owners of operating-system handles: a file descriptor, a memory mapping. Each releases its handle in its
// destructor, so that no other code closes or unmaps anything. A handle belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace tandem {

// An open file descriptor; -1 only inside.
class FileDescriptor final {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  absl::StatusOr<FileDescriptor> duplicate() const;  // close-on-exec

 private:
  int fd_ = -1;
};

enum class Access : std::uint8_t { kRead, kReadWrite };

// A shared mapping of a descriptor's first `size` bytes; unmapped when dropped.
class Mapping final {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Fails when the descriptor is shorter than `size`, so that a later access cannot raise SIGBUS.
  static absl::StatusOr<Mapping> map(const FileDescriptor& fd, std::size_t size, Access access);
  // A private read-only view of a whole file.
  static absl::StatusOr<Mapping> map_file(const char* path);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  Mapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// An anonymous memory file of `size` bytes, close-on-exec, sealed against shrinking and growing.
absl::StatusOr<FileDescriptor> create_memfd(std::string_view name, std::size_t size);
// Makes the memory file read-only for everyone. Fails while a writable mapping exists.
absl::Status seal_memfd_read_only(const FileDescriptor& fd);

}  // namespace tandem
