#include "sched/prefill_speed.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(PrefillSpeed, follows_what_is_measured) {
  PrefillSpeed speed;
  EXPECT_EQ(speed.ns_per_token(), 1'000'000);
  for (int i = 0; i < 200; ++i) speed.observe(256, 256 * 50);  // 50 us a token
  EXPECT_NEAR(static_cast<double>(speed.ns_per_token()), 50'000, 0.5 * 50'000);
  for (int i = 0; i < 200; ++i) speed.observe(256, 256 * 4'000);
  EXPECT_NEAR(static_cast<double>(speed.ns_per_token()), 4'000'000, 0.5 * 4'000'000);
}

// Orders are made anew with each change, so there are few.
TEST(PrefillSpeed, changes_seldom_and_says_so) {
  PrefillSpeed speed;
  int changes = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t before = speed.ns_per_token();
    const bool changed = speed.observe(256, 256 * (i % 2 == 0 ? 80 : 120));
    EXPECT_EQ(changed, speed.ns_per_token() != before);
    changes += changed ? 1 : 0;
  }
  EXPECT_GE(changes, 1);
  EXPECT_LE(changes, 10) << "from 1,000 to about 100 us a token in steps of a half";
}

// A short prompt's step takes mostly a fixed time, which says little of a long prompt.
TEST(PrefillSpeed, short_steps_weigh_little) {
  PrefillSpeed speed;
  for (int i = 0; i < 50; ++i) speed.observe(512, 512 * 100);
  const std::int64_t before = speed.ns_per_token();
  for (int i = 0; i < 20; ++i) speed.observe(3, 5'000);
  EXPECT_EQ(speed.ns_per_token(), before);
  EXPECT_FALSE(speed.observe(0, 5'000));
}

TEST(PrefillSpeed, is_never_without_a_time) {
  PrefillSpeed speed;
  for (int i = 0; i < 5000; ++i) speed.observe(1'000'000, 0);
  EXPECT_GE(speed.ns_per_token(), 500);
}

}  // namespace
}  // namespace tandem
