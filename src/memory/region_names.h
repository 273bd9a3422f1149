// The regions of an instance by name, as owner, front end and workers agree on them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tandem/types.h"

namespace tandem {

// A region that is never published is a lock: its filler holds it until its process has ended, its last thread
// included.
inline constexpr char kServerRegion[] = "server";    // the lock of the one front end
inline constexpr char kRecordRegion[] = "record";    // memory/pool_record.h
inline constexpr char kControlRegion[] = "control";  // ipc/control_page.h
inline constexpr char kLedgerRegion[] = "ledger";    // memory/ledger.h
inline constexpr char kKvRegion[] = "kv";            // the pool's blocks
inline constexpr char kPrefixRegion[] = "prefix";    // a PrefixKey per block
inline constexpr char kWeightsRegion[] = "weights";  // sealed read-only once filled

// The lock of a life of a lane: while it is held, that worker may write to the pool.
inline constexpr std::string_view kWorkerPrefix = "worker.";
inline std::string worker_region(LaneId lane, std::uint64_t epoch) {
  return std::string(kWorkerPrefix) + std::to_string(lane.value) + "." + std::to_string(epoch);
}

// One channel per life of a lane, so that a worker's successor never meets its messages.
inline constexpr std::string_view kChannelPrefix = "channel.";
inline std::string channel_region(LaneId lane, std::uint64_t epoch) {
  return std::string(kChannelPrefix) + std::to_string(lane.value) + "." + std::to_string(epoch);
}

}  // namespace tandem
