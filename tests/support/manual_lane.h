// A lane without a thread: its steps run when the test says so, on the test's thread. For tests that drive the
// scheduler turn by turn and look at the plans it sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "support/fake_kv.h"
#include "support/fake_steps.h"
#include "tandem/transport.h"

namespace tandem::test {

class ManualLane {
 public:
  explicit ManualLane(FakeKv& kv) : steps_(kv) {}

  // The scheduler's end; this lane outlives it.
  std::unique_ptr<LanePort> port() { return std::make_unique<Port>(*this); }

  // Plans that are sent and not answered, oldest first.
  const std::deque<Plan>& plans() const { return plans_; }
  bool idle() const { return plans_.empty(); }
  // Every plan since the last forget(), in order.
  const std::vector<Plan>& sent() const { return sent_; }
  void forget() { sent_.clear(); }

  // Runs the oldest plan; the scheduler finds the result in its next turn.
  void answer() {
    Result& result = results_.emplace_back();
    steps_.run(plans_.front(), result);
    plans_.pop_front();
  }

 private:
  class Port final : public LanePort {
   public:
    explicit Port(ManualLane& lane) : lane_(lane) {}
    absl::Status send(const Plan& plan) override {
      lane_.plans_.push_back(plan);
      lane_.sent_.push_back(plan);
      return absl::OkStatus();
    }
    absl::StatusOr<bool> poll(Result& result) override {
      if (lane_.results_.empty()) return false;
      result = std::move(lane_.results_.front());
      lane_.results_.pop_front();
      return true;
    }

   private:
    ManualLane& lane_;
  };

  FakeSteps steps_;
  std::deque<Plan> plans_;
  std::vector<Plan> sent_;
  std::deque<Result> results_;
};

}  // namespace tandem::test
