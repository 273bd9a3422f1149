#include "kernels/cpu/team.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::cpu {
namespace {

// A core for every unit, though they may be the same core: a thread for each.
std::unique_ptr<Team> make_team(Share share) {
  const std::vector<int> allowed = allowed_cpus();
  std::vector<int> cpus;
  for (std::size_t unit = 0; unit < std::size_t{share.first} + share.count; ++unit) {
    cpus.push_back(allowed[unit % allowed.size()]);
  }
  auto team = Team::create(share, cpus);
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

TEST(Team, worker_zeros_part_is_the_callers) {
  const auto team = make_team({0, 3});
  const std::thread::id self = std::this_thread::get_id();
  team->run([&](int worker, int) {
    if (worker == 0) {
      EXPECT_EQ(std::this_thread::get_id(), self);
    }
  });
}

// Spins until `done` or for five seconds.
template <class Done>
bool eventually(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return done();
}

TEST(Team, workers_run_at_the_same_time) {
  const auto team = make_team({0, 3});
  std::atomic<int> begun{0};
  bool all_begun = false;
  // The caller waits in its own part, so nobody else can begin the others'.
  team->run([&](int worker, int) {
    ++begun;
    if (worker == 0) all_begun = eventually([&] { return begun == 3; });
  });
  EXPECT_TRUE(all_begun);
}

TEST(Team, the_caller_does_what_a_sleeping_worker_has_not_begun) {
  const std::vector<int> cpus = allowed_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two cores";
  const auto team = make_team({0, 2});
  int taken = 0;
  const std::thread::id self = std::this_thread::get_id();
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // the worker sleeps
    team->run([&](int worker, int) {
      if (worker == 1 && std::this_thread::get_id() == self) ++taken;
    });
  }
  EXPECT_GT(taken, 0) << "empty parts are over before a sleeper is awake";
}

TEST(Team, a_unit_past_the_cores_gets_no_thread_and_its_part_is_done) {
  const std::vector<int> cpus(1, allowed_cpus().front());
  const auto team = *Team::create({0, 64}, cpus);
  EXPECT_EQ(team->active(), 64);
  std::vector<int> calls(64, 0);
  const std::thread::id self = std::this_thread::get_id();
  team->run([&](int worker, int num_workers) {
    EXPECT_EQ(num_workers, 64);
    EXPECT_EQ(std::this_thread::get_id(), self);
    ++calls[static_cast<std::size_t>(worker)];
  });
  EXPECT_EQ(calls, std::vector<int>(64, 1));
}

TEST(Team, more_units_than_threads_share_the_rest) {
  const std::vector<int> cpus(3, allowed_cpus().front());
  const auto team = *Team::create({1, 7}, cpus);  // two threads
  constexpr Share kShares[] = {{1, 7}, {1, 5}, {2, 6}, {1, 1}, {3, 4}};
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(team->set_share(kShares[i % std::size(kShares)]).ok());
    std::vector<int> calls(7, 0);
    team->run([&](int worker, int) { ++calls[static_cast<std::size_t>(worker)]; });
    for (int w = 0; w < 7; ++w) EXPECT_EQ(calls[static_cast<std::size_t>(w)], w < team->active() ? 1 : 0);
  }
}

double cpu_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(Team, idle_workers_use_no_processor_time) {
  const auto team = make_team({0, 4});
  team->run([](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // past the spin
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.02);
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
    std::atomic<int> begun{0};
    bool all_begun = false;
    team->run([&](int worker, int) {
      ++begun;
      if (worker == 0) all_begun = eventually([&] { return begun == 2; });  // so that each does its own part
      EXPECT_EQ(allowed_cpus(), std::vector<int>{cpus[static_cast<std::size_t>(worker)]});
    });
    EXPECT_TRUE(all_begun);
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

// Ends the test binary with a sentence when `work` has not returned after `limit`: a thread that sleeps for good cannot
// be joined.
template <class Work>
void within(std::chrono::seconds limit, const char* what, const Work& work) {
  std::promise<void> done;
  std::thread watchdog([future = done.get_future(), limit, what] {
    if (future.wait_for(limit) == std::future_status::ready) return;
    std::fprintf(stderr, "Team: %s has not returned after %lld s: a wake-up was lost\n", what,
                 static_cast<long long>(limit.count()));
    std::_Exit(1);
  });
  work();
  done.set_value();
  watchdog.join();
}

void spin_for(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Several threads a core: the caller takes parts over from helpers that lost their core between two instructions. What
// that may do is found by chance here, surely by team_preemption_test.cpp.
TEST(Team, loses_no_helper_and_no_wake_up_with_more_threads_than_cores) {
  for (const std::uint16_t count : {4, 8}) {
    auto team = make_team({0, count});
    within(std::chrono::seconds(60), "run()", [&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
      for (std::uint32_t random = 1; std::chrono::steady_clock::now() < end;) {
        random = random * 1664525U + 1013904223U;
        const int slow = 1 + static_cast<int>(random >> 16U) % (count - 1);
        const std::chrono::microseconds longest(60 + (random >> 24U));  // past the time a waiter spins
        team->run([&](int worker, int) {
          spin_for(worker == slow ? longest : std::chrono::microseconds(worker == 0 ? 5 : 3));
        });
      }
    });
    // The caller waits in its own part, so that nobody else can begin the others': each helper has to.
    std::vector<std::atomic<int>> begun(count);
    for (int run = 0; run < 20; ++run) {
      team->run([&](int worker, int) {
        ++begun[static_cast<std::size_t>(worker)];
        const auto all = [&] { return std::ranges::all_of(begun, [&](const auto& n) { return n == run + 1; }); };
        if (worker == 0) {
          EXPECT_TRUE(eventually(all)) << "a helper sleeps for good";
        }
      });
      if (HasFailure()) break;
    }
    within(std::chrono::seconds(10), "the destructor", [&] { team.reset(); });
  }
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
