// What `tandem serve` derives from its machine before it starts: numbers and names that no option gives. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/cgroup.h"
#include "base/descriptors.h"

namespace tandem {

// Threads to compute with when none are asked for: a quota of 2.5 CPUs is used by three threads, and more of them would
// only wait for their turn.
std::uint32_t default_threads(std::size_t num_cores, std::optional<double> cpu_quota);

// "16 cores, a quota of 2.5: 3 threads; 12.0 GiB of memory available, a limit of 16.0 GiB"
std::string machine_line(std::size_t num_cores, std::uint32_t threads, std::uint64_t available_bytes,
                         const CgroupLimits& limits);

struct ConnectionPlan {
  std::uint32_t wanted = 0;  // --max-connections
  std::uint32_t probes = 0;  // connections beyond them that the front end may have
  std::uint32_t http_threads = 1;
  bool grpc = false;  // its connections are descriptors, too
};
inline constexpr std::uint64_t kReservedDescriptors = 64;  // for replacing workers, files, the log
// The limit of descriptors with which all the connections fit.
std::uint64_t wanted_descriptors(const ConnectionPlan& plan, std::uint64_t open);
// As many connections as fit. ResourceExhausted when that is too few to serve anybody.
absl::StatusOr<std::uint32_t> fit_connections(const ConnectionPlan& plan, const Descriptors& descriptors);

}  // namespace tandem
