#include "ipc/channel.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <utility>

#include "base/status.h"
#include "fmt/core.h"
#include "ipc/plan_codec.h"
#include "ipc/ring.h"

namespace tandem {
namespace {

constexpr std::uint64_t kMagic = 0x54444d4348414e31;
constexpr std::size_t kSmallestRing = std::size_t{4} << 10;
constexpr std::size_t kLargestRing = std::size_t{1} << 30;
constexpr std::chrono::milliseconds kAliveCheck{100};
constexpr std::chrono::microseconds kRoomCheck{200};

struct ChannelHeader {
  std::uint64_t magic = 0;
  std::uint64_t plan_ring_bytes = 0;
  std::uint64_t result_ring_bytes = 0;
  alignas(64) std::atomic<std::uint32_t> closed{0};
  alignas(64) Doorbell lane;
};

struct ChannelParts {
  ChannelHeader* header;
  std::span<std::byte> plans;
  std::span<std::byte> results;
};

absl::Status check_sizes(const ChannelSizes& sizes) {
  for (const std::size_t bytes : {sizes.plan_ring_bytes, sizes.result_ring_bytes}) {
    if (!std::has_single_bit(bytes) || bytes < kSmallestRing || bytes > kLargestRing) {
      return absl::InvalidArgumentError(fmt::format(
          "a channel's ring must be a power of two from {} to {} bytes, not {}", kSmallestRing, kLargestRing, bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status check_memory(std::span<std::byte> memory, std::size_t needed) {
  if (memory.size() < needed) {
    return absl::InvalidArgumentError(
        fmt::format("a channel needs {} bytes of memory, {} were given", needed, memory.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(ChannelHeader) != 0) {
    return absl::InvalidArgumentError(fmt::format("a channel must be aligned to {} bytes", alignof(ChannelHeader)));
  }
  return absl::OkStatus();
}

ChannelParts split(std::span<std::byte> memory, const ChannelSizes& sizes) {
  const std::size_t plan_bytes = ring_bytes(sizes.plan_ring_bytes);
  return {.header = std::launder(reinterpret_cast<ChannelHeader*>(memory.data())),
          .plans = memory.subspan(sizeof(ChannelHeader), plan_bytes),
          .results = memory.subspan(sizeof(ChannelHeader) + plan_bytes, ring_bytes(sizes.result_ring_bytes))};
}

absl::StatusOr<ChannelParts> open_channel(std::span<std::byte> memory) {
  TANDEM_TRY(check_memory(memory, sizeof(ChannelHeader)));
  const auto* header = std::launder(reinterpret_cast<const ChannelHeader*>(memory.data()));
  if (header->magic != kMagic) {
    return absl::FailedPreconditionError("no channel was initialised here; call init_channel first");
  }
  // Private copies, checked before use: they say where the rings lie.
  const ChannelSizes sizes{.plan_ring_bytes = header->plan_ring_bytes, .result_ring_bytes = header->result_ring_bytes};
  TANDEM_TRY(check_sizes(sizes));
  TANDEM_TRY(check_memory(memory, channel_bytes(sizes)));
  return split(memory, sizes);
}

absl::Status closed_error() { return absl::UnavailableError("the channel's other end is gone"); }

class RingLanePort final : public LanePort {
 public:
  RingLanePort(ChannelHeader& header, RingWriter plans, RingReader results)
      : header_(header), plans_(plans), results_(results) {}

  absl::Status send(const Plan& plan) override {
    if (header_.closed.load(std::memory_order_acquire) != 0) return closed_error();
    if (absl::Status status = plans_.push(encoder_.encode(plan)); !status.ok()) return annotate(status, "send a plan");
    header_.lane.ring();
    return absl::OkStatus();
  }

  absl::StatusOr<bool> poll(Result& result) override {
    // Read before the ring: a result sent before the closing is never lost.
    const bool closed = header_.closed.load(std::memory_order_acquire) != 0;
    TANDEM_ASSIGN(const auto bytes, results_.begin());
    if (!bytes) return closed ? absl::StatusOr<bool>(closed_error()) : absl::StatusOr<bool>(false);
    const absl::Status status = decode(results_, result);
    results_.end();
    if (!status.ok()) return status;
    return true;
  }

 private:
  ChannelHeader& header_;
  RingWriter plans_;
  RingReader results_;
  PlanEncoder encoder_;
};

class RingWorkerPort final : public WorkerPort {
 public:
  RingWorkerPort(ChannelHeader& header, RingReader plans, RingWriter results, Doorbell& scheduler,
                 WorkerPortOptions options)
      : header_(header), plans_(plans), results_(results), scheduler_(scheduler), options_(std::move(options)) {}

  absl::StatusOr<bool> receive(Plan& plan, std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + std::clamp(timeout, kNoTime, kLongest);
    while (true) {
      const std::uint32_t seen = header_.lane.seen();
      if (header_.closed.load(std::memory_order_acquire) != 0) return closed_error();
      TANDEM_ASSIGN(const auto bytes, plans_.begin());
      if (bytes) {
        const absl::Status status = decode(plans_, plan);
        plans_.end();
        if (!status.ok()) return status;
        return true;
      }
      if (!wait(seen, deadline, options_.peer_alive ? kAliveCheck : kLongest, options_.spin)) {
        if (!peer_alive()) return closed_error();
        if (std::chrono::steady_clock::now() >= deadline) return false;
      }
    }
  }

  absl::Status send(const Result& result) override {
    const auto parts = encoder_.encode(result);
    const auto deadline = std::chrono::steady_clock::now() + std::clamp(options_.send_timeout, kNoTime, kLongest);
    while (true) {
      if (header_.closed.load(std::memory_order_acquire) != 0) return closed_error();
      const std::uint32_t seen = header_.lane.seen();
      absl::Status status = results_.push(parts);
      if (status.ok()) {
        scheduler_.ring();
        return status;
      }
      // The scheduler drains results at every turn, so a full ring is rare and short: look again now and then.
      if (!absl::IsResourceExhausted(status) || std::chrono::steady_clock::now() >= deadline) {
        return annotate(status, "send a result");
      }
      if (!wait(seen, deadline, kRoomCheck, std::chrono::microseconds(0)) && !peer_alive()) return closed_error();
    }
  }

 private:
  static constexpr std::chrono::milliseconds kNoTime{0};
  static constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);

  bool wait(std::uint32_t seen, std::chrono::steady_clock::time_point deadline, std::chrono::microseconds at_most,
            std::chrono::microseconds spin) {
    const auto left = std::chrono::ceil<std::chrono::microseconds>(deadline - std::chrono::steady_clock::now());
    return header_.lane.wait(seen, std::min(left, at_most), spin);
  }
  bool peer_alive() const { return !options_.peer_alive || options_.peer_alive(); }

  ChannelHeader& header_;
  RingReader plans_;
  RingWriter results_;
  Doorbell& scheduler_;
  const WorkerPortOptions options_;
  ResultEncoder encoder_;
};

}  // namespace

std::size_t max_result_bytes(const ChannelSizes& sizes) {
  constexpr std::size_t kHead = 1024;  // counts, and an error's text
  return sizes.result_ring_bytes - kHead;
}

std::size_t channel_bytes(const ChannelSizes& sizes) {
  return sizeof(ChannelHeader) + ring_bytes(sizes.plan_ring_bytes) + ring_bytes(sizes.result_ring_bytes);
}

absl::Status init_channel(std::span<std::byte> memory, const ChannelSizes& sizes) {
  TANDEM_TRY(check_sizes(sizes));
  TANDEM_TRY(check_memory(memory, channel_bytes(sizes)));
  auto* header = new (memory.data()) ChannelHeader{};
  const ChannelParts parts = split(memory, sizes);
  init_ring(parts.plans);
  init_ring(parts.results);
  header->plan_ring_bytes = sizes.plan_ring_bytes;
  header->result_ring_bytes = sizes.result_ring_bytes;
  header->magic = kMagic;
  return absl::OkStatus();
}

absl::Status mark_closed(std::span<std::byte> memory) {
  TANDEM_ASSIGN(const ChannelParts parts, open_channel(memory));
  parts.header->closed.store(1, std::memory_order_release);
  parts.header->lane.ring();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LanePort>> make_lane_port(std::span<std::byte> memory) {
  TANDEM_ASSIGN(const ChannelParts parts, open_channel(memory));
  TANDEM_ASSIGN(const RingWriter plans, RingWriter::open(parts.plans));
  TANDEM_ASSIGN(const RingReader results, RingReader::open(parts.results));
  return std::make_unique<RingLanePort>(*parts.header, plans, results);
}

absl::StatusOr<std::unique_ptr<WorkerPort>> make_worker_port(std::span<std::byte> memory, Doorbell& scheduler,
                                                             WorkerPortOptions options) {
  TANDEM_ASSIGN(const ChannelParts parts, open_channel(memory));
  TANDEM_ASSIGN(const RingReader plans, RingReader::open(parts.plans));
  TANDEM_ASSIGN(const RingWriter results, RingWriter::open(parts.results));
  return std::make_unique<RingWorkerPort>(*parts.header, plans, results, scheduler, std::move(options));
}

}  // namespace tandem
