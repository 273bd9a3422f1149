// A process of this same binary, watched through a pidfd. Killed and reaped when dropped, so none outlives its
// supervisor; each child also asks the kernel to be killed when its parent dies (main.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/handles.h"

namespace tandem {

struct ProcessEnd {
  enum class Cause : std::uint8_t { kExit, kSignal };
  Cause cause = Cause::kExit;
  std::string how;  // "exit code 1", "signal 9 (Killed)"
};

class ChildProcess final {
 public:
  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // Starts this binary with these arguments (without argv[0]).
  static absl::StatusOr<ChildProcess> spawn(const std::vector<std::string>& arguments);

  bool running() const { return pid_ > 0; }
  int pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended
  bool ended() const;  // and is to be reaped with wait()
  void signal(int number) const;
  // Reaps the process if it has ended within `timeout_ms`; -1: however long that takes.
  std::optional<ProcessEnd> wait(int timeout_ms);

 private:
  void end();
  int pid_ = 0;
  FileDescriptor pidfd_;
};

}  // namespace tandem
