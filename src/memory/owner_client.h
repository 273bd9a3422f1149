// A process' connection to the owner. Calls wait for the owner's answer, but not for a stopped one's
// (DeadlineExceeded); one thread uses the object. While it fills a region the connection stays open: closing it passes
// the right to fill on. Descriptors stay good without it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/handles.h"

namespace tandem {

struct AttachedRegion {
  FileDescriptor fd;
  bool must_fill = false;  // this process fills it, unmaps it and calls publish(); others wait until then
};

// kReadOnly: nobody can ever write the region again; needs the filler's writable mapping gone. kNone: stays writable.
enum class Seal : std::uint32_t { kNone, kReadOnly };

enum class RegionState : std::uint32_t { kFilling, kReady, kSealed };

struct RegionInfo {
  std::string name;
  std::size_t bytes = 0;
  RegionState state = RegionState::kFilling;
  int filler_pid = 0;  // of the process that fills it
};

class OwnerClient final {
 public:
  static constexpr std::chrono::milliseconds kAnswerTimeout{10'000};

  // Tries until the owner is up, or `timeout` has passed or `may_come` says that it never will be (Unavailable).
  // PermissionDenied: another user listens there.
  static absl::StatusOr<OwnerClient> connect(const std::string& address, std::chrono::milliseconds timeout,
                                             const std::function<bool()>& may_come = {});

  // The region of that name, made now or by somebody earlier. Waits while another process fills it, at most
  // `timeout`; DeadlineExceeded closes the connection. InvalidArgument: it exists with another size. Unavailable,
  // here and below: the owner is gone.
  absl::StatusOr<AttachedRegion> attach(std::string_view name, std::size_t bytes, std::chrono::milliseconds timeout);
  absl::Status publish(std::string_view name, Seal seal);
  // Makes the owner forget a region; its memory goes when the last process unmaps it. FailedPrecondition while
  // another process fills it.
  absl::Status drop(std::string_view name);
  absl::StatusOr<std::vector<RegionInfo>> stat();

  // Of the owner; 0: it runs in another pid namespace.
  int peer_pid() const { return peer_pid_; }
  // Readable once the owner has closed the connection; nothing else comes unasked. -1: it is closed on this side too.
  int fd() const { return socket_.get(); }
  // Whether the owner is gone, or this connection to it. Does not wait.
  bool closed() const;

 private:
  struct Message;
  struct Answer;
  OwnerClient(FileDescriptor socket, int peer_pid) : socket_(std::move(socket)), peer_pid_(peer_pid) {}
  absl::StatusOr<Message> receive(std::string_view name, std::chrono::milliseconds timeout);
  absl::StatusOr<Answer> call(std::uint32_t verb, std::string_view name, std::uint64_t value,
                              std::chrono::milliseconds timeout);

  FileDescriptor socket_;
  int peer_pid_ = 0;
};

}  // namespace tandem
