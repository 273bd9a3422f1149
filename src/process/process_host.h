// What supervision needs from the machine: workers to start and an owner to watch. Supervisor and LaneProcesses see
// processes through these interfaces only, so that a test drives them with fake processes and a fake clock. The
// supervisor's thread alone uses them. OwnerHost (owner_host.h) is the real one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "process/child_process.h"
#include "tandem/transport.h"

namespace tandem {

// A worker process. Dropping it kills and reaps it.
class WorkerProcess {
 public:
  virtual ~WorkerProcess() = default;
  virtual int pid() const = 0;
  virtual int end_fd() const = 0;  // readable once the process has ended; -1: there is none to wait on
  virtual void kill() = 0;
  // How it ended, if it has. Does not wait; asked no more after that.
  virtual std::optional<ProcessEnd> reap() = 0;
  // Whether somebody has stopped it, other than a debugger. To be called every StopDetector::kPollEveryUs.
  virtual bool poll_stopped() = 0;
};

struct StartedWorker {
  std::unique_ptr<WorkerProcess> process;
  std::unique_ptr<LanePort> port;       // its first result says that the worker is ready
  std::function<void()> close_channel;  // tells the worker to end
};

class ProcessHost {
 public:
  virtual ~ProcessHost() = default;

  // Starts the worker of the lane's epoch. ResourceExhausted: the machine has no process, memory or descriptor left for
  // it now.
  virtual absl::StatusOr<StartedWorker> start_worker(LaneId lane, std::uint64_t epoch) = 0;
  // The worker of that epoch has ended: its channel is given up.
  virtual void forget_worker(LaneId lane, std::uint64_t epoch) = 0;

  // How the owner ended, if it has.
  virtual std::optional<std::string> owner_ended() = 0;
  virtual int owner_end_fd() const = 0;  // readable once it has
  // To be called every StopDetector::kPollEveryUs.
  virtual void poll_owner() = 0;
  // Unavailable while the owner is stopped: no worker can start.
  virtual absl::Status check_owner() const = 0;
  // Whether what a call has failed with comes from an owner that lives and does not answer for now.
  virtual bool owner_may_answer_later(const absl::Status& status) = 0;
  virtual void end_owner() = 0;
};

}  // namespace tandem
