// Each compute loop keeps 12 or more independent sums, enough to hide the latency of its instruction. Empty asm
// statements keep the compiler from folding the constant operands and from merging sums that are equal.
#include "bench/limits.h"

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/team.h"

namespace tandem::bench {
namespace {

constexpr std::int64_t kLoops = 4'000'000;
constexpr int kRuns = 5;
constexpr std::size_t kMemorySet = std::size_t{192} << 20;

// Operations done, so that none of the work can be left out.
using Loop = double (*)();

[[gnu::target("avx2,fma")]] double int8_avx2() {
  constexpr int kSums = 12;
  __m256i sums[kSums] = {};
  for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
  __m256i weight = _mm256_set1_epi8(3);
  __m256i value = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) {
      __m256i pairs = _mm256_maddubs_epi16(weight, value);
      asm("" : "+x"(pairs));
      sums[s] = _mm256_add_epi32(sums[s], _mm256_madd_epi16(pairs, ones));
    }
    asm volatile("" : "+x"(weight), "+x"(value));
  }
  for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
  return 64.0 * kSums * kLoops;
}

[[gnu::target("avx2,fma")]] double f32_avx2() {
  constexpr int kSums = 12;
  __m256 sums[kSums] = {};
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));
  __m256 weight = _mm256_set1_ps(1e-3F);
  __m256 value = _mm256_set1_ps(1e-3F);
  for (std::int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) sums[s] = _mm256_fmadd_ps(weight, value, sums[s]);
    asm volatile("" : "+x"(weight), "+x"(value));
  }
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));
  return 16.0 * kSums * kLoops;
}

[[gnu::target("avx512f,avx512vnni")]] double int8_avx512() {
  constexpr int kSums = 16;
  __m512i sums[kSums] = {};
  for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
  __m512i weight = _mm512_set1_epi32(0x03030303);
  __m512i value = _mm512_set1_epi32(0x05050505);
  for (std::int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) sums[s] = _mm512_dpbusd_epi32(sums[s], weight, value);
    asm volatile("" : "+v"(weight), "+v"(value));
  }
  for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
  return 128.0 * kSums * kLoops;
}

[[gnu::target("avx512f")]] double f32_avx512() {
  constexpr int kSums = 16;
  __m512 sums[kSums] = {};
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  __m512 weight = _mm512_set1_ps(1e-3F);
  __m512 value = _mm512_set1_ps(1e-3F);
  for (std::int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) sums[s] = _mm512_fmadd_ps(weight, value, sums[s]);
    asm volatile("" : "+v"(weight), "+v"(value));
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  return 32.0 * kSums * kLoops;
}

[[gnu::target("avx512f,avx512bf16")]] double bf16_avx512() {
  constexpr int kSums = 16;
  __m512 sums[kSums] = {};
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  __m512i weight = _mm512_set1_epi32(0x3F803F80);  // 1.0 in both halves
  __m512i value = _mm512_set1_epi32(0x3A803A80);
  for (std::int64_t i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) {
      sums[s] = _mm512_dpbf16_ps(sums[s], reinterpret_cast<__m512bh>(weight), reinterpret_cast<__m512bh>(value));
    }
    asm volatile("" : "+v"(weight), "+v"(value));
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  return 64.0 * kSums * kLoops;
}

// Billions of operations per second of all workers together.
double rate(cpu::Team& team, Loop loop) {
  double best = 0;
  std::vector<double> operations(static_cast<std::size_t>(team.active()));
  for (int run = 0; run < kRuns; ++run) {
    const std::int64_t start_ns = steady_now_ns();
    team.run([&](int worker, int) { operations[static_cast<std::size_t>(worker)] = loop(); });
    const auto elapsed_ns = static_cast<double>(steady_now_ns() - start_ns);
    double total = 0;
    for (const double part : operations) total += part;
    best = std::max(best, total / elapsed_ns);
  }
  return best;
}

[[gnu::target("avx2")]] void read(const std::byte* begin, const std::byte* end) {
  constexpr int kAhead = 4096;
  __m256i sums[4] = {};
  for (; begin < end; begin += 128) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(begin + 32 * i)));
    }
    _mm_prefetch(reinterpret_cast<const char*>(begin + kAhead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(begin + kAhead + 64), _MM_HINT_T0);
  }
  for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
}

double memory_rate(cpu::Team& team) {
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  std::vector<Line> memory(kMemorySet / sizeof(Line), Line{});
  const std::byte* base = memory.data()->bytes;
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const std::int64_t start_ns = steady_now_ns();
    team.run([&](int worker, int num_workers) {
      const std::size_t lines = memory.size() / static_cast<std::size_t>(num_workers);
      const std::size_t first = lines * static_cast<std::size_t>(worker);
      read(base + first * sizeof(Line), base + (first + lines) * sizeof(Line));
    });
    best = std::max(best, static_cast<double>(kMemorySet) / static_cast<double>(steady_now_ns() - start_ns));
  }
  return best;
}

}  // namespace

Limits measure_limits(cpu::Isa isa, int threads) {
  const auto team = cpu::Team::create({0, static_cast<std::uint16_t>(threads)});
  if (!team.ok()) return {};
  const bool wide = isa != cpu::Isa::kAvx2;
  Limits limits;
  limits.int8_gops = rate(**team, wide ? int8_avx512 : int8_avx2);
  limits.f32_gops = rate(**team, wide ? f32_avx512 : f32_avx2);
  if (isa == cpu::Isa::kAvx512Bf16) limits.bf16_gops = rate(**team, bf16_avx512);
  limits.memory_gbps = memory_rate(**team);
  return limits;
}

}  // namespace tandem::bench
