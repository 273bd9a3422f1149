#include "cli/serve_limits.h"

#include <algorithm>
#include <cmath>

#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::uint64_t kFewestConnections = 8;
constexpr std::uint64_t kPerHttpThread = 4;  // its event loop

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1U << 30U); }

std::uint64_t kept(const ConnectionPlan& plan) {
  return kReservedDescriptors + plan.probes + kPerHttpThread * plan.http_threads;
}

}  // namespace

std::uint32_t default_threads(std::size_t num_cores, std::optional<double> cpu_quota) {
  const auto cores = static_cast<double>(std::max<std::size_t>(num_cores, 1));
  return static_cast<std::uint32_t>(std::clamp(std::ceil(cpu_quota.value_or(cores)), 1.0, cores));
}

std::string machine_line(std::size_t num_cores, std::uint32_t threads, std::uint64_t available_bytes,
                         const CgroupLimits& limits) {
  const std::string quota = limits.cpus ? fmt::format("a quota of {:.4g}", *limits.cpus) : "no quota was found";
  const std::string memory =
      limits.memory_bytes ? fmt::format("a limit of {:.2f} GiB", gib(*limits.memory_bytes)) : "no limit was found";
  return fmt::format("{} cores, {}: {} threads; {:.2f} GiB of memory available, {}", num_cores, quota, threads,
                     gib(available_bytes), memory);
}

std::uint64_t wanted_descriptors(const ConnectionPlan& plan, std::uint64_t open) {
  const std::uint64_t clients = plan.grpc ? (std::uint64_t{plan.wanted} * 4 + 2) / 3 : plan.wanted;
  return clients + kept(plan) + open;
}

absl::StatusOr<std::uint32_t> fit_connections(const ConnectionPlan& plan, const Descriptors& descriptors) {
  const std::uint64_t used = descriptors.open + kept(plan);
  std::uint64_t left = descriptors.limit - std::min(used, descriptors.limit);
  if (plan.grpc) left -= left / 4;
  if (left < kFewestConnections) {
    return absl::ResourceExhaustedError(
        fmt::format("the limit of open files, {}, leaves {} for clients; raise it (ulimit -n) to {} at least",
                    descriptors.limit, left, used + 2 * kFewestConnections));
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(plan.wanted, left));
}

}  // namespace tandem
