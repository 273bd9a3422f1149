// Lanes that answer on the scheduler's own thread, so that a test decides what comes back: the right answer, a changed
// one, or the worker's death. A supervisor in miniature starts the next worker of a lane whose worker has died.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "sched/scheduler.h"
#include "support/fake_steps.h"
#include "support/heap_instance.h"

namespace tandem::test {

class InlineLanes {
 public:
  // What becomes of a step: the result may be changed in place; false, the worker dies and nothing comes back.
  using Tamper = std::function<bool(const Plan&, Result&)>;

  InlineLanes(HeapInstance& instance, Tamper tamper) : instance_(instance), tamper_(std::move(tamper)) {}
  ~InlineLanes() { stop(); }
  // Starts the workers of lanes 0 to num_lanes - 1 and goes on to replace those that die.
  void start(Scheduler& scheduler, std::uint32_t num_lanes) {
    scheduler_ = &scheduler;
    for (std::uint32_t lane = 0; lane < num_lanes; ++lane) up(LaneId{lane}, 1);
    thread_ = std::thread([this] { replace(); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void give_up(LaneId lane, std::uint64_t epoch) {
    ++given_up;
    died(lane, epoch);
  }

  std::atomic<int> given_up{0};  // by the scheduler
  std::atomic<int> deaths{0};    // of workers, those included

 private:
  class Port final : public LanePort {
   public:
    Port(InlineLanes& lanes, LaneId lane, std::uint64_t epoch)
        : lanes_(lanes), lane_(lane), epoch_(epoch), steps_(lanes.instance_.kv) {}
    absl::Status send(const Plan& plan) override {
      if (dead_) return absl::OkStatus();  // into a ring that nobody reads any more
      Result result;
      steps_.begin_use(plan);
      steps_.run(plan, result);
      steps_.end_use(plan);
      if (!lanes_.tamper_(plan, result)) {
        dead_ = true;
        lanes_.died(lane_, epoch_);
        return absl::OkStatus();
      }
      results_.push_back(std::move(result));
      lanes_.instance_.control->scheduler.ring();
      return absl::OkStatus();
    }
    absl::StatusOr<bool> poll(Result& result) override {
      if (results_.empty()) return false;
      result = std::move(results_.front());
      results_.pop_front();
      return true;
    }

   private:
    InlineLanes& lanes_;
    const LaneId lane_;
    const std::uint64_t epoch_;
    FakeSteps steps_;
    std::deque<Result> results_;
    bool dead_ = false;
  };

  void up(LaneId lane, std::uint64_t epoch) {
    scheduler_->lane_up(lane, std::make_unique<Port>(*this, lane, epoch), epoch);
  }
  void died(LaneId lane, std::uint64_t epoch) {
    ++deaths;
    {
      const std::lock_guard lock(mutex_);
      dead_.emplace_back(lane, epoch);
    }
    changed_.notify_all();
  }
  void replace() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !dead_.empty(); });
      if (stopping_) return;
      const auto [lane, epoch] = dead_.front();
      dead_.pop_front();
      lock.unlock();
      scheduler_->lane_down(lane, epoch);
      up(lane, epoch + 1);
      lock.lock();
    }
  }

  HeapInstance& instance_;
  const Tamper tamper_;
  Scheduler* scheduler_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<LaneId, std::uint64_t>> dead_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::test
