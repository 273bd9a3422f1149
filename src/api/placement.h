// GET and POST /v1/admin/placement as JSON, and what a change must satisfy, for both front ends. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/placement.h"

namespace tandem {

// {"placement","num_units","decode_units","lanes":[{"lane","up","epoch","restarts"}]}
std::string placement_json(const PlacementState& state);

// {"decode_units": 1, "replace": ["prefill", "decode"]}, both optional; any other field is refused.
absl::StatusOr<PlacementChange> parse_placement_change(std::string_view body, const PlacementState& state);

// The same from a message's fields: lanes by their names.
absl::StatusOr<PlacementChange> make_placement_change(std::optional<std::int64_t> decode_units,
                                                      const std::vector<std::string>& replace,
                                                      const PlacementState& state);

absl::Status check_placement_change(const PlacementChange& change, const PlacementState& state);

}  // namespace tandem
