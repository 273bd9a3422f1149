// The regions of an instance by name, as owner, front end and workers agree on them.
#pragma once

#include <cstdint>
#include <string>

#include "tandem/types.h"

namespace tandem {

inline constexpr char kControlRegion[] = "control";  // ipc/control_page.h
inline constexpr char kLedgerRegion[] = "ledger";    // memory/ledger.h
inline constexpr char kKvRegion[] = "kv";            // the pool's blocks
inline constexpr char kPrefixRegion[] = "prefix";    // a PrefixKey per block
inline constexpr char kWeightsRegion[] = "weights";  // sealed read-only once filled

// One channel per life of a lane, so that a worker's successor never meets its messages.
inline std::string channel_region(LaneId lane, std::uint64_t epoch) {
  return "channel." + std::to_string(lane.value) + "." + std::to_string(epoch);
}

}  // namespace tandem
