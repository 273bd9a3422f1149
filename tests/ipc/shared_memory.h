// Memory for ipc tests, of both kinds a ring may lie in: a shared mapping or this process' heap. And a child process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <span>

#include "base/handles.h"

namespace tandem {

enum class MemoryKind { kHeap, kShared };

// Zeroed, 64-byte aligned and exactly as large as asked for, so that a sanitizer sees the first byte beyond.
class TestMemory final {
 public:
  TestMemory(MemoryKind kind, std::size_t bytes) : size_(bytes) {
    if (kind == MemoryKind::kShared) {
      auto fd = create_memfd("test", bytes);
      mapping_ = Mapping::map(*fd, bytes, Access::kReadWrite).value();
      data_ = mapping_.data();
    } else {
      heap_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
      std::fill_n(heap_.get(), bytes, std::byte{0});
      data_ = heap_.get();
    }
  }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> heap_;
  Mapping mapping_;
  std::byte* data_ = nullptr;
  std::size_t size_;
};

// Runs `body` in a forked process; its return value is the exit code that join() reports.
class ChildProcess final {
 public:
  explicit ChildProcess(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body());
  }
  ~ChildProcess() {
    if (pid_ > 0) kill_now();
  }
  pid_t pid() const { return pid_; }
  void kill_now() {
    ::kill(pid_, SIGKILL);
    join();
  }
  int join() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

}  // namespace tandem
