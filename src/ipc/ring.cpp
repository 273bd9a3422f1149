#include "ipc/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::uint64_t kUnit = 8;  // messages start at multiples of this
constexpr std::uint32_t kCheck = 0x74616e64;

struct MessageHeader {
  std::uint32_t bytes;
  std::uint32_t check;  // bytes ^ kCheck
};
static_assert(sizeof(MessageHeader) == kUnit);

constexpr std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

struct RingParts {
  RingHeader* header;
  std::span<std::byte> data;
};

absl::StatusOr<RingParts> open_ring(std::span<std::byte> memory) {
  const std::size_t capacity = memory.size() < sizeof(RingHeader) ? 0 : memory.size() - sizeof(RingHeader);
  if (capacity < 64 || !std::has_single_bit(capacity) || capacity > (std::size_t{1} << 30)) {
    return absl::InvalidArgumentError(
        fmt::format("a ring's capacity must be a power of two from 64 bytes to 1 GiB, not {}", capacity));
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(RingHeader) != 0) {
    return absl::InvalidArgumentError(fmt::format("a ring must be aligned to {} bytes", alignof(RingHeader)));
  }
  return RingParts{std::launder(reinterpret_cast<RingHeader*>(memory.data())), memory.subspan(sizeof(RingHeader))};
}

bool plausible(std::uint64_t head, std::uint64_t tail, std::size_t capacity) {
  return head - tail <= capacity && head % kUnit == 0 && tail % kUnit == 0;
}

absl::Status damage(std::uint64_t head, std::uint64_t tail, std::size_t capacity) {
  return absl::DataLossError(fmt::format(
      "ring of {} bytes is damaged: written up to {}, read up to {}; restart the worker", capacity, head, tail));
}

}  // namespace

void init_ring(std::span<std::byte> memory) {
  TANDEM_CHECK(open_ring(memory).ok(), "a ring is made in memory of a ring's size and alignment");
  new (memory.data()) RingHeader{};
}

absl::StatusOr<RingWriter> RingWriter::open(std::span<std::byte> memory) {
  TANDEM_ASSIGN(const RingParts parts, open_ring(memory));
  RingWriter writer(*parts.header, parts.data);
  writer.head_ = parts.header->head.load(std::memory_order_relaxed);
  writer.tail_ = parts.header->tail.load(std::memory_order_acquire);
  if (!plausible(writer.head_, writer.tail_, parts.data.size())) {
    return damage(writer.head_, writer.tail_, parts.data.size());
  }
  return writer;
}

absl::Status RingWriter::push(std::span<const std::span<const std::byte>> parts) {
  std::uint64_t bytes = 0;
  for (const auto part : parts) bytes += part.size();
  if (bytes > max_message_bytes()) {
    return absl::InvalidArgumentError(
        fmt::format("message of {} bytes does not fit a ring that takes at most {}; configure a larger ring", bytes,
                    max_message_bytes()));
  }
  const std::uint64_t start = head_;
  const std::uint64_t needed = kUnit + round_up(bytes);
  if (!damaged_ && data_.size() - (head_ - tail_) < needed) {
    const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
    // The consumer only ever moves forward, up to what was written.
    if (!plausible(head_, tail, data_.size()) || head_ - tail > head_ - tail_) damaged_ = true;
    tail_ = damaged_ ? tail_ : tail;
  }
  if (damaged_) return damage(head_, header_->tail.load(std::memory_order_relaxed), data_.size());
  if (data_.size() - (head_ - tail_) < needed) {
    return absl::ResourceExhaustedError(fmt::format("ring of {} bytes has {} free, the message needs {}", data_.size(),
                                                    data_.size() - (head_ - tail_), needed));
  }
  const auto length = static_cast<std::uint32_t>(bytes);
  const MessageHeader message{.bytes = length, .check = length ^ kCheck};
  copy_in(std::as_bytes(std::span(&message, 1)));
  for (const auto part : parts) copy_in(part);
  head_ = start + needed;
  header_->head.store(head_, std::memory_order_release);
  return absl::OkStatus();
}

void RingWriter::copy_in(std::span<const std::byte> part) {
  if (part.empty()) return;
  const std::size_t at = head_ & (data_.size() - 1);
  const std::size_t first = std::min(part.size(), data_.size() - at);
  std::memcpy(data_.data() + at, part.data(), first);
  if (first < part.size()) std::memcpy(data_.data(), part.data() + first, part.size() - first);
  head_ += part.size();
}

absl::StatusOr<RingReader> RingReader::open(std::span<std::byte> memory) {
  TANDEM_ASSIGN(const RingParts parts, open_ring(memory));
  RingReader reader(*parts.header, parts.data);
  reader.tail_ = parts.header->tail.load(std::memory_order_relaxed);
  reader.head_ = parts.header->head.load(std::memory_order_acquire);
  if (!plausible(reader.head_, reader.tail_, parts.data.size())) {
    return damage(reader.head_, reader.tail_, parts.data.size());
  }
  return reader;
}

absl::StatusOr<std::optional<std::size_t>> RingReader::begin() {
  remaining_ = 0;
  if (!damaged_ && head_ == tail_) {
    const std::uint64_t head = header_->head.load(std::memory_order_acquire);
    damaged_ = !plausible(head, tail_, data_.size());
    if (!damaged_) head_ = head;
  }
  if (damaged_) return damage(header_->head.load(std::memory_order_relaxed), tail_, data_.size());
  if (head_ == tail_) return std::nullopt;

  MessageHeader message;  // a private copy: what was checked is what is used
  position_ = tail_;
  copy_out(std::as_writable_bytes(std::span(&message, 1)));
  const std::uint64_t needed = kUnit + round_up(message.bytes);
  if (message.check != (message.bytes ^ kCheck) || needed > head_ - tail_) {
    damaged_ = true;
    return absl::DataLossError(
        fmt::format("message of {} bytes at ring position {} is damaged; restart the worker", message.bytes, tail_));
  }
  remaining_ = message.bytes;
  next_tail_ = tail_ + needed;
  return std::optional<std::size_t>(remaining_);
}

bool RingReader::read(std::span<std::byte> to) {
  if (to.size() > remaining_) return false;
  copy_out(to);
  remaining_ -= to.size();
  return true;
}

void RingReader::end() {
  remaining_ = 0;
  tail_ = next_tail_;
  header_->tail.store(tail_, std::memory_order_release);
}

void RingReader::copy_out(std::span<std::byte> to) {
  if (to.empty()) return;
  const std::size_t at = position_ & (data_.size() - 1);
  const std::size_t first = std::min(to.size(), data_.size() - at);
  std::memcpy(to.data(), data_.data() + at, first);
  if (first < to.size()) std::memcpy(to.data() + first, data_.data(), to.size() - first);
  position_ += to.size();
}

}  // namespace tandem
