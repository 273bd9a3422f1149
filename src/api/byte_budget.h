// One bound over memory that many connections hold at once: the requests that have begun to arrive and are not parsed
// yet. A flood of slow uploads is refused when the budget is used up, instead of using up the memory. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tandem {

class ByteBudget final {
 public:
  explicit ByteBudget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class ByteShare;
  bool take(std::uint64_t bytes) {
    if (used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_bytes_) return true;
    give_back(bytes);
    return false;
  }
  void give_back(std::uint64_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  const std::uint64_t limit_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};
};

// What one request holds of a budget, which outlives it. Given back when dropped.
class ByteShare final {
 public:
  explicit ByteShare(ByteBudget& budget) : budget_(&budget) {}
  ByteShare(ByteShare&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteShare& operator=(ByteShare&&) = delete;
  ~ByteShare() { budget_->give_back(bytes_); }

  // False: the budget has no room for so much; the share is as before.
  bool resize(std::uint64_t bytes) {
    if (bytes > bytes_ && !budget_->take(bytes - bytes_)) return false;
    if (bytes < bytes_) budget_->give_back(bytes_ - bytes);
    bytes_ = bytes;
    return true;
  }

 private:
  ByteBudget* budget_;
  std::uint64_t bytes_ = 0;
};

}  // namespace tandem
