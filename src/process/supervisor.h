// The thread that watches the processes of an instance: the owner, and each lane's workers (LaneProcesses). It waits
// for a process to end or for a message, gives every lane its turn, and carries out replacements one after the other.
// Other threads leave messages. The owner's end is the end of the instance; a worker's is not, however often it
// happens, while another lane serves or while what failed may pass.
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
#include "ipc/control_page.h"
#include "process/lane_listener.h"
#include "process/lane_processes.h"
#include "process/process_host.h"
#include "tandem/placement.h"

namespace tandem {

struct SupervisorOptions {
  std::uint32_t num_lanes = 2;
  LaneTimings timings;
  std::int64_t give_up_us = 60'000'000;  // no lane for so long, and kFailedStarts failed: the server ends
  std::vector<Gauge> lane_up;            // by lane: 1 while a worker serves; may be empty
  std::function<void()> on_fatal;        // the instance cannot go on; trouble() says why
  std::function<std::int64_t()> now_us;  // empty: the steady clock
  // Asked while the first workers start; false: start() gives up. Empty: never.
  std::function<bool()> keep_starting;
};

class Supervisor final {
 public:
  static constexpr std::uint32_t kFailedStarts = 5;  // in a row

  // `host` and `control` outlive the supervisor.
  Supervisor(SupervisorOptions options, ProcessHost& host, ControlPage& control);
  ~Supervisor();

  // Starts the workers, once, before start(). `listener` outlives the supervisor.
  absl::Status launch(LaneListener& listener);
  // Waits until each worker is ready and watches them from then on. The error says which one could not start.
  absl::Status start();
  // One look at everything, on the caller's thread. start() and the thread call it again and again.
  void turn();
  // Ends workers and owner and joins the thread.
  void stop();

  // Any thread, each of these. Kills the worker of that epoch, so that it is replaced.
  void kill_worker(LaneId lane, std::uint64_t epoch);
  // The listener uses that worker now.
  void lane_taken(LaneId lane, std::uint64_t epoch);
  // Starts a new worker for each of the lanes, one lane after the other. The old one serves until the new one is ready
  // and ends then. `done` is told, on the supervisor's thread or the caller's.
  void replace(const std::vector<LaneId>& lanes, PlacementDone done);
  // Fails what replace() has not finished, and whatever comes later.
  void stop_replacing();
  std::vector<LaneReport> lanes() const;
  // Empty while all is well or being put right; otherwise what is broken for good.
  std::string trouble() const;

 private:
  struct Message {
    enum class Kind : std::uint8_t { kKill, kTaken } kind;
    LaneId lane;
    std::uint64_t epoch;
  };
  struct Replacement {
    std::deque<LaneId> lanes;  // still to be replaced
    PlacementDone done;
    std::optional<std::int64_t> deadline_us;  // once it is its turn
    std::optional<std::uint64_t> target_epoch;  // of the first lane, once its new worker is on its way
  };

  std::int64_t now_us() const;
  void run();
  void wait(int timeout_ms);
  void post(Message message);
  void handle_messages();
  void check_lasting(std::int64_t now_us);
  void advance_replacement(std::int64_t now_us);
  absl::Status advance_lane(LaneProcesses& lane, Replacement& replacement, std::int64_t now_us);
  void finish_replacement(const absl::Status& status);
  void publish();
  void fail(std::string why);
  void wake();

  const SupervisorOptions options_;
  ProcessHost& host_;
  ControlPage& control_;
  FileDescriptor wake_event_;
  std::atomic<bool> stopping_{false};

  // The supervisor's thread alone (the caller's until start() returns).
  std::vector<std::unique_ptr<LaneProcesses>> lanes_;
  std::optional<Replacement> replacement_;  // the one that is carried out
  std::int64_t next_poll_us_ = 0;  // for stopped processes
  std::int64_t last_up_us_ = 0;  // when a lane was last seen up

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Message> inbox_;
  std::deque<Replacement> replacements_;  // that wait
  bool replacing_stopped_ = false;
  std::vector<LaneReport> reports_;
  std::string trouble_;

  std::thread thread_;
};

}  // namespace tandem
