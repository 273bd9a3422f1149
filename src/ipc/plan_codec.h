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

// Encodes without copying the lists; reused, it allocates nothing after warm-up. Belongs to one thread.
class PlanEncoder final {
 public:
  // The message as parts, valid until the next call and while `plan` is unchanged. Spans do not travel.
  std::span<const std::span<const std::byte>> encode(const Plan& plan);

 private:
  std::array<std::uint64_t, 9> head_{};
  std::vector<PlanItem> items_;
  std::array<std::span<const std::byte>, 7> parts_;
};

class ResultEncoder final {
 public:
  std::span<const std::span<const std::byte>> encode(const Result& result);

 private:
  std::array<std::uint64_t, 7> head_{};
  std::array<std::span<const std::byte>, 5> parts_;
};

// Reads the message that `reader` has begun. DataLoss: it is not one of these; the object is then cleared.
absl::Status decode(RingReader& reader, Plan& plan);
absl::Status decode(RingReader& reader, Result& result);

}  // namespace tandem
