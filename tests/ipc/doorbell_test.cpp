#include "ipc/doorbell.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>
#include <vector>

#include "ipc/shared_memory.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr auto kSpin = Doorbell::kDefaultSpin;

// Two bells and a turn counter: each side waits for the other's move, so one lost wake-up stops the game.
struct Game {
  Doorbell even;
  Doorbell odd;
  std::atomic<int> turn{0};
};

bool play(Game& game, int me, int rounds, std::chrono::microseconds spin) {
  Doorbell& mine = me == 0 ? game.even : game.odd;
  Doorbell& others = me == 0 ? game.odd : game.even;
  for (int i = 0; i < rounds; ++i) {
    while (true) {
      const auto seen = mine.seen();
      if (game.turn.load(std::memory_order_acquire) % 2 == me) break;
      if (!mine.wait(seen, 5s, spin)) return false;
    }
    game.turn.fetch_add(1, std::memory_order_release);
    others.ring();
  }
  return true;
}

TEST(Doorbell, loses_no_wake_up_between_threads) {
  for (const auto spin : {0us, kSpin}) {
    Game game;
    bool other = false;
    std::thread thread([&] { other = play(game, 1, 10'000, spin); });
    EXPECT_TRUE(play(game, 0, 10'000, spin));
    thread.join();
    EXPECT_TRUE(other);
    EXPECT_EQ(game.turn.load(), 20'000);
  }
}

TEST(Doorbell, loses_no_wake_up_between_processes) {
  const TestMemory memory(MemoryKind::kShared, sizeof(Game));
  auto& game = *new (memory.bytes().data()) Game;
  ChildProcess child([&] { return play(game, 1, 10'000, 0us) ? 0 : 1; });
  EXPECT_TRUE(play(game, 0, 10'000, 0us));
  EXPECT_EQ(child.join(), 0);
}

TEST(Doorbell, returns_at_once_when_rung_before_the_wait) {
  Doorbell bell;
  const auto seen = bell.seen();
  bell.ring();
  EXPECT_TRUE(bell.wait(seen, 0us, 0us));
  EXPECT_TRUE(bell.wait(seen, 10s, 0us));
}

TEST(Doorbell, times_out_when_nobody_rings) {
  Doorbell bell;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(bell.wait(bell.seen(), 20ms, 5ms));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);
  EXPECT_FALSE(bell.wait(bell.seen(), -1us));
  EXPECT_FALSE(bell.wait(bell.seen(), 0us, std::chrono::microseconds::max()));
}

TEST(Doorbell, wakes_every_waiter_and_any_number_of_ringers_may_ring) {
  Doorbell bell;
  std::atomic<int> count{0};
  constexpr int kRingers = 3;
  constexpr int kRings = 2'000;
  const auto listen = [&] {
    while (true) {
      const auto seen = bell.seen();
      if (count.load() == kRingers * kRings) return true;
      if (!bell.wait(seen, 5s, 0us)) return false;
    }
  };
  std::vector<int> heard(3, 0);
  std::vector<std::thread> threads;
  for (int& result : heard) threads.emplace_back([&] { result = listen(); });
  for (int i = 0; i < kRingers; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kRings; ++j) {
        count.fetch_add(1);
        bell.ring();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(heard, std::vector<int>(3, 1));
}

TEST(Doorbell, still_works_after_a_waiter_was_killed) {
  const TestMemory memory(MemoryKind::kShared, sizeof(Doorbell));
  auto& bell = *new (memory.bytes().data()) Doorbell;
  ChildProcess child([&] { return bell.wait(bell.seen(), 10s, 0us) ? 0 : 1; });
  std::this_thread::sleep_for(10ms);
  child.kill_now();
  const auto seen = bell.seen();
  bell.ring();
  EXPECT_TRUE(bell.wait(seen, 0us));
}

}  // namespace
}  // namespace tandem
