#include "memory/step_clock.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

constexpr LaneId kOne{0};
constexpr LaneId kOther{kMaxLanes - 1};

TEST(StepClock, numbers_each_lanes_steps_from_where_it_left_off) {
  StepClock steps;
  EXPECT_EQ(steps.issue(kOne), 1U);
  EXPECT_EQ(steps.issue(kOne), 2U);
  steps.resume(kOther, 41);
  EXPECT_EQ(steps.completed(kOther), 41U);
  EXPECT_EQ(steps.issue(kOther), 42U);
  EXPECT_EQ(steps.issued(kOther), 42U);
  EXPECT_EQ(steps.completed(kOther), 41U);
  EXPECT_EQ(steps.issued(kOne), 2U);
}

TEST(StepClock, passes_a_mark_when_every_step_in_it_is_over) {
  StepClock steps;
  EXPECT_TRUE(steps.passed(steps.now())) << "nothing runs";
  steps.issue(kOne);
  steps.issue(kOther);
  const StepMark both = steps.now();
  const StepMark one = steps.mark({kOne, 1});
  steps.issue(kOne);  // not in the marks
  EXPECT_FALSE(steps.passed(both));
  EXPECT_FALSE(steps.passed(one));
  steps.complete(kOther, 1);
  EXPECT_FALSE(steps.passed(both));
  steps.complete(kOne, 1);
  EXPECT_TRUE(steps.passed(both));
  EXPECT_TRUE(steps.passed(one));
  EXPECT_FALSE(steps.passed(steps.now()));
  steps.complete_all(kOne);
  EXPECT_TRUE(steps.passed(steps.now()));
}

TEST(StepClock, takes_no_step_back) {
  StepClock steps;
  for (int i = 0; i < 3; ++i) steps.issue(kOne);
  steps.complete(kOne, 3);
  steps.complete(kOne, 1);
  EXPECT_EQ(steps.completed(kOne), 3U);
}

TEST(StepClockDeathTest, believes_in_no_step_that_was_not_sent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  StepClock steps;
  steps.issue(kOne);
  EXPECT_DEATH(steps.complete(kOne, 2), "only a step that was sent can be over");
  EXPECT_DEATH(static_cast<void>(steps.mark({kOne, 2})), "blocks are named by steps that were sent");
  EXPECT_DEATH(steps.resume(kOne, 9), "only while none is running");
}

TEST(StepLine, lets_things_leave_in_the_order_they_came) {
  StepClock steps;
  StepLine line;
  line.push(1, steps.now());
  EXPECT_EQ(line.pop(steps), 1U);
  steps.issue(kOne);
  steps.issue(kOther);
  line.push(2, steps.mark({kOne, 1}));
  line.push(0, steps.now());
  line.push(3, steps.mark({kOther, 1}));
  line.push(4, steps.mark({kOther, 1}));
  steps.complete(kOther, 1);
  EXPECT_EQ(line.pop(steps), 0U) << "the first still waits";
  steps.complete(kOne, 1);
  EXPECT_EQ(line.pop(steps), 9U);
  EXPECT_EQ(line.pop(steps), 0U);
}

}  // namespace
}  // namespace tandem
