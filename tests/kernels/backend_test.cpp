#include "kernels/cpu/backend.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"
#include "support/reference.h"

namespace tandem::cpu {
namespace {

std::unique_ptr<Backend> make_backend(const CpuOptions& options = {.isa = "", .threads = 2}) {
  auto backend = create_cpu_backend(options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

TEST(CpuBackend, says_what_it_chose) {
  const auto backend = make_backend();
  EXPECT_EQ(backend->info().name, "cpu");
  EXPECT_EQ(backend->info().num_units, 2);
  EXPECT_NE(backend->info().description.find(name(*best_isa())), std::string::npos) << backend->info().description;
  EXPECT_GE(make_backend({})->info().num_units, 1);
  EXPECT_NE(make_backend({.isa = "avx2", .threads = 1})->info().description.find("avx2"), std::string::npos);
}

TEST(CpuBackend, refuses_options_it_cannot_honour) {
  EXPECT_EQ(create_cpu_backend({.isa = "sse9", .threads = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create_cpu_backend({.isa = "", .threads = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create_cpu_backend({.isa = "", .threads = 1 << 20}).status().code(), absl::StatusCode::kInvalidArgument);
  if (!supports(Isa::kAvx512)) {
    EXPECT_EQ(create_cpu_backend({.isa = "avx512", .threads = 0}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(CpuBackend, streams_take_shares_within_the_device) {
  const auto backend = make_backend();
  EXPECT_EQ(backend->open_stream({0, 3}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->open_stream({2, 1}).status().code(), absl::StatusCode::kInvalidArgument);
  auto stream = backend->open_stream({0, 0});
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_TRUE((*stream)->set_share({1, 1}).ok());
  EXPECT_FALSE((*stream)->set_share({1, 2}).ok());
  EXPECT_TRUE((*stream)->synchronize().ok());
}

TEST(CpuBackend, regions_are_shared_and_sealed) {
  const auto backend = make_backend();
  MemorySource& memory = backend->memory();
  EXPECT_FALSE(memory.allocate("nothing", 0).ok());
  auto region = memory.allocate("weights", 100'000);
  ASSERT_TRUE(region.ok()) << region.status();
  {
    auto writer = memory.map(*region, 100'000, Access::kReadWrite);
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::memset(writer->data(), 7, 100'000);
    EXPECT_FALSE(memory.seal(*region).ok());  // while somebody may write
    EXPECT_FALSE(memory.map(*region, 100'001 + 4096, Access::kRead).ok());
  }
  ASSERT_TRUE(memory.seal(*region).ok());
  EXPECT_FALSE(memory.map(*region, 100'000, Access::kReadWrite).ok());
  auto reader = memory.map(*region, 100'000, Access::kRead);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->data()[99'999], std::byte{7});
}

TEST(CpuBackend, packs_and_multiplies_through_the_contract) {
  std::mt19937 rng(21);
  const auto backend = make_backend();
  auto stream = backend->open_stream({0, 0});
  ASSERT_TRUE(stream.ok()) << stream.status();
  const reference::Matrix m = reference::random_matrix(DType::kQ4_1, 50, 64, rng);
  const auto bytes = backend->packed_bytes(m.source());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  auto packed = backend->allocate(*bytes);
  auto x = backend->allocate(3 * 64 * sizeof(float));
  auto y = backend->allocate(3 * 50 * sizeof(float));
  ASSERT_TRUE(packed.ok() && x.ok() && y.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(packed->get()) % 64, 0U);
  for (const std::size_t absurd : {std::size_t{1} << 60, std::size_t{0} - 1}) {
    EXPECT_FALSE(backend->allocate(absurd).ok());
  }
  EXPECT_TRUE(backend->allocate(0).ok());
  backend->pack_weight(m.source(), packed->get(), **stream);
  std::vector<float> values(std::size_t{3} * 64);
  for (float& value : values) value = std::normal_distribution<float>()(rng);
  backend->copy(**stream, x->get(), reinterpret_cast<const std::byte*>(values.data()), values.size() * 4);
  const Weight weight{m.dtype, m.rows, m.cols, packed->get()};
  int launches = 0;
  backend->launch(**stream, 1, [&] {
    ++launches;
    backend->linear({{x->get(), DType::kF32, 3, 64, 64}, {&weight, 1}, nullptr, {y->get(), DType::kF32, 3, 50, 50}},
                    **stream);
  });
  ASSERT_EQ(launches, 1);
  for (std::int64_t row = 0; row < 3; ++row) {
    const std::vector<double> input = reference::through_int8(values.data() + row * 64, 64);
    for (std::int64_t o = 0; o < 50; ++o) {
      const auto want = reference::dot(m, o, input);
      const float got = reinterpret_cast<const float*>(y->get())[row * 50 + o];
      EXPECT_NEAR(got, want.value, 40 * 0x1p-24 * want.magnitude);
    }
  }
}

TEST(CpuBackend, waits_for_a_signal_of_another_stream) {
  const auto backend = make_backend();
  std::atomic<std::uint64_t> counter{4};
  int written = 0;  // plain: signal and wait must order it
  std::thread other([&] {
    const auto stream = backend->open_stream({1, 1});
    ASSERT_TRUE(stream.ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    written = 1;
    backend->signal(**stream, counter, 5);
  });
  const auto stream = backend->open_stream({0, 1});
  ASSERT_TRUE(stream.ok());
  backend->wait(**stream, counter, 3);  // already passed
  backend->wait(**stream, counter, 5);
  EXPECT_EQ(written, 1);
  other.join();
}

}  // namespace
}  // namespace tandem::cpu
