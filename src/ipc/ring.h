// A single-producer single-consumer ring of byte messages over shared memory. The writer and the reader object each
// belong to one thread, in one process or two. Messages may wrap; each is a 8-byte header {length, check} and its
// bytes, padded to 8. Neither end trusts the other's indexes or lengths: damage is DataLoss, never an access
// outside the span, and after it the end that saw it stays in error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Positions count bytes since the ring was made; they wrap nowhere.
struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> head{0};  // written so far; writer: the producer
  alignas(64) std::atomic<std::uint64_t> tail{0};  // consumed so far; writer: the consumer
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Bytes of shared memory for a ring of `capacity` bytes (a power of two, >= 64).
constexpr std::size_t ring_bytes(std::size_t capacity) { return sizeof(RingHeader) + capacity; }
// An empty ring in memory.size() == ring_bytes(capacity), 64-byte aligned.
void init_ring(std::span<std::byte> memory);

class RingWriter final {
 public:
  static absl::StatusOr<RingWriter> open(std::span<std::byte> memory);

  std::size_t max_message_bytes() const { return data_.size() - sizeof(std::uint64_t); }
  // Appends the concatenation of `parts` as one message, or nothing. ResourceExhausted: no room now;
  // InvalidArgument: larger than max_message_bytes().
  absl::Status push(std::span<const std::span<const std::byte>> parts);

 private:
  RingWriter(RingHeader& header, std::span<std::byte> data) : header_(&header), data_(data) {}
  void copy_in(std::span<const std::byte> part);

  RingHeader* header_;
  std::span<std::byte> data_;
  std::uint64_t head_ = 0;    // of the message being written
  std::uint64_t tail_ = 0;    // the consumer's, as last read
  bool damaged_ = false;
};

class RingReader final {
 public:
  static absl::StatusOr<RingReader> open(std::span<std::byte> memory);

  // Bytes of the next message, which read() then takes piece by piece; nullopt when there is none.
  absl::StatusOr<std::optional<std::size_t>> begin();
  std::size_t remaining() const { return remaining_; }
  // Copies the message's next to.size() bytes; false, with nothing copied, when fewer remain.
  bool read(std::span<std::byte> to);
  // Gives the message's room back, read or not.
  void end();

 private:
  RingReader(RingHeader& header, std::span<std::byte> data) : header_(&header), data_(data) {}
  void copy_out(std::span<std::byte> to);

  RingHeader* header_;
  std::span<std::byte> data_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;       // the producer's, as last read
  std::uint64_t position_ = 0;   // of the next byte to read
  std::uint64_t next_tail_ = 0;  // after the current message
  std::size_t remaining_ = 0;
  bool damaged_ = false;
};

}  // namespace tandem
