#include "memory/owner.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <random>

#include "memory/owner_support.h"
#include "memory/owner_wire.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// Fills a region with one byte and publishes it.
void fill(OwnerClient& client, std::string_view name, const AttachedRegion& region, std::size_t bytes, int value,
          Seal seal) {
  {
    const Mapping mapping = Mapping::map(region.fd, bytes, Access::kReadWrite).value();
    std::fill_n(mapping.data(), bytes, static_cast<std::byte>(value));
  }
  const absl::Status status = client.publish(name, seal);
  ASSERT_TRUE(status.ok()) << message(status);
}

int first_byte(const AttachedRegion& region) {
  return static_cast<int>(Mapping::map(region.fd, 1, Access::kRead)->data()[0]);
}

TEST(Owner, lets_the_first_fill_and_others_wait_until_it_is_published) {
  const OwnerThread owner;
  OwnerClient filler = owner.client();
  const AttachedRegion mine = filler.attach("weights", 4096, kPatience).value();
  ASSERT_TRUE(mine.must_fill);
  std::atomic<bool> published{false};
  std::vector<int> seen(3, -1);
  std::vector<std::thread> threads;
  for (int& value : seen) {
    threads.emplace_back([&] {
      const AttachedRegion theirs = owner.client().attach("weights", 4096, kPatience).value();
      if (published && !theirs.must_fill) value = first_byte(theirs);
    });
  }
  std::this_thread::sleep_for(20ms);
  {
    const Mapping mapping = Mapping::map(mine.fd, 4096, Access::kReadWrite).value();
    mapping.data()[0] = std::byte{42};
  }
  published = true;
  ASSERT_TRUE(filler.publish("weights", Seal::kReadOnly).ok());
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(seen, std::vector<int>(3, 42));
}

TEST(Owner, seals_so_that_nobody_can_write) {
  const OwnerThread owner;
  OwnerClient filler = owner.client();
  const AttachedRegion region = filler.attach("weights", 4096, kPatience).value();
  {
    const Mapping still_mapped = Mapping::map(region.fd, 4096, Access::kReadWrite).value();
    EXPECT_FALSE(filler.publish("weights", Seal::kReadOnly).ok());
    EXPECT_EQ(filler.stat()->at(0).state, RegionState::kFilling) << "and it may try again";
  }
  fill(filler, "weights", region, 4096, 9, Seal::kReadOnly);
  EXPECT_FALSE(Mapping::map(region.fd, 4096, Access::kReadWrite).ok()) << "not even the filler";
  const AttachedRegion theirs = owner.client().attach("weights", 4096, kPatience).value();
  EXPECT_FALSE(Mapping::map(theirs.fd, 4096, Access::kReadWrite).ok());
  EXPECT_EQ(::pwrite(theirs.fd.get(), "x", 1, 0), -1);
  EXPECT_NE(::ftruncate(theirs.fd.get(), 0), 0);
  EXPECT_EQ(first_byte(theirs), 9);
}

TEST(Owner, shares_an_unsealed_region_for_writing) {
  const OwnerThread owner;
  OwnerClient filler = owner.client();
  fill(filler, "kv", filler.attach("kv", 4096, kPatience).value(), 4096, 1, Seal::kNone);
  const AttachedRegion a = owner.client().attach("kv", 4096, kPatience).value();
  const AttachedRegion b = filler.attach("kv", 4096, kPatience).value();
  EXPECT_FALSE(a.must_fill || b.must_fill);
  const Mapping writer = Mapping::map(a.fd, 4096, Access::kReadWrite).value();
  const Mapping reader = Mapping::map(b.fd, 4096, Access::kRead).value();
  writer.data()[100] = std::byte{77};
  EXPECT_EQ(reader.data()[100], std::byte{77});
}

TEST(Owner, passes_the_right_to_fill_on_with_a_fresh_region) {
  const OwnerThread owner;
  std::optional<OwnerClient> first = owner.client();
  AttachedRegion stale = first->attach("weights", 4096, kPatience).value();
  const Mapping zombie = Mapping::map(stale.fd, 4096, Access::kReadWrite).value();
  zombie.data()[0] = std::byte{66};
  std::optional<OwnerClient> second = owner.client();
  absl::StatusOr<AttachedRegion> taken = absl::UnknownError("");
  std::thread waiter([&] { taken = second->attach("weights", 4096, kPatience); });
  std::this_thread::sleep_for(20ms);
  first.reset();  // the filler goes; its mapping stays
  waiter.join();
  ASSERT_TRUE(taken.ok()) << message(taken.status());
  EXPECT_TRUE(taken->must_fill);
  EXPECT_EQ(first_byte(*taken), 0) << "nothing of the dead filler's bytes";
  zombie.data()[0] = std::byte{67};
  EXPECT_EQ(first_byte(*taken), 0) << "and a late write of its reaches nobody";
  fill(*second, "weights", *taken, 4096, 5, Seal::kReadOnly);
  EXPECT_EQ(first_byte(owner.client().attach("weights", 4096, kPatience).value()), 5);
}

TEST(Owner, forgets_a_region_whose_filler_went_with_nobody_waiting) {
  const OwnerThread owner;
  {
    ASSERT_TRUE(owner.client().attach("weights", 4096, kPatience)->must_fill);
  }
  OwnerClient next = owner.client();
  // Another size is as good: the region is gone. (The owner may see the two in either order.)
  absl::StatusOr<AttachedRegion> region = absl::UnknownError("");
  for (int i = 0; i < 100 && !region.ok(); ++i) {
    region = next.attach("weights", 8192, kPatience);
    if (!region.ok()) std::this_thread::sleep_for(1ms);
  }
  ASSERT_TRUE(region.ok()) << message(region.status());
  EXPECT_TRUE(region->must_fill);
}

TEST(Owner, names_both_sizes_when_they_differ) {
  const OwnerThread owner;
  OwnerClient client = owner.client();
  ASSERT_TRUE(client.attach("kv", 4096, kPatience).ok());
  const absl::Status status = owner.client().attach("kv", 12288, kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(message(status).find("4096"), std::string_view::npos);
  EXPECT_NE(message(status).find("12288"), std::string_view::npos);
}

TEST(Owner, answers_mistakes_and_goes_on) {
  const OwnerThread owner(test_address(), 1U << 20);
  OwnerClient client = owner.client();
  OwnerClient other = owner.client();
  EXPECT_EQ(client.attach("", 1, kPatience).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.attach("../etc", 1, kPatience).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.attach(std::string(64, 'x'), 1, kPatience).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.attach("r", 0, kPatience).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.attach("r", (1U << 20) + 1, kPatience).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.publish("r", Seal::kNone).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.drop("r").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client.attach("r", 1, kPatience).ok());
  EXPECT_EQ(client.attach("r", 1, kPatience).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(other.publish("r", Seal::kNone).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(other.drop("r").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.publish("r", static_cast<Seal>(7)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client.publish("r", Seal::kNone).ok());
  EXPECT_EQ(client.publish("r", Seal::kNone).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Owner, lists_and_drops_regions) {
  const OwnerThread owner;
  OwnerClient client = owner.client();
  EXPECT_TRUE(client.stat()->empty());
  fill(client, "a", client.attach("a", 100, kPatience).value(), 100, 1, Seal::kNone);
  fill(client, "b", client.attach("b", 200, kPatience).value(), 200, 1, Seal::kReadOnly);
  const AttachedRegion c = client.attach("c", 300, kPatience).value();
  const auto regions = client.stat().value();
  ASSERT_EQ(regions.size(), 3U);
  EXPECT_TRUE(regions[0].name == "a" && regions[0].bytes == 100 && regions[0].state == RegionState::kReady);
  EXPECT_TRUE(regions[1].name == "b" && regions[1].bytes == 200 && regions[1].state == RegionState::kSealed);
  EXPECT_TRUE(regions[2].name == "c" && regions[2].bytes == 300 && regions[2].state == RegionState::kFilling);
  EXPECT_TRUE(regions[0].filler_pid == 0 && regions[2].filler_pid == ::getpid()) << "only of what is being filled";
  OwnerClient other = owner.client();
  EXPECT_TRUE(other.drop("b").ok());
  EXPECT_TRUE(client.drop("c").ok());
  EXPECT_EQ(client.stat()->size(), 1U);
  EXPECT_TRUE(other.attach("b", 500, kPatience)->must_fill) << "the name is free for another size";
}

TEST(Owner, its_end_shows_on_idle_connections) {
  OwnerThread owner;
  OwnerClient client = owner.client();
  ASSERT_TRUE(client.stat().ok());
  EXPECT_FALSE(client.closed());
  EXPECT_TRUE(owner.stop().ok());
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(absl::IsUnavailable(client.stat().status()));
  EXPECT_TRUE(client.closed());
}

TEST(Owner, bounds_its_peers_and_regions) {
  const OwnerThread owner;
  OwnerClient client = owner.client();
  for (std::size_t i = 0; i < kMaxOwnerRegions; ++i) {
    ASSERT_TRUE(client.attach("r" + std::to_string(i), 1, kPatience).ok());
  }
  EXPECT_EQ(client.attach("more", 1, kPatience).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(client.stat()->size(), kMaxOwnerRegions);
  std::vector<OwnerClient> peers;
  for (std::size_t i = 1; i < kMaxOwnerPeers; ++i) {
    peers.push_back(owner.client());
    ASSERT_TRUE(peers.back().stat().ok());
  }
  EXPECT_EQ(owner.client().stat().status().code(), absl::StatusCode::kResourceExhausted);
  peers.pop_back();
  EXPECT_TRUE(client.stat().ok());
}

// A raw connection, to say what OwnerClient never would.
FileDescriptor raw_connection(const std::string& address) {
  const auto where = owner_wire::parse_address(address).value();
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval patience = {.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  for (int i = 0; i < 1000; ++i) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where.socket), where.length) == 0) break;
    std::this_thread::sleep_for(1ms);
  }
  return socket;
}

TEST(Owner, outlives_garbage) {
  const OwnerThread owner;
  OwnerClient good = owner.client();
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    const FileDescriptor socket = raw_connection(owner.address());
    owner_wire::Request request;
    std::vector<std::byte> bytes(i % 3 == 0 ? random() % 9000 : sizeof(request));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (i % 3 == 1) {  // a good head with a bad rest: a verb nobody knows, a name without an end
      request.verb = static_cast<owner_wire::Verb>(random() % 8);
      std::memcpy(bytes.data(), &request, 8);
    }
    // With a descriptor, which must not stay open in the owner.
    owner_wire::send_message(socket, bytes, i % 2 == 0 ? socket.get() : -1).IgnoreError();
    if (i % 5 == 0) {
      char reply[64];
      static_cast<void>(::recv(socket.get(), reply, sizeof(reply), MSG_DONTWAIT));
    }
  }
  EXPECT_TRUE(good.stat()->empty());
}

TEST(Owner, takes_no_request_that_is_longer_than_one) {
  const OwnerThread owner;
  const FileDescriptor socket = raw_connection(owner.address());
  const owner_wire::Request requests[2];
  ASSERT_TRUE(owner_wire::send_message(socket, std::as_bytes(std::span(requests)), -1).ok());
  char byte;
  EXPECT_EQ(::recv(socket.get(), &byte, 1, 0), 0) << "closed";
}

TEST(Owner, passes_over_waiters_that_have_gone) {
  const OwnerThread owner;
  std::optional<OwnerClient> filler = owner.client();
  ASSERT_TRUE(filler->attach("w", 10, kPatience).ok());
  EXPECT_FALSE(owner.client().attach("w", 10, 5ms).ok());
  OwnerClient last = owner.client();
  absl::StatusOr<AttachedRegion> region = absl::UnknownError("");
  std::thread waiter([&] { region = last.attach("w", 10, kPatience); });
  std::this_thread::sleep_for(20ms);
  filler.reset();
  waiter.join();
  ASSERT_TRUE(region.ok()) << message(region.status());
  EXPECT_TRUE(region->must_fill);
}

TEST(Owner, drops_a_peer_that_talks_while_it_waits) {
  const OwnerThread owner;
  OwnerClient filler = owner.client();
  ASSERT_TRUE(filler.attach("w", 10, kPatience).ok());
  const FileDescriptor socket = raw_connection(owner.address());
  owner_wire::Request request{.verb = owner_wire::Verb::kAttach, .value = 10};
  owner_wire::set_field(request.name, "w");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(owner_wire::send_message(socket, std::as_bytes(std::span(&request, 1)), -1).ok());
  }
  char byte;
  EXPECT_EQ(::recv(socket.get(), &byte, 1, 0), 0) << "closed";
  EXPECT_TRUE(filler.publish("w", Seal::kNone).ok());
}

TEST(Owner, refuses_other_users) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const OwnerThread owner;
  OwnerClient good = owner.client();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(3);
    const auto stranger = OwnerClient::connect(owner.address(), 1s);  // sees that the owner is not its user's
    if (!absl::IsPermissionDenied(stranger.status())) ::_exit(1);
    const FileDescriptor socket = raw_connection(owner.address());  // and the owner sees it, too
    owner_wire::Answer answer;
    const bool refused = ::recv(socket.get(), &answer, sizeof(answer), 0) == sizeof(answer) &&
                         answer.code == static_cast<int>(absl::StatusCode::kPermissionDenied) &&
                         ::recv(socket.get(), &answer, sizeof(answer), 0) == 0;
    ::_exit(refused ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(good.stat().ok());
}

TEST(Owner, listens_at_a_path_and_takes_over_a_dead_ones) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("tandem" + test_address().substr(1));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "owner";
  {
    const FileDescriptor killed = bind_owner_socket(path).value();
  }  // leaves its file behind
  ASSERT_TRUE(std::filesystem::exists(path));
  {
    OwnerThread owner(path);
    EXPECT_TRUE(owner.client().stat().ok());
    EXPECT_EQ(bind_owner_socket(path).status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(owner.client().stat().ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "an owner that ends in order removes its file";
  std::filesystem::remove_all(folder);
  const std::string address = test_address();
  const OwnerThread abstract_owner(address);
  ASSERT_TRUE(abstract_owner.client().stat().ok());
  EXPECT_EQ(bind_owner_socket(address).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(bind_owner_socket(std::string(200, 'a')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Owner, takes_a_bound_listener_and_stops_when_its_keeper_says_so) {
  OwnerOptions options;
  const std::string address = test_address();
  options.listener = bind_owner_socket(address).value();
  std::atomic<bool> keep{true};
  options.keep_running = [&] { return keep.load(); };
  std::vector<std::string> lines;
  options.report = [&](std::string_view line) { lines.emplace_back(line); };
  absl::Status status = absl::UnknownError("");
  std::thread thread([&] {
    cpu::MemfdSource source;
    status = run_owner(std::move(options), source);
  });
  {
    OwnerClient client = OwnerClient::connect(address, 1s).value();
    EXPECT_TRUE(client.attach("a", 1, kPatience)->must_fill);
    keep = false;
  }
  thread.join();
  EXPECT_TRUE(status.ok());
  EXPECT_GE(lines.size(), 2U);
}

}  // namespace
}  // namespace tandem
