// Processes that die by SIGKILL: the owner, a filler, everybody.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "base/process_state.h"
#include "fmt/core.h"
#include "ipc/shared_memory.h"
#include "memory/owner_support.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

int serve_at(const std::string& address) {
  OwnerOptions options;
  options.address = address;
  cpu::MemfdSource source;
  return run_owner(std::move(options), source).ok() ? 0 : 1;
}

TEST(OwnerDeath, is_unavailable_to_its_clients_and_leaves_the_address_free) {
  const std::string address = test_address();
  for (int life = 0; life < 3; ++life) {
    ChildProcess owner([&] { return serve_at(address); });
    OwnerClient client = OwnerClient::connect(address, kPatience).value();
    const AttachedRegion region = client.attach("kv", 4096, kPatience).value();
    EXPECT_TRUE(region.must_fill) << "nothing is left of the life before";
    OwnerClient waiter = OwnerClient::connect(address, kPatience).value();
    absl::StatusOr<AttachedRegion> waited = absl::UnknownError("");
    std::thread thread([&] { waited = waiter.attach("kv", 4096, kPatience); });
    std::this_thread::sleep_for(5ms);
    owner.kill_now();
    thread.join();
    EXPECT_EQ(waited.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(client.stat().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(client.publish("kv", Seal::kNone).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(OwnerClient::connect(address, 10ms).status().code(), absl::StatusCode::kUnavailable);
    Mapping::map(region.fd, 4096, Access::kReadWrite)->data()[0] = std::byte{1};  // its memory is still ours
  }
}

TEST(OwnerDeath, a_killed_filler_makes_way_at_any_moment) {
  const OwnerThread owner;
  std::mt19937_64 random(9);
  for (int round = 0; round < 40; ++round) {
    const std::string name = "weights" + std::to_string(round);
    ChildProcess filler([&] {
      auto client = OwnerClient::connect(owner.address(), kPatience);
      const auto region = client->attach(name, 1U << 20, kPatience);
      if (region->must_fill) {
        const auto mapping = Mapping::map(region->fd, 1U << 20, Access::kReadWrite);
        std::fill_n(mapping->data(), 1U << 20, std::byte{1});
      }
      static_cast<void>(client->publish(name, Seal::kReadOnly));
      ::pause();
      return 0;
    });
    OwnerClient client = owner.client();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1'500));
    std::thread killer([&, delay = random() % 1'000] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      filler.kill_now();
    });
    const AttachedRegion region = client.attach(name, 1U << 20, kPatience).value();
    killer.join();
    const Mapping mapping = Mapping::map(region.fd, 1U << 20, Access::kRead).value();
    const int expected = region.must_fill ? 0 : 1;  // fresh, or filled to the last byte
    EXPECT_EQ(std::count(mapping.data(), mapping.data() + mapping.size(), static_cast<std::byte>(expected)), 1 << 20);
    if (region.must_fill) {
      ASSERT_TRUE(client.publish(name, Seal::kNone).ok());
    }
    ASSERT_TRUE(client.drop(name).ok());
  }
}

TEST(OwnerDeath, nothing_is_left_when_all_are_killed) {
  const std::string address = test_address();
  ChildProcess owner([&] { return serve_at(address); });
  ChildProcess worker([&] {
    auto client = OwnerClient::connect(address, kPatience);
    const auto region = client->attach("kv", 1U << 20, kPatience);
    static_cast<void>(client->publish("kv", Seal::kNone));
    ::pause();
    return 0;
  });
  OwnerClient client = OwnerClient::connect(address, kPatience).value();
  while (client.stat()->empty()) std::this_thread::sleep_for(1ms);
  worker.kill_now();
  owner.kill_now();
  EXPECT_TRUE(bind_owner_socket(address).ok()) << "the name is free";
  EXPECT_EQ(client.stat().status().code(), absl::StatusCode::kUnavailable);
}

TEST(OwnerClient, names_a_stopped_owner_and_the_remedy) {
  const std::string address = test_address();
  ChildProcess owner([&] { return serve_at(address); });
  OwnerClient client = OwnerClient::connect(address, kPatience).value();
  ASSERT_EQ(client.peer_pid(), owner.pid());
  ASSERT_EQ(::kill(owner.pid(), SIGSTOP), 0);
  for (int i = 0; i < 5000 && !is_stopped(owner.pid()); ++i) std::this_thread::sleep_for(1ms);
  OwnerClient late = OwnerClient::connect(address, kPatience).value();  // by the kernel alone
  const absl::Status status = late.attach("kv", 4096, std::chrono::hours(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(message(status).find(fmt::format("`kill -CONT {}`", owner.pid())), std::string_view::npos) << status;
  ASSERT_EQ(::kill(owner.pid(), SIGCONT), 0);
  EXPECT_TRUE(client.attach("kv", 4096, kPatience).value().must_fill) << "what was asked meanwhile is nobody's";
}

TEST(OwnerClient, says_how_long_it_waited_for_an_owner_and_for_an_answer) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(OwnerClient::connect(test_address(), 30ms).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 30ms);
  EXPECT_EQ(OwnerClient::connect("x", 30ms).status().code(), absl::StatusCode::kInvalidArgument);
  const OwnerThread owner;
  OwnerClient filler = owner.client();
  ASSERT_TRUE(filler.attach("w", 10, kPatience).ok());
  OwnerClient waiter = owner.client();
  EXPECT_EQ(waiter.attach("w", 10, 20ms).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waiter.stat().status().code(), absl::StatusCode::kUnavailable) << "the late answer is nobody's";
  EXPECT_TRUE(filler.publish("w", Seal::kNone).ok());
}

}  // namespace
}  // namespace tandem
