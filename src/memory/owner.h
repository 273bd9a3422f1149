// The owner: the resident process that holds regions. It makes bytes and hands out their descriptors over a unix
// socket; it maps nothing, launches nothing, and no peer's error or death ends it. One thread, one epoll loop.
// The connection is the lock: the first to attach a region fills it, others wait until it is published; when
// the filler's connection closes first, the next waiter fills a fresh region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/handles.h"
#include "tandem/backend.h"

namespace tandem {

struct OwnerOptions {
  // Where to listen: "@name" in the abstract namespace, which leaves nothing behind, or a path. Not used when
  // `listener` is set: a bound, listening descriptor of bind_owner_socket().
  std::string address;
  FileDescriptor listener;
  // run_owner() returns ok when this descriptor becomes readable (an eventfd, a pipe's end). -1: none.
  int stop_fd = -1;
  // Asked about once a second; false makes run_owner() return ok. Empty: never.
  std::function<bool()> keep_running;
  // One line for the log: peers that come, go or err, regions made and dropped. May be empty.
  std::function<void(std::string_view line)> report;
  std::size_t max_region_bytes = std::size_t{1} << 42;
};

// Beyond these a peer is told ResourceExhausted.
inline constexpr std::size_t kMaxOwnerPeers = 64;
inline constexpr std::size_t kMaxOwnerRegions = 256;

// A listening SOCK_SEQPACKET socket. A path whose owner died is taken over; one whose owner answers is AlreadyExists.
absl::StatusOr<FileDescriptor> bind_owner_socket(const std::string& address);

// Serves until told to stop. Errors are those of start-up only: the address, epoll.
absl::Status run_owner(OwnerOptions options, MemorySource& source);

}  // namespace tandem
