#include "tandem/policy.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace tandem {
namespace {

PlacementView semi(std::uint32_t prefilling, std::uint32_t decoding, std::uint16_t units = 8) {
  return {Placement::kSemi, units, true, true, prefilling, decoding, {}};
}

TEST(LaneDuty, solo_gives_the_only_busy_phase_every_unit) {
  EXPECT_EQ(lane_duty(semi(1, 0), kPrefillLane).share, (Share{0, 8}));
  EXPECT_EQ(lane_duty(semi(0, 1), kDecodeLane).share, (Share{0, 8}));
}

TEST(LaneDuty, split_shares_are_disjoint_and_use_every_unit) {
  for (std::uint16_t units = 2; units <= 64; ++units) {
    const Share prefill = lane_duty(semi(3, 5, units), kPrefillLane).share;
    const Share decode = lane_duty(semi(3, 5, units), kDecodeLane).share;
    EXPECT_GE(prefill.count, 1);
    EXPECT_GE(decode.count, 1);
    EXPECT_EQ(prefill.first + prefill.count, decode.first);
    EXPECT_EQ(decode.first + decode.count, units);
  }
  EXPECT_EQ(lane_duty(semi(3, 5, 1), kPrefillLane).share, (Share{0, 1}));
  EXPECT_EQ(lane_duty(semi(3, 5, 1), kDecodeLane).share, (Share{0, 1}));
}

TEST(LaneDuty, a_split_gives_decode_what_was_set_and_leaves_prefill_a_unit) {
  for (std::uint16_t wanted = 0; wanted <= 10; ++wanted) {
    PlacementView view = semi(3, 5);
    view.decode_units = wanted;
    const auto decode = static_cast<std::uint16_t>(std::clamp<int>(wanted, 1, 7));
    const auto prefill = static_cast<std::uint16_t>(8 - decode);
    EXPECT_EQ(lane_duty(view, kPrefillLane).share, (Share{0, prefill}));
    EXPECT_EQ(lane_duty(view, kDecodeLane).share, (Share{prefill, decode}));
    view.prefilling = 0;
    EXPECT_EQ(lane_duty(view, kDecodeLane).share, (Share{0, 8})) << "solo, whatever the split";
  }
}

TEST(LaneDuty, each_lane_has_its_phase_and_takes_over_from_a_lost_one) {
  EXPECT_TRUE(lane_duty(semi(3, 5), kPrefillLane).prefill);
  EXPECT_FALSE(lane_duty(semi(3, 5), kPrefillLane).decode);
  PlacementView lost = semi(3, 5);
  lost.prefill_lane_up = false;
  const LaneDuty duty = lane_duty(lost, kDecodeLane);
  EXPECT_TRUE(duty.prefill);
  EXPECT_TRUE(duty.decode);
  EXPECT_EQ(duty.share, (Share{0, 8}));
}

TEST(LaneDuty, fused_does_both_with_everything) {
  PlacementView view = semi(3, 5);
  view.placement = Placement::kFused;
  view.decode_lane_up = false;
  const LaneDuty duty = lane_duty(view, kPrefillLane);
  EXPECT_TRUE(duty.prefill && duty.decode);
  EXPECT_EQ(duty.share, (Share{0, 8}));
}

TEST(LaneDuty, decode_has_half_of_the_units_by_default_and_at_least_one) {
  EXPECT_EQ(default_decode_units(1), 1);
  EXPECT_EQ(default_decode_units(2), 1);
  EXPECT_EQ(default_decode_units(3), 1);
  EXPECT_EQ(default_decode_units(8), 4);
  EXPECT_EQ(default_decode_units(9), 4);
  EXPECT_EQ(lane_duty(semi(3, 5), kDecodeLane).share, (Share{4, 4}));
  EXPECT_EQ(lane_duty(semi(3, 5), kPrefillLane).share, (Share{0, 4}));
}

constexpr std::int64_t kNsPerToken = 1'000'000;

bool before(const QueueView& a, const QueueView& b, std::int64_t ns_per_token = kNsPerToken) {
  return more_urgent(urgency_of(a, ns_per_token), urgency_of(b, ns_per_token));
}

TEST(Urgency, is_priority_first_then_the_deadline_then_age) {
  const QueueView long_early{SequenceId{1}, 0, 1'000'000, 2000, {}};
  const QueueView short_late{SequenceId{2}, 0, 1'500'000, 10, {}};
  const QueueView long_very_early{SequenceId{3}, 0, -10'000'000, 2000, {}};
  EXPECT_TRUE(before(short_late, long_early));
  EXPECT_FALSE(before(long_early, short_late));
  EXPECT_TRUE(before(long_very_early, short_late)) << "a long prompt is passed only for a while";
  QueueView important = long_early;
  important.priority = 1;
  EXPECT_TRUE(before(important, short_late));
  EXPECT_FALSE(before(short_late, important));
  QueueView targeted = long_early;
  targeted.ttft_ms = 100;
  EXPECT_TRUE(before(targeted, short_late));
  EXPECT_FALSE(before(short_late, short_late));
  QueueView twin = short_late;
  twin.id = SequenceId{4};
  EXPECT_TRUE(before(short_late, twin));
  EXPECT_FALSE(before(twin, short_late));
}

TEST(Urgency, a_target_counts_in_milliseconds_from_the_arrival) {
  const QueueView view{SequenceId{1}, 0, 5'000, 2000, 30};
  EXPECT_EQ(urgency_of(view, kNsPerToken).deadline_us, 35'000);
  EXPECT_EQ(urgency_of(view, 7 * kNsPerToken).deadline_us, 35'000);
}

// The allowance is a multiple of the prompt's own prefill time, so a fast device gives a long prompt a short one.
TEST(Urgency, without_a_target_a_prompt_is_passed_for_four_times_its_prefill_time) {
  const QueueView view{SequenceId{1}, 0, 5'000, 2000, {}};
  EXPECT_EQ(urgency_of(view, 1'000'000).deadline_us, 5'000 + 8'000'000);
  EXPECT_EQ(urgency_of(view, 50'000).deadline_us, 5'000 + 400'000);
  QueueView context = view;
  context.remaining_tokens = 1U << 20U;
  EXPECT_EQ(urgency_of(context, 1'000'000).deadline_us, 5'000 + 4'000 * (std::int64_t{1} << 20U));
}

}  // namespace
}  // namespace tandem
