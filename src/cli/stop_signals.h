// SIGTERM and SIGINT of a subcommand. StopSignals turns them into a descriptor to poll; it is made before any other
// thread, so that each thread inherits the blocked signals. EndOnSignal guards what cannot be interrupted otherwise,
// such as loading a model: while it lives, a signal ends the whole process. Main thread.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/handles.h"

namespace tandem {

// As a shell reports a command that a signal has ended.
constexpr int exit_status_of(int signal) { return 128 + signal; }

class StopSignals final {
 public:
  static absl::StatusOr<StopSignals> create();

  int fd() const { return fd_.get(); }  // readable while a signal waits to be taken
  // The number of a signal that has come. Does not wait.
  std::optional<int> take() const;

 private:
  explicit StopSignals(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

// Nothing is flushed or released: what runs under the guard has nothing to save. Child processes end with their parent
// (PR_SET_PDEATHSIG).
class EndOnSignal final {
 public:
  // `what` is for the log: "SIGTERM while <what>". `exit_status`: absent: exit_status_of(signal).
  EndOnSignal(const StopSignals& signals, std::string what, std::optional<int> exit_status = {});
  ~EndOnSignal();

 private:
  FileDescriptor over_;
  std::thread thread_;
};

}  // namespace tandem
