#include "api/placement.h"

#include <algorithm>

#include "api/json_fields.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

std::string_view placement_word(Placement placement) { return placement == Placement::kSemi ? "semi" : "fused"; }

absl::Status check_decode_units(std::int64_t units, const PlacementState& state) {
  if (state.placement == Placement::kFused) {
    return field_error("decode_units", "this server's placement is fused: one lane does both phases with every unit.");
  }
  if (state.num_units < 2) {
    return field_error("decode_units", "this server computes on one unit, which cannot be split.");
  }
  if (units < 1 || units >= state.num_units) {
    return field_error("decode_units",
                       fmt::format("expected 1 to {} of the {} units, which leaves prefill one, but got {}.",
                                   state.num_units - 1, state.num_units, units));
  }
  return absl::OkStatus();
}

absl::StatusOr<LaneId> lane_named(std::string_view name, const PlacementState& state) {
  std::string names;
  for (std::uint32_t lane = 0; lane < state.lanes.size(); ++lane) {
    if (state.lanes[lane].name == name) return LaneId{lane};
    names += (lane > 0 ? ", " : "") + state.lanes[lane].name;
  }
  return field_error("replace", fmt::format("there is no lane '{}'; the lanes are: {}.", shortened(name), names));
}

}  // namespace

std::string placement_json(const PlacementState& state) {
  std::string out = fmt::format(R"({{"placement":"{}","num_units":{},"decode_units":{},"lanes":[)",
                                placement_word(state.placement), state.num_units, state.decode_units);
  for (std::size_t i = 0; i < state.lanes.size(); ++i) {
    const LaneReport& lane = state.lanes[i];
    out += fmt::format(R"({}{{"lane":"{}","up":{},"epoch":{},"restarts":{}}})", i > 0 ? "," : "", lane.name, lane.up,
                       lane.epoch, lane.restarts);
  }
  return out + "]}";
}

absl::StatusOr<PlacementChange> parse_placement_change(std::string_view body, const PlacementState& state) {
  TANDEM_ASSIGN(const Json json, parse_json_object(body));
  for (const auto& [name, value] : json.items()) {
    if (name != "decode_units" && name != "replace") {
      return request_error(
          fmt::format("Unknown parameter: '{}'. The parameters are decode_units and replace.", shortened(name)),
          shortened(name), "unknown_parameter");
    }
  }
  const Fields fields(json);
  std::optional<std::int64_t> decode_units;
  TANDEM_TRY(fields.read("decode_units", decode_units, {.min = INT32_MIN, .max = INT32_MAX}));
  std::vector<std::string> replace;
  if (const Json* lanes = fields.find("replace")) {
    if (!lanes->is_array()) return type_error("replace", "an array of lane names", *lanes);
    for (const Json& lane : *lanes) {
      if (!lane.is_string()) return type_error("replace", "an array of lane names", lane);
      replace.push_back(lane.get<std::string>());
    }
  }
  return make_placement_change(decode_units, replace, state);
}

absl::StatusOr<PlacementChange> make_placement_change(std::optional<std::int64_t> decode_units,
                                                      const std::vector<std::string>& replace,
                                                      const PlacementState& state) {
  PlacementChange change;
  if (decode_units) {
    TANDEM_TRY(check_decode_units(*decode_units, state));
    change.decode_units = static_cast<std::uint16_t>(*decode_units);
  }
  for (const std::string& name : replace) {
    TANDEM_ASSIGN(const LaneId lane, lane_named(name, state));
    change.replace.push_back(lane);
  }
  TANDEM_TRY(check_placement_change(change, state));
  return change;
}

absl::Status check_placement_change(const PlacementChange& change, const PlacementState& state) {
  if (!change.decode_units && change.replace.empty()) {
    return request_error("Nothing to change: give decode_units, replace or both.", {}, "missing_required_parameter");
  }
  if (change.decode_units) TANDEM_TRY(check_decode_units(*change.decode_units, state));
  for (auto lane = change.replace.begin(); lane != change.replace.end(); ++lane) {
    if (lane->value >= state.lanes.size())
      return field_error("replace", fmt::format("there is no lane {}.", lane->value));
    if (std::find(change.replace.begin(), lane, *lane) != lane) {
      return field_error("replace", fmt::format("the lane '{}' is named twice.", state.lanes[lane->value].name));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
