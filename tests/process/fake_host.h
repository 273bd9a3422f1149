// A machine for supervision tests: processes that start, get ready, end and stop as the test says, an owner that the
// test stops, and a log of what the lanes' listener was told.
#pragma once

#include <signal.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/core.h"
#include "process/lane_listener.h"
#include "process/process_host.h"

namespace tandem {

struct FakeChild {
  bool ready = false;    // says hello at the next poll
  bool stopped = false;  // by somebody
  bool killed = false;
  bool unkillable = false;  // a kill does not end it
  bool closed = false;      // its channel was
  bool dropped = false;     // its WorkerProcess was
  bool forgotten = false;
  std::optional<ProcessEnd> end;
};

class FakeHost final : public ProcessHost {
 public:
  absl::StatusOr<StartedWorker> start_worker(LaneId lane, std::uint64_t epoch) override {
    ++starts;
    if (!next_start.ok()) return next_start;
    auto child = std::make_shared<FakeChild>();  // shared by the map, the process and its port
    child->ready = ready_at_once;
    children[{lane.value, epoch}] = child;
    StartedWorker started;
    started.process = std::make_unique<Process>(child);
    started.port = std::make_unique<Port>(child);
    started.close_channel = [child] { child->closed = true; };
    return started;
  }
  void forget_worker(LaneId lane, std::uint64_t epoch) override { child(lane, epoch).forgotten = true; }
  std::optional<std::string> owner_ended() override { return owner_end; }
  int owner_end_fd() const override { return -1; }
  void poll_owner() override { ++owner_polls; }
  absl::Status check_owner() const override {
    return owner_stopped ? absl::UnavailableError("the owner is stopped") : absl::OkStatus();
  }
  bool owner_may_answer_later(const absl::Status& /*status*/) override { return owner_stopped; }
  void end_owner() override { owner_is_ended = true; }

  FakeChild& child(LaneId lane, std::uint64_t epoch) { return *children.at({lane.value, epoch}); }
  bool has_child(LaneId lane, std::uint64_t epoch) const { return children.count({lane.value, epoch}) > 0; }

  std::map<std::pair<std::uint32_t, std::uint64_t>, std::shared_ptr<FakeChild>> children;
  absl::Status next_start;
  bool ready_at_once = false;
  bool owner_stopped = false;
  bool owner_is_ended = false;
  std::optional<std::string> owner_end;
  std::uint32_t starts = 0;
  std::uint32_t owner_polls = 0;

 private:
  class Process final : public WorkerProcess {
   public:
    explicit Process(std::shared_ptr<FakeChild> child) : child_(std::move(child)) {}
    ~Process() override { child_->dropped = true; }
    int pid() const override { return 42; }
    int end_fd() const override { return -1; }
    void kill() override {
      child_->killed = true;
      if (!child_->unkillable && !child_->end)
        child_->end = ProcessEnd{ProcessEnd::Cause::kSignal, "signal 9 (Killed)"};
    }
    std::optional<ProcessEnd> reap() override { return child_->end; }
    bool poll_stopped() override { return child_->stopped; }

   private:
    std::shared_ptr<FakeChild> child_;
  };
  class Port final : public LanePort {
   public:
    explicit Port(std::shared_ptr<FakeChild> child) : child_(std::move(child)) {}
    absl::Status send(const Plan& /*plan*/) override { return absl::OkStatus(); }
    absl::StatusOr<bool> poll(Result& /*result*/) override { return child_->ready; }

   private:
    std::shared_ptr<FakeChild> child_;
  };
};

// Keeps what it was told as lines, "up 0.1": lane 0, epoch 1.
class FakeListener final : public LaneListener {
 public:
  void lane_up(LaneId lane, std::uint64_t epoch, std::unique_ptr<LanePort> port) override {
    ports.push_back(std::move(port));
    told.push_back(fmt::format("up {}.{}", lane.value, epoch));
  }
  void lane_down(LaneId lane, std::uint64_t epoch) override {
    told.push_back(fmt::format("down {}.{}", lane.value, epoch));
  }
  void lane_stuck(LaneId lane, std::uint64_t epoch) override {
    told.push_back(fmt::format("stuck {}.{}", lane.value, epoch));
  }
  std::vector<std::string> take() { return std::exchange(told, {}); }

  std::vector<std::string> told;
  std::vector<std::unique_ptr<LanePort>> ports;
};

}  // namespace tandem
