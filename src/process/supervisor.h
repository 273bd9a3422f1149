// Starts the owner and the workers, watches them, and puts a new worker in the place of one that ended or that is to be
// replaced. One thread; the scheduler is told of every lane that comes or goes. The owner's end is the end of the
// instance; while it is stopped, workers that ended are not replaced.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/handles.h"
#include "base/metrics.h"
#include "ipc/channel.h"
#include "ipc/control_page.h"
#include "memory/owner_client.h"
#include "process/child_process.h"
#include "process/owner_watch.h"
#include "process/worker_state.h"
#include "sched/scheduler.h"
#include "tandem/placement.h"

namespace tandem {

struct SupervisorOptions {
  std::uint32_t num_lanes = 2;
  ChannelSizes channel;
  // Arguments that start the worker of a lane's given life: {"worker", "--lane", ...}.
  std::function<std::vector<std::string>(LaneId, std::uint64_t epoch)> worker_arguments;
  std::chrono::milliseconds start_timeout{30 * 60 * 1000};  // until a worker's first ready
  std::string owner_address;
  Gauge owner_up;  // 0 while the owner is stopped
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
  // Any thread: starts a new worker for each of the lanes, one lane after the other. The old one serves until the new
  // one is ready and ends then. `done` is told, on this object's thread or the caller's.
  void replace(const std::vector<LaneId>& lanes, PlacementDone done);
  // Fails what replace() has not finished, and whatever comes later. Any thread.
  void stop_replacing();
  std::vector<LaneReport> lanes() const;  // any thread
  // Empty while all is well or being put right; otherwise what is broken for good.
  std::string trouble() const;

 private:
  struct Replacement {
    std::deque<LaneId> lanes;  // still to be replaced
    PlacementDone done;
    std::optional<std::int64_t> deadline_us;  // once it is its turn
    std::optional<std::uint64_t> target_epoch;  // of the first lane, once its new worker is on its way
  };

  absl::Status start_worker(LaneId lane);
  void run();
  void watch_once(int timeout_ms);
  void watch_lane(LaneId lane);
  void restart(LaneId lane);
  void check_ready(LaneId lane, WorkerLife& life);
  void end_superseded(WorkerState& worker);
  void poll_for_stopped();
  void handle_exit(LaneId lane, WorkerLife life, const ProcessEnd& end);
  void advance_replacement();
  void finish_replacement(const absl::Status& status);
  void fail(std::string why);
  void wake();

  const SupervisorOptions options_;
  OwnerWatch owner_;
  ControlPage& control_;
  Scheduler* scheduler_ = nullptr;  // set by start()
  std::int64_t next_poll_us_ = 0;  // for stopped processes
  FileDescriptor wake_event_;
  std::atomic<bool> stopping_{false};

  // Guards trouble_, replacements_, and workers_ where other threads look: this object's thread alone adds and ends
  // lives, under the mutex, and so reads them without.
  mutable std::mutex mutex_;
  std::vector<WorkerState> workers_;
  std::deque<Replacement> replacements_;
  bool replacing_stopped_ = false;
  std::string trouble_;
  std::thread thread_;
};

}  // namespace tandem
