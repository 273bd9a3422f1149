// How the compute is divided between the lanes: the placement, the shares, the state of each lane, and a request to
// change them while the server runs. Plain values; the engine checks and applies them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tandem/types.h"

namespace tandem {

// Where the two phases run: one lane for both, or a prefill and a decode lane over one KV pool.
enum class Placement : std::uint8_t { kSemi, kFused };

struct LaneReport {
  std::string name;  // "prefill", "decode"; "fused" for the only one
  bool up = false;
  std::uint64_t epoch = 0;     // of the worker that serves; counts every worker ever started for the lane
  std::uint32_t restarts = 0;  // workers that ended by themselves while serving
};

struct PlacementState {
  Placement placement = Placement::kSemi;
  std::uint16_t num_units = 1;     // of compute
  std::uint16_t decode_units = 1;  // of those, the decode lane's while both phases have work
  std::vector<LaneReport> lanes;   // by LaneId
};

struct PlacementChange {
  std::optional<std::uint16_t> decode_units;  // 1 to num_units - 1
  std::vector<LaneId> replace;                // lanes that get a new worker process; the old one serves until then
};

// Called once, on any thread; must not block or throw.
using PlacementDone = std::function<void(const absl::Status&)>;

}  // namespace tandem
