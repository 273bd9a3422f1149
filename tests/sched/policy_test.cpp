#include "tandem/policy.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace tandem {
namespace {

PlacementView semi(bool prefill_work, bool decode_work, std::uint16_t units = 8) {
  return {Placement::kSemi, units, true, true, prefill_work, decode_work, {}};
}

TEST(LaneDuty, solo_gives_the_only_busy_phase_every_unit) {
  EXPECT_EQ(lane_duty(semi(true, false), kPrefillLane).share, (Share{0, 8}));
  EXPECT_EQ(lane_duty(semi(false, true), kDecodeLane).share, (Share{0, 8}));
}

TEST(LaneDuty, split_shares_are_disjoint_and_use_every_unit) {
  for (std::uint16_t units = 2; units <= 64; ++units) {
    const Share prefill = lane_duty(semi(true, true, units), kPrefillLane).share;
    const Share decode = lane_duty(semi(true, true, units), kDecodeLane).share;
    EXPECT_GE(prefill.count, 1);
    EXPECT_GE(decode.count, 1);
    EXPECT_EQ(prefill.first + prefill.count, decode.first);
    EXPECT_EQ(decode.first + decode.count, units);
  }
  EXPECT_EQ(lane_duty(semi(true, true, 1), kPrefillLane).share, (Share{0, 1}));
  EXPECT_EQ(lane_duty(semi(true, true, 1), kDecodeLane).share, (Share{0, 1}));
}

TEST(LaneDuty, a_split_gives_decode_what_was_set_and_leaves_prefill_a_unit) {
  for (std::uint16_t wanted = 0; wanted <= 10; ++wanted) {
    PlacementView view = semi(true, true);
    view.decode_units = wanted;
    const auto decode = static_cast<std::uint16_t>(std::clamp<int>(wanted, 1, 7));
    const auto prefill = static_cast<std::uint16_t>(8 - decode);
    EXPECT_EQ(lane_duty(view, kPrefillLane).share, (Share{0, prefill}));
    EXPECT_EQ(lane_duty(view, kDecodeLane).share, (Share{prefill, decode}));
    view.prefill_work = false;
    EXPECT_EQ(lane_duty(view, kDecodeLane).share, (Share{0, 8})) << "solo, whatever the split";
  }
}

TEST(LaneDuty, each_lane_has_its_phase_and_takes_over_from_a_lost_one) {
  EXPECT_TRUE(lane_duty(semi(true, true), kPrefillLane).prefill);
  EXPECT_FALSE(lane_duty(semi(true, true), kPrefillLane).decode);
  PlacementView lost = semi(true, true);
  lost.prefill_lane_up = false;
  const LaneDuty duty = lane_duty(lost, kDecodeLane);
  EXPECT_TRUE(duty.prefill);
  EXPECT_TRUE(duty.decode);
  EXPECT_EQ(duty.share, (Share{0, 8}));
}

TEST(LaneDuty, fused_does_both_with_everything) {
  PlacementView view = semi(true, true);
  view.placement = Placement::kFused;
  view.decode_lane_up = false;
  const LaneDuty duty = lane_duty(view, kPrefillLane);
  EXPECT_TRUE(duty.prefill && duty.decode);
  EXPECT_EQ(duty.share, (Share{0, 8}));
}

TEST(Urgency, priority_first_then_the_virtual_deadline) {
  const QueueView long_early{0, 1'000'000, 2000, {}};
  const QueueView short_late{0, 1'500'000, 10, {}};
  const QueueView long_very_early{0, -10'000'000, 2000, {}};
  EXPECT_TRUE(more_urgent(short_late, long_early));
  EXPECT_TRUE(more_urgent(long_very_early, short_late)) << "a long prompt is passed only for a while";
  QueueView important = long_early;
  important.priority = 1;
  EXPECT_TRUE(more_urgent(important, short_late));
  QueueView targeted = long_early;
  targeted.ttft_ms = 100;
  EXPECT_TRUE(more_urgent(targeted, short_late));
  EXPECT_FALSE(more_urgent(short_late, short_late));
}

}  // namespace
}  // namespace tandem
