// Plans and results as bytes: a fixed head and then each flat list as it lies in memory (both ends are the same
// binary). What decodes is safe to use: counts, runs and enumerators are checked, so a lane may index a
// decoded plan's lists by its runs. Token and block ids are checked by who knows their limits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "ipc/ring.h"
#include "tandem/transport.h"

namespace tandem {

inline constexpr std::size_t kPlanHeadWords = 10;
inline constexpr std::size_t kResultHeadWords = 8;

// Encodes without copying the lists; reused, it allocates nothing after warm-up. Belongs to one thread.
class PlanEncoder final {
 public:
  // The message as parts, valid until the next call and while `plan` is unchanged. Spans do not travel.
  std::span<const std::span<const std::byte>> encode(const Plan& plan);

 private:
  std::array<std::uint64_t, kPlanHeadWords> head_{};
  std::vector<PlanItem> items_;
  std::array<std::span<const std::byte>, 8> parts_;
};

class ResultEncoder final {
 public:
  std::span<const std::span<const std::byte>> encode(const Result& result);

 private:
  std::array<std::uint64_t, kResultHeadWords> head_{};
  std::array<std::span<const std::byte>, 5> parts_;
};

// What the plan's message takes in a ring.
std::size_t message_bytes(const Plan& plan);

// Reads the message that `reader` has begun. DataLoss: it is not one of these; the object is then cleared.
absl::Status decode(RingReader& reader, Plan& plan);
absl::Status decode(RingReader& reader, Result& result);

}  // namespace tandem
