#include "process/lane_processes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "process/fake_host.h"

namespace tandem {
namespace {

using Told = std::vector<std::string>;

class LaneProcessesTest : public testing::Test {
 protected:
  static constexpr LaneId kLane{1};

  FakeChild& child(std::uint64_t epoch) { return host_.child(kLane, epoch); }
  // Starts the first worker and lets the listener use it.
  void serve() {
    ASSERT_TRUE(lane_.launch(now_).ok());
    child(1).ready = true;
    lane_.turn(now_);
    lane_.set_serving(1);
    ASSERT_EQ(listener_.take(), Told{"up 1.1"});
  }
  void end(std::uint64_t epoch, ProcessEnd::Cause cause = ProcessEnd::Cause::kSignal) {
    child(epoch).end = ProcessEnd{cause, cause == ProcessEnd::Cause::kExit ? "exit code 1" : "signal 9"};
  }
  void turn_after(std::int64_t us) { lane_.turn(now_ += us); }

  std::int64_t now_ = 1'000'000'000;
  std::atomic<std::uint64_t> epoch_{0};
  FakeHost host_;
  FakeListener listener_;
  LaneTimings timings_;
  LaneProcesses lane_{kLane, host_, listener_, epoch_, timings_};
};

TEST_F(LaneProcessesTest, tells_of_a_worker_once_it_is_ready) {
  ASSERT_TRUE(lane_.launch(now_).ok());
  EXPECT_EQ(epoch_, 1U);
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{});
  EXPECT_FALSE(lane_.up());
  EXPECT_FALSE(lane_.settled());
  child(1).ready = true;
  lane_.turn(now_);
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"up 1.1"});
  EXPECT_TRUE(lane_.up());
  EXPECT_TRUE(lane_.settled());
  lane_.set_serving(1);
  LaneReport report;
  lane_.fill_report(report);
  EXPECT_TRUE(report.up);
  EXPECT_EQ(report.epoch, 1U);
  EXPECT_EQ(report.restarts, 0U);
}

TEST_F(LaneProcessesTest, goes_on_with_the_epochs_of_an_earlier_server) {
  epoch_ = 7;
  ASSERT_TRUE(lane_.launch(now_).ok());
  EXPECT_TRUE(host_.has_child(kLane, 8));
}

TEST_F(LaneProcessesTest, replaces_a_worker_that_ended_at_once) {
  serve();
  end(1);
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"down 1.1"});
  EXPECT_TRUE(child(1).closed);
  EXPECT_TRUE(child(1).forgotten);
  EXPECT_FALSE(lane_.up());
  lane_.turn(now_);
  ASSERT_TRUE(host_.has_child(kLane, 2));
  child(2).ready = true;
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"up 1.2"});
  lane_.set_serving(2);
  LaneReport report;
  lane_.fill_report(report);
  EXPECT_EQ(report.epoch, 2U);
  EXPECT_EQ(report.restarts, 1U);
}

TEST_F(LaneProcessesTest, tries_again_with_growing_pauses_until_the_shortage_is_over) {
  serve();
  end(1);
  lane_.turn(now_);
  host_.next_start = absl::ResourceExhaustedError("no process left");
  lane_.turn(now_);
  EXPECT_EQ(host_.starts, 2U);
  std::int64_t pause_us = timings_.first_retry_us;
  for (std::uint32_t failures = 1; failures < 12; ++failures) {
    EXPECT_EQ(lane_.failed_starts(), failures);
    EXPECT_EQ(lane_.last_failure(), "no process left");
    turn_after(pause_us - 1);
    EXPECT_EQ(host_.starts, failures + 1) << "not before the pause is over";
    turn_after(1);
    EXPECT_EQ(host_.starts, failures + 2);
    pause_us = std::min(2 * pause_us, timings_.longest_retry_us);
  }
  EXPECT_EQ(pause_us, timings_.longest_retry_us);
  host_.next_start = absl::OkStatus();
  turn_after(pause_us);
  child(epoch_).ready = true;
  lane_.turn(now_);
  EXPECT_TRUE(lane_.up());
  EXPECT_EQ(lane_.failed_starts(), 0U);
  EXPECT_FALSE(lane_.first_start_rejected());
}

TEST_F(LaneProcessesTest, counts_no_failure_while_the_owner_does_not_answer) {
  serve();
  end(1);
  lane_.turn(now_);
  host_.owner_stopped = true;
  for (int i = 0; i < 20; ++i) turn_after(timings_.owner_retry_us);
  EXPECT_EQ(host_.starts, 1U);
  EXPECT_EQ(lane_.failed_starts(), 0U);
  host_.owner_stopped = false;
  turn_after(timings_.owner_retry_us);
  EXPECT_EQ(host_.starts, 2U);
}

TEST_F(LaneProcessesTest, a_start_that_ends_under_a_stopped_owner_is_no_failure) {
  serve();
  end(1);
  lane_.turn(now_);
  lane_.turn(now_);
  host_.owner_stopped = true;
  end(2, ProcessEnd::Cause::kExit);
  lane_.turn(now_);
  EXPECT_EQ(lane_.failed_starts(), 0U);
  EXPECT_FALSE(lane_.first_start_rejected());
}

TEST_F(LaneProcessesTest, a_first_start_that_exits_is_rejected_and_one_that_is_killed_is_not) {
  ASSERT_TRUE(lane_.launch(now_).ok());
  end(1, ProcessEnd::Cause::kSignal);
  lane_.turn(now_);
  EXPECT_FALSE(lane_.first_start_rejected());
  EXPECT_EQ(lane_.failed_starts(), 1U);
  EXPECT_EQ(listener_.take(), Told{}) << "it was never up";
  turn_after(timings_.first_retry_us);
  ASSERT_TRUE(host_.has_child(kLane, 2));
  end(2, ProcessEnd::Cause::kExit);
  lane_.turn(now_);
  EXPECT_TRUE(lane_.first_start_rejected());
}

TEST_F(LaneProcessesTest, a_later_start_that_exits_is_tried_again) {
  serve();
  end(1);
  lane_.turn(now_);
  lane_.turn(now_);
  end(2, ProcessEnd::Cause::kExit);
  lane_.turn(now_);
  EXPECT_FALSE(lane_.first_start_rejected());
  EXPECT_EQ(lane_.failed_starts(), 1U);
  turn_after(timings_.first_retry_us);
  EXPECT_TRUE(host_.has_child(kLane, 3));
}

TEST_F(LaneProcessesTest, a_start_that_takes_too_long_is_ended_and_tried_again) {
  serve();
  end(1);
  lane_.turn(now_);
  lane_.turn(now_);
  turn_after(timings_.restart_us);
  EXPECT_FALSE(child(2).killed);
  turn_after(1);
  EXPECT_TRUE(child(2).killed);
  lane_.turn(now_);
  EXPECT_EQ(lane_.failed_starts(), 1U);
  turn_after(timings_.first_retry_us);
  EXPECT_TRUE(host_.has_child(kLane, 3));
}

TEST_F(LaneProcessesTest, the_first_start_may_take_long) {
  ASSERT_TRUE(lane_.launch(now_).ok());
  turn_after(timings_.first_start_us);
  EXPECT_FALSE(child(1).killed);
  turn_after(1);
  EXPECT_TRUE(child(1).killed);
}

TEST_F(LaneProcessesTest, kills_the_epoch_that_was_lost_and_no_other) {
  serve();
  ASSERT_TRUE(lane_.replace(now_).ok());
  child(2).ready = true;
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"up 1.2"});
  lane_.kill(1);
  EXPECT_TRUE(child(1).killed);
  EXPECT_FALSE(child(2).killed) << "the one that takes over is well";
  lane_.kill(9);  // never was
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"down 1.1"});
  EXPECT_TRUE(lane_.up());
}

TEST_F(LaneProcessesTest, tells_of_a_worker_that_was_killed_and_does_not_end) {
  serve();
  child(1).unkillable = true;
  lane_.kill(1);
  EXPECT_FALSE(lane_.up());
  turn_after(timings_.reap_us);
  EXPECT_EQ(listener_.take(), Told{});
  turn_after(1);
  turn_after(1);
  EXPECT_EQ(listener_.take(), Told{"stuck 1.1"}) << "once";
  EXPECT_EQ(host_.starts, 1U) << "no other worker while it may still write";
  end(1);
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"down 1.1"});
  lane_.turn(now_);
  EXPECT_EQ(host_.starts, 2U);
}

TEST_F(LaneProcessesTest, kills_what_somebody_stopped) {
  serve();
  lane_.poll_stopped();
  EXPECT_FALSE(child(1).killed);
  child(1).stopped = true;
  lane_.poll_stopped();
  EXPECT_TRUE(child(1).killed);
}

TEST_F(LaneProcessesTest, a_replacement_takes_over_and_the_old_worker_ends) {
  serve();
  const auto target = lane_.replace(now_);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(*target, 2U);
  EXPECT_FALSE(lane_.settled());
  child(2).ready = true;
  lane_.turn(now_);
  EXPECT_EQ(listener_.take(), Told{"up 1.2"});
  EXPECT_FALSE(child(1).closed) << "it serves until the new one is used";
  lane_.set_serving(2);
  lane_.turn(now_);
  EXPECT_TRUE(child(1).closed);
  turn_after(timings_.end_grace_us);
  EXPECT_FALSE(child(1).killed);
  turn_after(1);
  EXPECT_TRUE(child(1).killed);
  lane_.turn(now_);
  EXPECT_TRUE(child(1).dropped);
  EXPECT_TRUE(child(1).forgotten);
  EXPECT_EQ(listener_.take(), Told{}) << "a worker that was replaced goes silently";
  EXPECT_TRUE(lane_.settled());
  EXPECT_TRUE(lane_.outlook(2).ok());
  LaneReport report;
  lane_.fill_report(report);
  EXPECT_EQ(report.restarts, 0U);
}

TEST_F(LaneProcessesTest, a_replacement_that_ends_leaves_the_old_worker_serving) {
  serve();
  ASSERT_TRUE(lane_.replace(now_).ok());
  EXPECT_TRUE(lane_.outlook(2).ok());
  end(2, ProcessEnd::Cause::kExit);
  lane_.turn(now_);
  EXPECT_TRUE(lane_.up());
  EXPECT_EQ(lane_.failed_starts(), 0U);
  const absl::Status outlook = lane_.outlook(2);
  EXPECT_TRUE(absl::IsInternal(outlook));
  EXPECT_NE(outlook.message().find("exit code 1"), std::string::npos) << outlook;
  EXPECT_NE(outlook.message().find("the old one serves on"), std::string::npos) << outlook;
  EXPECT_EQ(listener_.take(), Told{});
}

TEST_F(LaneProcessesTest, a_replacement_that_is_given_up_is_killed) {
  serve();
  lane_.abandon_replacement();
  EXPECT_FALSE(child(1).killed);
  ASSERT_TRUE(lane_.replace(now_).ok());
  lane_.abandon_replacement();
  EXPECT_TRUE(child(2).killed);
  EXPECT_FALSE(child(1).killed);
}

TEST_F(LaneProcessesTest, replacing_a_lane_that_is_down_waits_for_the_worker_that_comes_anyway) {
  serve();
  end(1);
  lane_.turn(now_);
  const auto target = lane_.replace(now_);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(*target, 2U);
  EXPECT_EQ(host_.starts, 1U);
  lane_.turn(now_);
  EXPECT_EQ(*lane_.replace(now_), 2U) << "that one is on its way";
  host_.owner_stopped = true;
  EXPECT_TRUE(absl::IsUnavailable(lane_.replace(now_).status()));
}

TEST_F(LaneProcessesTest, ends_all_its_processes) {
  serve();
  ASSERT_TRUE(lane_.replace(now_).ok());
  lane_.end();
  EXPECT_TRUE(child(1).dropped);
  EXPECT_TRUE(child(2).dropped);
}

// Whatever happens to its processes, a lane that is left alone serves again within the longest pause and one start.
TEST_F(LaneProcessesTest, serves_again_after_any_misfortune) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  serve();
  for (int round = 0; round < 300; ++round) {
    for (int event = 0; event < 5; ++event) {
      const std::uint64_t newest = epoch_;
      FakeChild* const victim = host_.has_child(kLane, newest) ? &child(newest) : nullptr;
      switch (random() % 7) {
        case 0:
          if (victim) end(newest, ProcessEnd::Cause::kSignal);
          break;
        case 1:
          if (victim) end(newest, ProcessEnd::Cause::kExit);
          break;
        case 2:
          if (victim) victim->stopped = true;
          break;
        case 3: host_.owner_stopped = random() % 2 == 0; break;
        case 4: host_.next_start = random() % 2 == 0 ? absl::ResourceExhaustedError("full") : absl::OkStatus(); break;
        case 5: (void)lane_.replace(now_); break;
        default: lane_.kill(newest); break;
      }
      turn_after(static_cast<std::int64_t>(random() % 300'000));
      lane_.poll_stopped();
    }
    host_.owner_stopped = false;
    host_.next_start = absl::OkStatus();
    host_.ready_at_once = true;
    for (auto& [key, each] : host_.children) each->ready = true, each->stopped = false;
    turn_after(timings_.longest_retry_us);
    for (int i = 0; i < 4; ++i) lane_.turn(now_);
    ASSERT_TRUE(lane_.up()) << "round " << round;
    lane_.set_serving(epoch_);
    turn_after(0);
    turn_after(timings_.end_grace_us + 1);
    turn_after(0);
    ASSERT_TRUE(lane_.settled()) << "round " << round;
    host_.ready_at_once = false;
  }
  // The listener was told of each worker's end at most once, and only of workers that were up.
  std::map<std::string, int> ups, downs;
  for (const std::string& line : listener_.told) {
    const auto space = line.find(' ');
    ++(line.starts_with("up") ? ups : downs)[line.substr(space)];
  }
  for (const auto& [name, count] : downs) {
    EXPECT_EQ(count, 1) << name;
    EXPECT_TRUE(name == " 1.1" || ups.count(name) == 1) << name;
  }
}

}  // namespace
}  // namespace tandem
