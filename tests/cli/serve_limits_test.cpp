#include "cli/serve_limits.h"

#include <gtest/gtest.h>

#include "base/status.h"

namespace tandem {
namespace {

TEST(DefaultThreads, a_quota_is_rounded_up_to_whole_threads) {
  EXPECT_EQ(default_threads(16, {}), 16U);
  EXPECT_EQ(default_threads(16, 2.5), 3U);
  EXPECT_EQ(default_threads(16, 3.0), 3U);
  EXPECT_EQ(default_threads(16, 0.2), 1U);
  EXPECT_EQ(default_threads(4, 64.0), 4U);
  EXPECT_EQ(default_threads(0, {}), 1U);
}

TEST(MachineLine, says_the_limits_or_that_there_are_none) {
  const std::uint64_t gib = std::uint64_t{1} << 30;
  EXPECT_EQ(machine_line(16, 16, 12 * gib, {}),
            "16 cores, no quota was found: 16 threads; 12.00 GiB of memory available, no limit was found");
  EXPECT_EQ(machine_line(16, 3, gib / 2, {.cpus = 2.5, .memory_bytes = gib, .memory_left_bytes = gib / 2}),
            "16 cores, a quota of 2.5: 3 threads; 0.50 GiB of memory available, a limit of 1.00 GiB");
}

TEST(ConnectionPlan, connections_leave_descriptors_for_everything_else) {
  const ConnectionPlan plan{.wanted = 8192, .probes = 64, .http_threads = 1, .grpc = false};
  EXPECT_EQ(*fit_connections(plan, {1'000'000, 30}), 8192U);
  const std::uint32_t few = *fit_connections(plan, {1024, 30});
  EXPECT_EQ(few, 1024U - 30 - 64 - 64 - 4);
  EXPECT_EQ(*fit_connections({.wanted = 100, .probes = 64, .http_threads = 1, .grpc = false}, {1024, 30}), 100U);
  const ConnectionPlan both{.wanted = 8192, .probes = 64, .http_threads = 8, .grpc = true};
  EXPECT_LT(*fit_connections(both, {1024, 30}), few * 3 / 4);
  const auto none = fit_connections(plan, {150, 30});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(message(none.status()).find("ulimit -n"), std::string_view::npos);
  EXPECT_FALSE(fit_connections(plan, {10, 30}).ok());
}

TEST(ConnectionPlan, the_limit_that_is_wanted_holds_all_of_them) {
  for (const bool grpc : {false, true}) {
    for (const std::uint32_t wanted : {1U, 8U, 1000U, 8191U, 8192U}) {
      const ConnectionPlan plan{.wanted = wanted, .probes = 64, .http_threads = 3, .grpc = grpc};
      const std::uint64_t limit = wanted_descriptors(plan, 41);
      if (wanted >= 8) {
        EXPECT_EQ(*fit_connections(plan, {limit, 41}), wanted) << grpc;
      }
    }
  }
}

}  // namespace
}  // namespace tandem
