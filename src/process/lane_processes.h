// The processes of one lane: starts a worker, tells the listener when it is ready and when it has ended, starts the
// next one, and replaces a worker while it serves. A state machine without a thread or a clock: the supervisor's thread
// calls turn() and passes the time. It decides nothing about the instance: whether a lane that cannot be served is the
// end of the server is the supervisor's question.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "process/lane_listener.h"
#include "process/process_host.h"
#include "tandem/placement.h"

namespace tandem {

struct LaneTimings {
  std::int64_t first_start_us = 30LL * 60 * 1'000'000;  // until the first ready: it may fill the weights
  std::int64_t restart_us = 60'000'000;  // until a later one is ready: the weights are in memory
  std::int64_t end_grace_us = 1'000'000;  // for a replaced worker to end by itself
  std::int64_t reap_us = 10'000'000;  // from SIGKILL to "it does not end"
  std::int64_t first_retry_us = 200'000;  // pause after a failed start; doubles with each
  std::int64_t longest_retry_us = 10'000'000;
  std::int64_t owner_retry_us = 50'000;  // while the owner does not answer
};

class LaneProcesses final {
 public:
  // `epoch` is the lane's counter in the control page, which outlives servers. Everything outlives this object.
  LaneProcesses(LaneId lane, ProcessHost& host, LaneListener& listener, std::atomic<std::uint64_t>& epoch,
                LaneTimings timings = {});

  // Starts the first worker.
  absl::Status launch(std::int64_t now_us);
  // Does what is due. Never waits for a process.
  void turn(std::int64_t now_us);
  // Kills what somebody has stopped. To be called every StopDetector::kPollEveryUs.
  void poll_stopped();
  // The listener uses the worker of `epoch` now, and no earlier one.
  void set_serving(std::uint64_t epoch);
  // Kills the worker of `epoch`, if it is still there.
  void kill(std::uint64_t epoch);

  // Starts a worker beside the one that serves. Returns its epoch; where none serves, that of the one to come.
  absl::StatusOr<std::uint64_t> replace(std::int64_t now_us);
  // Kills a replacement that is not ready yet.
  void abandon_replacement();
  // Why the worker of `epoch` will never serve; OK while it may.
  absl::Status outlook(std::uint64_t epoch) const;

  // A worker is ready and has not ended.
  bool up() const;
  // One worker is ready and none is on its way or on its way out.
  bool settled() const;
  // The first start was rejected by the worker itself: what it was told is wrong, or this machine.
  bool first_start_rejected() const { return first_start_rejected_; }
  std::uint64_t serving_epoch() const { return serving_epoch_; }
  std::uint32_t failed_starts() const { return failed_starts_; }  // in a row
  const std::string& last_failure() const { return last_failure_; }
  void fill_report(LaneReport& report) const;
  void append_end_fds(std::vector<int>& fds) const;
  // Kills and reaps every process.
  void end() { workers_.clear(); }

 private:
  struct Worker {
    std::uint64_t epoch = 0;
    StartedWorker started;
    std::int64_t started_us = 0;
    bool ready = false;
    bool stuck = false;  // the listener knows
    std::optional<std::int64_t> superseded_us;  // since when a later epoch serves
    std::optional<std::int64_t> killed_us;
  };

  absl::Status start(std::int64_t now_us);
  void restart(std::int64_t now_us);
  void check_ready(Worker& worker, std::int64_t now_us);
  void check_time(Worker& worker, std::int64_t now_us);
  void handle_end(Worker worker, const ProcessEnd& end, std::int64_t now_us);
  void count_failure(std::string why, std::int64_t now_us);
  void kill(Worker& worker);

  const LaneId lane_;
  ProcessHost& host_;
  LaneListener& listener_;
  std::atomic<std::uint64_t>& epoch_;
  const LaneTimings timings_;

  std::vector<Worker> workers_;  // oldest first; two while one replaces the other
  std::uint64_t serving_epoch_ = 0;  // the one that the listener uses, or used last; 0: none ever
  std::int64_t now_us_ = 0;  // of the last turn
  std::int64_t retry_at_us_ = 0;
  std::uint32_t failed_starts_ = 0;
  std::uint32_t restarts_ = 0;
  std::uint64_t failed_epoch_ = 0;  // the newest that ended before it served
  std::string last_failure_;
  bool owner_silent_ = false;  // the log says that no worker can start yet
  bool first_start_rejected_ = false;
};

}  // namespace tandem
