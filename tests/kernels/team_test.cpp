#include "kernels/cpu/team.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::cpu {
namespace {

std::unique_ptr<Team> make_team(Share share) {
  auto team = Team::create(share);
  EXPECT_TRUE(team.ok()) << team.status();
  return *std::move(team);
}

TEST(Team, calls_each_worker_once_and_sees_their_writes) {
  for (const std::uint16_t count : {1, 2, 3, 7}) {
    const auto team = make_team({0, count});
    ASSERT_EQ(team->active(), count);
    std::vector<int> calls(count, 0);  // plain ints: the run itself must order them
    for (int i = 0; i < 200; ++i) {
      team->run([&](int worker, int num_workers) {
        EXPECT_EQ(num_workers, count);
        ++calls[static_cast<std::size_t>(worker)];
      });
    }
    EXPECT_EQ(calls, std::vector<int>(count, 200));
  }
}

TEST(Team, worker_zero_is_the_caller) {
  const auto team = make_team({0, 3});
  const std::thread::id self = std::this_thread::get_id();
  team->run([&](int worker, int) { EXPECT_EQ(worker == 0, std::this_thread::get_id() == self); });
}

TEST(Team, shares_move_between_runs) {
  const auto team = make_team({2, 4});
  std::uint32_t random = 1;
  for (int i = 0; i < 500; ++i) {
    random = random * 1664525U + 1013904223U;
    const auto first = static_cast<std::uint16_t>(2 + (random >> 16) % 4);
    const auto count = static_cast<std::uint16_t>(1 + (random >> 24) % static_cast<unsigned>(6 - first));
    ASSERT_TRUE(team->set_share({first, count}).ok());
    ASSERT_EQ(team->active(), count);
    std::vector<int> calls(4, 0);
    team->run([&](int worker, int num_workers) {
      EXPECT_EQ(num_workers, count);
      ++calls[static_cast<std::size_t>(worker)];
    });
    for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(calls[w], w < count ? 1 : 0);
  }
  ASSERT_TRUE(team->set_share({0, 0}).ok());
  EXPECT_EQ(team->active(), 4);
}

TEST(Team, refuses_a_share_outside_its_own) {
  const auto team = make_team({1, 2});
  for (const Share share : {Share{0, 1}, Share{1, 3}, Share{2, 2}, Share{3, 1}, Share{65535, 65535}}) {
    EXPECT_EQ(team->set_share(share).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(team->active(), 2);
}

TEST(Team, pins_the_caller_to_the_first_unit_and_gives_its_cores_back) {
  const std::vector<int> cpus = allowed_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two cores";
  {
    const auto team = make_team({0, 2});
    EXPECT_EQ(allowed_cpus(), std::vector<int>{cpus[0]});
    ASSERT_TRUE(team->set_share({1, 1}).ok());
    EXPECT_EQ(allowed_cpus(), std::vector<int>{cpus[1]});
    ASSERT_TRUE(team->set_share({0, 2}).ok());
    team->run(
        [&](int worker, int) { EXPECT_EQ(allowed_cpus(), std::vector<int>{cpus[static_cast<std::size_t>(worker)]}); });
  }
  EXPECT_EQ(allowed_cpus(), cpus);
}

TEST(Team, wakes_workers_that_sleep) {
  const auto team = make_team({0, 2});
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far past the spin
    std::atomic<int> calls{0};
    team->run([&](int worker, int) {
      if (worker == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // now the caller sleeps
      ++calls;
    });
    EXPECT_EQ(calls.load(), 2);
  }
}

// Two lanes, each with more threads than there may be cores, on the same units.
TEST(Team, two_teams_on_the_same_cores_make_progress) {
  const auto lane = [](std::uint64_t* total) {
    const auto team = make_team({0, 4});
    std::vector<std::uint64_t> sums(4 * 8, 0);  // a cache line each
    for (int i = 0; i < 300; ++i) {
      team->run([&](int worker, int) { sums[static_cast<std::size_t>(worker) * 8] += 1; });
    }
    for (const std::uint64_t sum : sums) *total += sum;
  };
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::thread first(lane, &a);
  std::thread second(lane, &b);
  first.join();
  second.join();
  EXPECT_EQ(a, 1200U);
  EXPECT_EQ(b, 1200U);
}

TEST(Team, scratch_is_aligned_and_stays) {
  const auto team = make_team({0, 2});
  std::byte* shared = team->shared_scratch(1000);
  std::byte* own = team->worker_scratch(1, 5000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(own) % 64, 0U);
  std::memset(shared, 1, 1000);
  std::memset(own, 2, 5000);
  EXPECT_EQ(team->shared_scratch(10), shared);
  EXPECT_EQ(team->worker_scratch(1, 5000), own);
  EXPECT_NE(team->worker_scratch(0, 10), own);
  EXPECT_EQ(shared[999], std::byte{1});
  EXPECT_NE(team->shared_scratch(0), nullptr);
}

}  // namespace
}  // namespace tandem::cpu
