#include "ipc/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/status.h"
#include "ipc/shared_memory.h"

namespace tandem {
namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

absl::Status push(RingWriter& writer, const Bytes& bytes) {
  const std::size_t cut = bytes.size() / 3;  // in two parts, whose border falls anywhere
  const std::span<const std::byte> parts[] = {std::span(bytes).first(cut), std::span(bytes).subspan(cut)};
  return writer.push(parts);
}

// The next message, read in two pieces; nullopt when there is none.
absl::StatusOr<std::optional<Bytes>> pop(RingReader& reader) {
  TANDEM_ASSIGN(const auto size, reader.begin());
  if (!size) return std::nullopt;
  Bytes bytes(*size);
  const std::size_t cut = bytes.size() / 2;
  if (!reader.read(std::span(bytes).first(cut)) || !reader.read(std::span(bytes).subspan(cut)) ||
      reader.remaining() != 0) {
    return absl::InternalError("message shorter than it said");
  }
  std::byte beyond;
  if (reader.read({&beyond, 1})) return absl::InternalError("read past the message");
  reader.end();
  return std::optional<Bytes>(std::move(bytes));
}

class RingTest : public testing::TestWithParam<MemoryKind> {
 protected:
  TestMemory make(std::size_t capacity) const {
    TestMemory memory(GetParam(), ring_bytes(capacity));
    init_ring(memory.bytes());
    return memory;
  }
};

TEST_P(RingTest, carries_messages_of_every_size_across_the_wrap) {
  const TestMemory memory = make(256);
  RingWriter writer = RingWriter::open(memory.bytes()).value();
  RingReader reader = RingReader::open(memory.bytes()).value();
  ASSERT_EQ(writer.max_message_bytes(), 248U);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t size = 0; size <= writer.max_message_bytes(); ++size) {
      const Bytes sent = pattern(size, size);
      ASSERT_TRUE(push(writer, sent).ok()) << size;
      ASSERT_EQ(pop(reader).value(), sent);
      ASSERT_EQ(pop(reader).value(), std::nullopt);
    }
  }
}

TEST_P(RingTest, is_full_when_it_is_full_and_drains_in_order) {
  const TestMemory memory = make(256);
  RingWriter writer = RingWriter::open(memory.bytes()).value();
  RingReader reader = RingReader::open(memory.bytes()).value();
  int sent = 0;
  while (push(writer, pattern(24, static_cast<std::uint64_t>(sent))).ok()) ++sent;
  EXPECT_EQ(sent, 8);  // 32 bytes each
  EXPECT_EQ(push(writer, pattern(0, 0)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(push(writer, pattern(249, 0)).code(), absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < sent; ++i) ASSERT_EQ(pop(reader).value(), pattern(24, static_cast<std::uint64_t>(i)));
  EXPECT_TRUE(push(writer, pattern(248, 0)).ok());
}

TEST_P(RingTest, goes_on_where_it_was_when_an_end_is_opened_again) {
  const TestMemory memory = make(256);
  RingWriter writer = RingWriter::open(memory.bytes()).value();
  ASSERT_TRUE(push(writer, pattern(40, 1)).ok());
  RingWriter again = RingWriter::open(memory.bytes()).value();
  ASSERT_TRUE(push(again, pattern(40, 2)).ok());
  RingReader reader = RingReader::open(memory.bytes()).value();
  EXPECT_EQ(pop(reader).value(), pattern(40, 1));
  RingReader reader_again = RingReader::open(memory.bytes()).value();
  EXPECT_EQ(pop(reader_again).value(), pattern(40, 2));
}

constexpr std::uint64_t kSeed = 20240607;

bool write_stream(std::span<std::byte> memory, int count) {
  RingWriter writer = RingWriter::open(memory).value();
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < count; ++i) {
    const Bytes bytes = pattern(random() % (writer.max_message_bytes() + 1), static_cast<std::uint64_t>(i));
    absl::Status status;
    while (absl::IsResourceExhausted(status = push(writer, bytes))) std::this_thread::yield();
    if (!status.ok()) return false;
  }
  return true;
}

void expect_stream(std::span<std::byte> memory, int count) {
  RingReader reader = RingReader::open(memory).value();
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < count; ++i) {
    const std::size_t size = random() % (memory.size() - sizeof(RingHeader) - 7);
    std::optional<Bytes> got;
    while (!got) {
      auto next = pop(reader);
      ASSERT_TRUE(next.ok()) << message(next.status());
      got = *std::move(next);
      if (!got) std::this_thread::yield();
    }
    ASSERT_EQ(*got, pattern(size, static_cast<std::uint64_t>(i))) << "message " << i;
  }
}

TEST_P(RingTest, keeps_order_and_bytes_between_threads) {
  const TestMemory memory = make(1024);
  bool wrote = false;
  std::thread writer([&] { wrote = write_stream(memory.bytes(), 3'000); });
  expect_stream(memory.bytes(), 3'000);
  writer.join();
  EXPECT_TRUE(wrote);
}

INSTANTIATE_TEST_SUITE_P(Memory, RingTest, testing::Values(MemoryKind::kHeap, MemoryKind::kShared),
                         [](const auto& kind) { return kind.param == MemoryKind::kHeap ? "heap" : "shared"; });

TEST(Ring, keeps_order_and_bytes_between_processes) {
  const TestMemory memory(MemoryKind::kShared, ring_bytes(1024));
  init_ring(memory.bytes());
  ChildProcess writer([&] { return write_stream(memory.bytes(), 3'000) ? 0 : 1; });
  expect_stream(memory.bytes(), 3'000);
  EXPECT_EQ(writer.join(), 0);
}

TEST(Ring, shows_no_part_of_a_message_whose_writer_was_killed) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 30; ++round) {
    const TestMemory memory(MemoryKind::kShared, ring_bytes(4096));
    init_ring(memory.bytes());
    ChildProcess writer([&] { return write_stream(memory.bytes(), 1'000'000) ? 0 : 1; });
    std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 1000));
    RingReader reader = RingReader::open(memory.bytes()).value();
    ASSERT_TRUE(pop(reader).ok());  // makes room, so that the writer is likely to be writing
    writer.kill_now();
    std::optional<Bytes> got;
    do {
      auto next = pop(reader);
      ASSERT_TRUE(next.ok()) << message(next.status());
      got = *std::move(next);
    } while (got);
  }
}

TEST(Ring, refuses_memory_that_cannot_be_a_ring) {
  const TestMemory memory(MemoryKind::kHeap, ring_bytes(256));
  EXPECT_FALSE(RingReader::open(memory.bytes().first(8)).ok());
  EXPECT_FALSE(RingReader::open(memory.bytes().first(ring_bytes(256) - 8)).ok());
  EXPECT_FALSE(RingWriter::open(memory.bytes().subspan(8)).ok());
}

struct Damage {
  const char* what;
  void (*apply)(RingHeader& header, std::byte* data);
};

TEST(Ring, reports_damage_and_stays_in_error) {
  const Damage cases[] = {
      {"head far ahead", [](RingHeader& h, std::byte*) { h.head += 1U << 20; }},
      {"head behind the tail", [](RingHeader& h, std::byte*) { h.head -= 64; }},
      {"head not on a message border", [](RingHeader& h, std::byte*) { h.head += 3; }},
      {"a length beyond what was written",
       [](RingHeader&, std::byte* d) {
         const std::uint32_t length[2] = {200, 200 ^ 0x74616e64};
         std::memcpy(d, length, 8);
       }},
      {"a huge length",
       [](RingHeader&, std::byte* d) {
         const std::uint32_t length[2] = {0xffffffff, 0xffffffff ^ 0x74616e64};
         std::memcpy(d, length, 8);
       }},
      {"a flipped length", [](RingHeader&, std::byte* d) { d[0] ^= std::byte{16}; }},
  };
  for (const Damage& damage : cases) {
    const TestMemory memory(MemoryKind::kHeap, ring_bytes(256));
    init_ring(memory.bytes());
    RingWriter writer = RingWriter::open(memory.bytes()).value();
    RingReader reader = RingReader::open(memory.bytes()).value();
    ASSERT_TRUE(push(writer, pattern(24, 1)).ok());
    auto& header = *reinterpret_cast<RingHeader*>(memory.bytes().data());
    damage.apply(header, memory.bytes().data() + sizeof(RingHeader));
    EXPECT_EQ(reader.begin().status().code(), absl::StatusCode::kDataLoss) << damage.what;
    EXPECT_EQ(reader.begin().status().code(), absl::StatusCode::kDataLoss) << damage.what;
  }
}

TEST(Ring, notices_a_tail_that_was_tampered_with) {
  for (const std::uint64_t tail : {std::uint64_t{1} << 40, ~std::uint64_t{0}, std::uint64_t{12}}) {
    const TestMemory memory(MemoryKind::kHeap, ring_bytes(256));
    init_ring(memory.bytes());
    RingWriter writer = RingWriter::open(memory.bytes()).value();
    while (push(writer, pattern(24, 1)).ok()) {
    }
    reinterpret_cast<RingHeader*>(memory.bytes().data())->tail = tail;
    EXPECT_EQ(push(writer, pattern(24, 1)).code(), absl::StatusCode::kDataLoss) << tail;
  }
}

// Whatever the other side scribbles, no access leaves the span (the sanitizer's word) and nothing hangs.
TEST(Ring, survives_random_scribbling) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 2'000; ++round) {
    const TestMemory memory(MemoryKind::kHeap, ring_bytes(128));
    init_ring(memory.bytes());
    RingWriter writer = RingWriter::open(memory.bytes()).value();
    RingReader reader = RingReader::open(memory.bytes()).value();
    for (int step = 0; step < 20; ++step) {
      if (random() % 2 == 0) push(writer, pattern(random() % 130, step)).IgnoreError();
      for (std::uint64_t n = random() % 3; n > 0; --n) {
        memory.bytes()[random() % memory.bytes().size()] = static_cast<std::byte>(random() % 4 * 8);
      }
      const auto got = pop(reader);
      if (!got.ok()) {
        ASSERT_EQ(got.status().code(), absl::StatusCode::kDataLoss);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
