#include "api/placement.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace tandem {
namespace {

PlacementState state(Placement placement, std::uint16_t units) {
  PlacementState state{placement, units, 1, {{"prefill", true, 1, 0}, {"decode", true, 1, 0}}};
  if (placement == Placement::kFused) state.lanes = {{"fused", true, 1, 0}};
  return state;
}

std::string refusal(std::string_view body, const PlacementState& state) {
  const auto change = parse_placement_change(body, state);
  return change.ok() ? "accepted" : std::string(message(change.status()));
}

TEST(PlacementChange, is_read_with_lanes_by_name) {
  const auto change =
      parse_placement_change(R"({"decode_units":3,"replace":["decode","prefill"]})", state(Placement::kSemi, 4));
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->decode_units, 3);
  EXPECT_EQ(change->replace, (std::vector{LaneId{1}, LaneId{0}}));
  EXPECT_FALSE(parse_placement_change(R"({"replace":["fused"]})", state(Placement::kFused, 1))->decode_units);
}

TEST(PlacementChange, says_why_a_split_is_impossible) {
  constexpr std::string_view kBody = R"({"decode_units":1})";
  EXPECT_NE(refusal(kBody, state(Placement::kSemi, 1)).find("one unit, which cannot be split"), std::string::npos);
  EXPECT_NE(refusal(kBody, state(Placement::kFused, 4)).find("placement is fused"), std::string::npos);
  EXPECT_EQ(refusal(kBody, state(Placement::kSemi, 2)), "accepted");
  EXPECT_EQ(refusal(R"({"decode_units":2})", state(Placement::kSemi, 2)),
            "Invalid 'decode_units': expected 1 to 1 of the 2 units, which leaves prefill one, but got 2.");
}

TEST(PlacementChange, names_the_lanes_there_are) {
  EXPECT_EQ(refusal(R"({"replace":["decode"]})", state(Placement::kFused, 2)),
            "Invalid 'replace': there is no lane 'decode'; the lanes are: fused.");
}

TEST(PlacementChange, made_by_hand_is_checked_as_well) {
  EXPECT_FALSE(check_placement_change({{}, {LaneId{2}}}, state(Placement::kSemi, 2)).ok());
  EXPECT_FALSE(check_placement_change({5, {}}, state(Placement::kSemi, 2)).ok());
  EXPECT_TRUE(check_placement_change({1, {LaneId{1}}}, state(Placement::kSemi, 2)).ok());
}

}  // namespace
}  // namespace tandem
