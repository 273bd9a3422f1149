// Speed of the CPU backend's linear op: GOP/s (a multiply and an add are two) and GB/s of weights read.
// Weights cycle through 64 MiB of copies, as the layers of a model do, so that they come from memory, not a cache.
//   ninja kernels_bench && ./kernels/cpu/kernels_bench [avx2|avx512]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pack.h"

namespace tandem::cpu {
namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  const char* what;
  DType dtype;
  std::int64_t cols;
  std::int64_t rows;
};

constexpr Shape kShapes[] = {
    {"Q4_1", DType::kQ4_1, 576, 960},  {"Q4_1", DType::kQ4_1, 576, 3072}, {"Q4_1", DType::kQ4_1, 1536, 576},
    {"Q4_0", DType::kQ4_0, 576, 3072}, {"Q8_0", DType::kQ8_0, 576, 1536}, {"Q8_0", DType::kQ8_0, 576, 49152},
    {"F16", DType::kF16, 576, 1536},   {"F32", DType::kF32, 576, 1536},
};

void measure(Isa isa, int threads, const Shape& shape, std::int64_t rows) {
  constexpr std::int64_t kWorkingSet = 64 << 20;
  const auto team = Team::create({0, static_cast<std::uint16_t>(threads)}).value();
  const auto bytes = packed_bytes({shape.dtype, shape.rows, shape.cols, nullptr}).value();
  const std::int64_t copies = std::max<std::int64_t>(1, kWorkingSet / static_cast<std::int64_t>(bytes));
  std::vector<std::byte> storage(bytes * static_cast<std::size_t>(copies) + 64);
  std::byte* base = storage.data() + (64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64);
  std::mt19937 rng(1);
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const std::uint32_t value = rng() & 0x3FFF3FFF;  // finite as f16 and f32
    std::memcpy(base + i, &value, 4);
  }
  for (std::int64_t i = 1; i < copies; ++i) std::memcpy(base + i * static_cast<std::int64_t>(bytes), base, bytes);
  std::vector<float> x(static_cast<std::size_t>(rows * shape.cols));
  for (float& value : x) value = std::normal_distribution<float>()(rng);
  std::vector<float> y(static_cast<std::size_t>(rows * shape.rows));
  const auto tensor = [rows](std::vector<float>& data, std::int64_t cols) {
    return Tensor{reinterpret_cast<std::byte*>(data.data()), DType::kF32, rows, cols, cols};
  };
  const auto linear = ops_for(isa).linear;
  const double operations = 2.0 * static_cast<double>(rows * shape.rows * shape.cols);
  const std::int64_t calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(3e9 / operations), 3, 2 * copies);
  std::vector<double> seconds;  // per call, of each repetition
  for (int repetition = 0; repetition < 7; ++repetition) {
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) {
      const Weight weight{shape.dtype, shape.rows, shape.cols, base + i % copies * static_cast<std::int64_t>(bytes)};
      linear({tensor(x, shape.cols), {&weight, 1}, nullptr, tensor(y, shape.rows)}, *team);
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("%-6s %d threads  %-4s %4ld -> %5ld  rows %3ld: %8.1f us  %6.1f GOP/s  %5.1f GB/s (best %6.1f, %5.1f)\n",
              std::string(name(isa)).c_str(), threads, shape.what, static_cast<long>(shape.cols),
              static_cast<long>(shape.rows), static_cast<long>(rows), median * 1e6, operations / median / 1e9,
              static_cast<double>(bytes) / median / 1e9, operations / seconds[0] / 1e9,
              static_cast<double>(bytes) / seconds[0] / 1e9);
}

void run(const std::string& wanted) {
  for (const Isa isa : kAllIsas) {
    if (!supports(isa) || (!wanted.empty() && wanted != name(isa))) continue;
    for (const Shape& shape : kShapes) {
      for (const std::int64_t rows : {1, 8, 512}) {
        if (rows == 512 && shape.rows > 10'000) continue;  // the head only runs on rows that sample
        for (const int threads : {1, 2}) measure(isa, threads, shape, rows);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu

int main(int argc, char** argv) { tandem::cpu::run(argc > 1 ? argv[1] : ""); }
