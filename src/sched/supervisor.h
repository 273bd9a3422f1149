// Starts the owner and the workers, watches them, and puts a new worker in the place of one that ended. One thread; the
// scheduler is told of every lane that comes or goes. The owner's end is the end of the instance.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/handles.h"
#include "ipc/channel.h"
#include "ipc/control_page.h"
#include "memory/owner_client.h"
#include "sched/child_process.h"
#include "sched/scheduler.h"

namespace tandem {

struct SupervisorOptions {
  std::uint32_t num_lanes = 2;
  ChannelSizes channel;
  // Arguments that start the worker of a lane's given life: {"worker", "--lane", ...}.
  std::function<std::vector<std::string>(LaneId, std::uint64_t epoch)> worker_arguments;
  std::chrono::milliseconds start_timeout{30 * 60 * 1000};  // until a worker's first ready
  std::function<void()> on_fatal;  // the owner has ended, or workers keep failing
};

class Supervisor final {
 public:
  // `owner` is the running owner process, or none when the instance attached to one of somebody else's; `client` is
  // this object's connection to it. `control` outlives the supervisor.
  Supervisor(SupervisorOptions options, ChildProcess owner, OwnerClient client, ControlPage& control);
  ~Supervisor();

  // Starts the workers, once, before start().
  absl::Status launch();
  // Waits until each worker has answered and watches them from then on. The error says which one could not start.
  absl::Status start(Scheduler& scheduler);
  // Ends workers and owner and joins the thread.
  void stop();

  // Any thread: ends a lane's process, so that it is replaced.
  void kill_lane(LaneId lane);
  // Empty while all is well or being put right; otherwise what is broken for good.
  std::string trouble() const;

 private:
  struct Worker {
    ChildProcess process;
    Mapping channel;
    std::unique_ptr<LanePort> port;  // until it has said that it is ready
    std::uint64_t epoch = 0;
    std::int64_t started_us = 0;
    std::int64_t retry_at_us = 0;  // when not running: not before this
    std::uint32_t failures = 0;  // starts in a row that never got ready
    bool ready = false;
    bool again = false;  // an earlier life has ended here
  };

  absl::Status start_worker(LaneId lane);
  void run();
  void watch_once(int timeout_ms);
  void check_ready(LaneId lane);
  void handle_exit(LaneId lane, const std::string& how);
  void fail(std::string why);

  const SupervisorOptions options_;
  ChildProcess owner_;
  OwnerClient client_;
  ControlPage& control_;
  Scheduler* scheduler_ = nullptr;  // set by start()
  FileDescriptor stop_event_;

  mutable std::mutex mutex_;  // guards workers_' processes against kill_lane, and trouble_
  std::vector<Worker> workers_;
  std::string trouble_;
  std::thread thread_;
};

}  // namespace tandem
