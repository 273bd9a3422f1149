// A channel between scheduler and one lane: a ring of plans, a ring of results, the lane's doorbell and a closed
// flag, in one span of memory. The span is a shared region between processes or plain memory within one.
// Each port is used by one thread; the span must outlive both. A port never trusts what it reads from the span.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ipc/doorbell.h"
#include "tandem/transport.h"

namespace tandem {

// Powers of two from 4 KiB to 1 GiB. A message may be as large as its ring less 8 bytes.
struct ChannelSizes {
  std::size_t plan_ring_bytes = std::size_t{4} << 20;
  std::size_t result_ring_bytes = std::size_t{8} << 20;
};

std::size_t channel_bytes(const ChannelSizes& sizes = {});
// The items, scores and logits of one result have room in so many bytes, beside the message's head.
std::size_t max_result_bytes(const ChannelSizes& sizes = {});

// Makes an empty, open channel in `memory` (64-byte aligned). Before a lane's worker is replaced the channel is
// initialised anew, with no port of its former life in use.
absl::Status init_channel(std::span<std::byte> memory, const ChannelSizes& sizes = {});

// Makes both sides' calls return Unavailable and wakes the lane. Results already sent can still be polled. Called by
// the supervisor when either side is gone; any process may call it.
absl::Status mark_closed(std::span<std::byte> memory);

// The scheduler's end. send() errors: ResourceExhausted, the ring is full now; InvalidArgument, the plan is larger
// than the ring; Unavailable, closed. poll() errors: Unavailable, DataLoss.
absl::StatusOr<std::unique_ptr<LanePort>> make_lane_port(std::span<std::byte> memory);

struct WorkerPortOptions {
  // Asked about ten times a second while waiting; false means that the scheduler's process is gone. Empty: never.
  std::function<bool()> peer_alive;
  // How long receive() spins before it sleeps.
  std::chrono::microseconds spin = Doorbell::kDefaultSpin;
  // How long send() waits for the scheduler to make room before ResourceExhausted.
  std::chrono::milliseconds send_timeout{5000};
};

// The lane's end; rings `scheduler` with every result. A result larger than the ring is InvalidArgument: the lane
// then owes the scheduler a result that says so.
absl::StatusOr<std::unique_ptr<WorkerPort>> make_worker_port(std::span<std::byte> memory, Doorbell& scheduler,
                                                             WorkerPortOptions options = {});

}  // namespace tandem
