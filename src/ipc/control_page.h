// The instance's control page: one region, mapped by every process, with the scheduler's doorbell, one line of counters
// per lane and one of the server. Plain data; each counter names its one writer. All steps of a lane are numbered
// upwards and the numbers go on over restarts of its worker.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "ipc/doorbell.h"
#include "tandem/types.h"

namespace tandem {

struct alignas(64) LaneCounters {
  // Last step sent to the lane. Writer: the scheduler, BEFORE it sends the plan.
  std::atomic<std::uint64_t> issued_step{0};
  // Last step that is over, as `tandem inspect` shows it; nothing is decided by it. Writer: the scheduler.
  std::atomic<std::uint64_t> completed_step{0};
  // Which life of the lane this is. Writer: the supervisor, before it starts a worker.
  std::atomic<std::uint64_t> epoch{0};
  // Changes while the lane's loop turns. Writer: the lane.
  std::atomic<std::uint64_t> heartbeat{0};
};

// What the scheduler says of itself, for whoever asks from outside (`tandem inspect`): each number true of a moment,
// all of them together of none. Writer: the scheduler's thread, every turn in which something happened; a server sets
// them to zero when it starts. They stay when it is killed, and mean nothing then: who reads them asks the owner first
// whether there is a server.
struct alignas(64) ServerCounters {
  // Sequences that hold blocks, by what they do, and the blocks they name; a cached one counts once for each of them.
  std::atomic<std::uint32_t> prefill_sequences{0};
  std::atomic<std::uint32_t> prefill_blocks{0};
  std::atomic<std::uint32_t> decode_sequences{0};
  std::atomic<std::uint32_t> decode_blocks{0};
  std::atomic<std::uint32_t> waiting_sequences{0};  // hold none
  std::atomic<std::uint32_t> evictable_blocks{0};  // in the prefix cache and named by no sequence
  // Tokens of admitted prompts that may share, and how many of them the prefix cache had.
  std::atomic<std::uint64_t> prefix_tokens_asked{0};
  std::atomic<std::uint64_t> prefix_tokens_hit{0};
};

struct ControlPage {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  alignas(64) Doorbell scheduler;  // rung by lanes with every result, and by front-end threads
  LaneCounters lanes[kMaxLanes];
  ServerCounters server;
};

// Makes a fresh control page in `memory` (64-byte aligned, at least sizeof(ControlPage)). Nobody else uses it yet.
absl::StatusOr<ControlPage*> init_control_page(std::span<std::byte> memory);
// The page another process initialised; FailedPrecondition when this is not one of our version.
absl::StatusOr<ControlPage*> open_control_page(std::span<std::byte> memory);

}  // namespace tandem
