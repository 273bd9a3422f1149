#include "process/supervisor.h"

#include <gtest/gtest.h>

#include <array>

#include "process/fake_host.h"

namespace tandem {
namespace {

constexpr LaneId kPrefill{0};
constexpr LaneId kDecode{1};

class SupervisorTest : public testing::Test {
 protected:
  Supervisor& make(std::uint32_t num_lanes = 2) {
    SupervisorOptions options;
    options.num_lanes = num_lanes;
    options.on_fatal = [this] { ++fatal_; };
    options.now_us = [this] { return now_; };
    options.keep_starting = [this] { return keep_starting_; };
    supervisor_ = std::make_unique<Supervisor>(options, host_, page_);
    return *supervisor_;
  }
  // Without the thread: the test calls turn().
  Supervisor& serve(std::uint32_t num_lanes = 2) {
    Supervisor& supervisor = make(num_lanes);
    EXPECT_TRUE(supervisor.launch(listener_).ok());
    for (std::uint32_t lane = 0; lane < num_lanes; ++lane) host_.child(LaneId{lane}, 1).ready = true;
    supervisor.turn();
    for (std::uint32_t lane = 0; lane < num_lanes; ++lane) supervisor.lane_taken(LaneId{lane}, 1);
    supervisor.turn();
    listener_.take();
    return supervisor;
  }
  void end(LaneId lane, std::uint64_t epoch, ProcessEnd::Cause cause = ProcessEnd::Cause::kSignal) {
    host_.child(lane, epoch).end = ProcessEnd{cause, "signal 9"};
  }
  void turn_after(std::int64_t us) {
    now_ += us;
    supervisor_->turn();
  }
  PlacementDone keep_answer() {
    return [this](const absl::Status& status) { answers_.push_back(status); };
  }

  std::int64_t now_ = 1'000'000'000;
  int fatal_ = 0;
  bool keep_starting_ = true;
  FakeHost host_;
  FakeListener listener_;
  ControlPage page_;
  std::vector<absl::Status> answers_;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, starts_a_worker_per_lane_and_reports_them) {
  Supervisor& supervisor = make();
  host_.ready_at_once = true;
  ASSERT_TRUE(supervisor.launch(listener_).ok());
  ASSERT_TRUE(supervisor.start().ok());
  EXPECT_EQ(listener_.take(), (std::vector<std::string>{"up 0.1", "up 1.1"}));
  supervisor.stop();
  EXPECT_TRUE(host_.owner_is_ended);
  EXPECT_TRUE(host_.child(kPrefill, 1).dropped);
  const auto lanes = supervisor.lanes();
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0].name, "prefill");
  EXPECT_EQ(lanes[1].name, "decode");
}

TEST_F(SupervisorTest, names_the_only_lane_fused) {
  Supervisor& supervisor = serve(1);
  ASSERT_EQ(supervisor.lanes().size(), 1U);
  EXPECT_EQ(supervisor.lanes()[0].name, "fused");
  EXPECT_TRUE(supervisor.lanes()[0].up);
}

TEST_F(SupervisorTest, a_first_worker_that_exits_ends_the_start) {
  Supervisor& supervisor = make();
  ASSERT_TRUE(supervisor.launch(listener_).ok());
  host_.child(kPrefill, 1).ready = true;
  end(kDecode, 1, ProcessEnd::Cause::kExit);
  const absl::Status status = supervisor.start();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_NE(status.message().find("worker 1 could not start"), std::string::npos) << status;
}

TEST_F(SupervisorTest, a_start_is_given_up_when_told_so) {
  Supervisor& supervisor = make();
  ASSERT_TRUE(supervisor.launch(listener_).ok());
  keep_starting_ = false;
  EXPECT_TRUE(absl::IsCancelled(supervisor.start()));
}

TEST_F(SupervisorTest, the_owners_end_while_starting_is_named) {
  Supervisor& supervisor = make();
  ASSERT_TRUE(supervisor.launch(listener_).ok());
  host_.owner_end = "signal 9 (Killed)";
  const absl::Status status = supervisor.start();
  EXPECT_NE(status.message().find("the memory owner ended (signal 9 (Killed))"), std::string::npos) << status;
}

TEST_F(SupervisorTest, the_owners_end_is_the_instances) {
  Supervisor& supervisor = serve();
  host_.owner_end = "signal 9 (Killed)";
  supervisor.turn();
  supervisor.turn();
  EXPECT_EQ(fatal_, 1);
  EXPECT_EQ(supervisor.trouble(), "the memory owner ended (signal 9 (Killed))");
}

TEST_F(SupervisorTest, a_lane_that_cannot_be_served_is_no_end_while_the_other_serves) {
  Supervisor& supervisor = serve();
  end(kDecode, 1);
  supervisor.turn();
  host_.next_start = absl::ResourceExhaustedError("no process left");
  for (int i = 0; i < 100; ++i) turn_after(10'000'000);
  EXPECT_EQ(supervisor.trouble(), "");
  EXPECT_EQ(fatal_, 0);
  EXPECT_FALSE(supervisor.lanes()[1].up);
  host_.next_start = absl::OkStatus();
  turn_after(10'000'000);
  host_.child(kDecode, page_.lanes[1].epoch).ready = true;
  supervisor.turn();
  EXPECT_EQ(listener_.told.back(), "up 1." + std::to_string(page_.lanes[1].epoch.load()));
}

TEST_F(SupervisorTest, nobody_served_for_long_is_the_end) {
  Supervisor& supervisor = serve();
  end(kPrefill, 1);
  end(kDecode, 1);
  supervisor.turn();
  host_.next_start = absl::InternalError("no such device");
  for (int i = 0; i < 59; ++i) turn_after(1'000'000);
  EXPECT_EQ(supervisor.trouble(), "");
  for (int i = 0; i < 3; ++i) turn_after(1'000'000);
  EXPECT_EQ(fatal_, 1);
  EXPECT_NE(supervisor.trouble().find("no such device"), std::string::npos) << supervisor.trouble();
}

TEST_F(SupervisorTest, a_stopped_owner_is_no_end_however_long) {
  Supervisor& supervisor = serve();
  end(kPrefill, 1);
  end(kDecode, 1);
  host_.owner_stopped = true;
  for (int i = 0; i < 100; ++i) turn_after(10'000'000);
  EXPECT_EQ(supervisor.trouble(), "");
  host_.owner_stopped = false;
  turn_after(100'000);
  EXPECT_TRUE(host_.has_child(kPrefill, page_.lanes[0].epoch));
}

TEST_F(SupervisorTest, kills_the_worker_that_the_scheduler_lost) {
  Supervisor& supervisor = serve();
  supervisor.kill_worker(kDecode, 1);
  EXPECT_FALSE(host_.child(kDecode, 1).killed) << "on the supervisor's thread";
  supervisor.turn();
  EXPECT_TRUE(host_.child(kDecode, 1).killed);
  EXPECT_FALSE(host_.child(kPrefill, 1).killed);
  EXPECT_EQ(listener_.take(), std::vector<std::string>{"down 1.1"});
}

TEST_F(SupervisorTest, polls_for_stopped_processes_ten_times_a_second) {
  Supervisor& supervisor = serve();
  const std::uint32_t before = host_.owner_polls;
  host_.child(kPrefill, 1).stopped = true;
  turn_after(99'999);
  EXPECT_EQ(host_.owner_polls, before);
  turn_after(1);
  EXPECT_EQ(host_.owner_polls, before + 1);
  EXPECT_TRUE(host_.child(kPrefill, 1).killed);
  supervisor.turn();
  EXPECT_EQ(host_.owner_polls, before + 1);
}

TEST_F(SupervisorTest, replaces_one_lane_after_the_other) {
  Supervisor& supervisor = serve();
  supervisor.replace({kPrefill, kDecode}, keep_answer());
  supervisor.turn();
  ASSERT_TRUE(host_.has_child(kPrefill, 2));
  EXPECT_FALSE(host_.has_child(kDecode, 2));
  host_.child(kPrefill, 2).ready = true;
  supervisor.turn();
  supervisor.lane_taken(kPrefill, 2);
  supervisor.turn();
  supervisor.turn();
  ASSERT_TRUE(host_.has_child(kDecode, 2));
  EXPECT_TRUE(answers_.empty());
  host_.child(kDecode, 2).ready = true;
  supervisor.turn();
  supervisor.lane_taken(kDecode, 2);
  supervisor.turn();
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_TRUE(answers_[0].ok()) << answers_[0];
  EXPECT_EQ(supervisor.lanes()[1].epoch, 2U);
}

TEST_F(SupervisorTest, a_replacement_that_fails_says_so_and_the_next_goes_on) {
  Supervisor& supervisor = serve();
  supervisor.replace({kPrefill}, keep_answer());
  supervisor.replace({kDecode}, keep_answer());
  supervisor.turn();
  end(kPrefill, 2, ProcessEnd::Cause::kExit);
  supervisor.turn();
  supervisor.turn();
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_TRUE(absl::IsInternal(answers_[0])) << answers_[0];
  EXPECT_TRUE(supervisor.lanes()[0].up) << "the old one serves on";
  EXPECT_TRUE(host_.has_child(kDecode, 2));
}

TEST_F(SupervisorTest, a_replacement_that_takes_too_long_is_given_up) {
  Supervisor& supervisor = serve();
  supervisor.replace({kPrefill}, keep_answer());
  supervisor.turn();
  turn_after(30'000'000);
  EXPECT_TRUE(answers_.empty());
  turn_after(1);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_TRUE(absl::IsDeadlineExceeded(answers_[0])) << answers_[0];
  EXPECT_TRUE(host_.child(kPrefill, 2).killed);
  EXPECT_FALSE(host_.child(kPrefill, 1).killed);
}

TEST_F(SupervisorTest, replacements_end_with_the_server) {
  Supervisor& supervisor = serve();
  supervisor.replace({kPrefill}, keep_answer());
  supervisor.turn();
  supervisor.replace({kDecode}, keep_answer());
  supervisor.stop_replacing();
  supervisor.turn();
  supervisor.replace({kDecode}, keep_answer());
  supervisor.replace({}, keep_answer());
  ASSERT_EQ(answers_.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsUnavailable(answers_[i])) << i << answers_[i];
  EXPECT_TRUE(answers_[3].ok()) << "nothing was asked for";
}

TEST_F(SupervisorTest, a_replacement_ends_when_the_instance_does) {
  Supervisor& supervisor = serve();
  supervisor.replace({kPrefill}, keep_answer());
  supervisor.turn();
  host_.owner_end = "signal 9";
  supervisor.turn();
  supervisor.turn();
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_TRUE(absl::IsUnavailable(answers_[0])) << answers_[0];
}

}  // namespace
}  // namespace tandem
