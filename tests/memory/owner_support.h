// An owner in a thread of the test, at an address of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/status.h"
#include "kernels/cpu/memory.h"
#include "memory/owner.h"
#include "memory/owner_client.h"

namespace tandem {

inline std::string test_address() {
  static std::atomic<int> count{0};
  return "@tandem-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

class OwnerThread final {
 public:
  explicit OwnerThread(std::string address = test_address(), std::size_t max_region_bytes = std::size_t{1} << 40)
      : address_(std::move(address)), stop_(::eventfd(0, EFD_CLOEXEC)) {
    OwnerOptions options;
    options.address = address_;
    options.stop_fd = stop_.get();
    options.max_region_bytes = max_region_bytes;
    thread_ = std::thread([this, options = std::move(options)]() mutable {
      cpu::MemfdSource source;
      status_ = run_owner(std::move(options), source);
    });
  }
  ~OwnerThread() { EXPECT_TRUE(stop().ok()) << message(status_); }

  const std::string& address() const { return address_; }
  OwnerClient client() const { return OwnerClient::connect(address_, std::chrono::seconds(5)).value(); }
  absl::Status stop() {
    if (thread_.joinable()) {
      const std::uint64_t one = 1;
      EXPECT_EQ(::write(stop_.get(), &one, sizeof(one)), 8);
      thread_.join();
    }
    return status_;
  }

 private:
  const std::string address_;
  FileDescriptor stop_;
  absl::Status status_;
  std::thread thread_;
};

constexpr std::chrono::milliseconds kPatience{5000};

}  // namespace tandem
