// How fast the lanes prefill, as measured: a running mean over the newest prompt tokens. Orders of sequences are made
// with it, so the value that others read changes only when the mean has moved far from it. Owned by the scheduler; its
// thread alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

class PrefillSpeed final {
 public:
  std::int64_t ns_per_token() const { return settled_ns_; }

  // A step computed `num_tokens` prompt tokens in `duration_us`. True when ns_per_token() changes. Each token counts
  // the same, so that steps with few tokens, whose time is mostly a fixed cost, hardly move the mean.
  bool observe(std::uint32_t num_tokens, std::int64_t duration_us) {
    if (num_tokens == 0) return false;
    const double step_ns = 1000.0 * static_cast<double>(duration_us) / num_tokens;
    mean_ns_ += (step_ns - mean_ns_) * std::min(1.0, num_tokens / kWindowTokens);
    mean_ns_ = std::max(mean_ns_, kFastestNs);
    const double ratio = mean_ns_ / static_cast<double>(settled_ns_);
    if (ratio < kTolerance && ratio > 1.0 / kTolerance) return false;
    settled_ns_ = static_cast<std::int64_t>(mean_ns_);
    return true;
  }

 private:
  static constexpr double kWindowTokens = 4096.0;
  static constexpr double kFastestNs = 1000.0;
  static constexpr double kTolerance = 1.5;
  static constexpr std::int64_t kStartNs = 1'000'000;  // a small model on a few cores

  double mean_ns_ = static_cast<double>(kStartNs);
  std::int64_t settled_ns_ = kStartNs;
};

}  // namespace tandem
