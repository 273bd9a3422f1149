#include "bench/roofline.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/isa.h"
#include "tandem/backend.h"

namespace tandem::bench {
namespace {

// Weights and KV cycle through copies of about this much, as the layers of a model do, so that no cache holds them.
constexpr std::int64_t kWorkingSet = std::int64_t{192} << 20;
// Of logits: their spread in a language model, so that a nucleus is a small part of the vocabulary.
constexpr float kLogitScale = 4.0F;
constexpr std::int64_t kRunNs = 15'000'000;  // of one measured run
constexpr std::int32_t kBlockTokens = 16;

enum class Arithmetic : std::uint8_t { kNone, kInt8, kBf16, kF32 };

// One op at one shape: call(i) runs it with the i-th copy of what it reads.
struct Case {
  std::string op, shape;
  std::int64_t rows = 0;
  Arithmetic arithmetic = Arithmetic::kNone;
  double operations = 0;  // of a call
  double bytes = 0;
  std::function<void(std::int64_t)> call = nullptr;
};

struct Named {
  const char* name;
  DType dtype;
};
constexpr Named kWeightTypes[] = {{"Q4_0", DType::kQ4_0}, {"Q4_1", DType::kQ4_1}, {"Q8_0", DType::kQ8_0},
                                  {"Q4_K", DType::kQ4_K}, {"Q6_K", DType::kQ6_K}, {"BF16", DType::kBF16},
                                  {"F16", DType::kF16},   {"F32", DType::kF32}};
constexpr Named kKvTypes[] = {{"f16", DType::kF16}, {"bf16", DType::kBF16}, {"q8_0", DType::kQ8_0}};

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

// Bits that are an ordinary number in every element type: 0.5 to 2 as f16, 2^-15 to 2 as bf16 and f32. Denormal ones
// would cost some processors extra.
void fill_finite(std::byte* to, std::size_t bytes) {
  std::mt19937 random(1);
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const std::uint32_t value = (static_cast<std::uint32_t>(random()) & 0x07FF07FFU) | 0x38003800U;
    std::memcpy(to + i, &value, 4);
  }
}

class Cases final {
 public:
  Cases(Backend& backend, Stream& stream, bool has_bf16) : backend_(backend), stream_(stream), has_bf16_(has_bf16) {}

  // Calls visit(case) for each one in turn; its memory lives until visit returns.
  absl::Status for_each(const std::function<bool(const std::string&)>& wanted,
                        const std::function<void(const Case&)>& visit);

 private:
  absl::Status linear(const Named& type, std::int64_t cols, std::int64_t out, std::int64_t rows,
                      const std::function<void(const Case&)>& visit);
  absl::Status attention(const Named& type, std::int32_t sequences, std::int32_t rows, std::int32_t depth,
                         const std::function<void(const Case&)>& visit);
  void element_wise(std::int64_t rows, const std::function<bool(const std::string&)>& wanted,
                    const std::function<void(const Case&)>& visit);
  void sample(std::int64_t rows, const char* what, const SampleRow& row, const std::function<void(const Case&)>& visit);
  Tensor tensor(std::vector<float>& memory, std::int64_t rows, std::int64_t cols);

  Backend& backend_;
  Stream& stream_;
  const bool has_bf16_;
  std::vector<float> x_, y_, z_;
};

// `memory` resized to [rows, cols] of numbers around zero.
Tensor Cases::tensor(std::vector<float>& memory, std::int64_t rows, std::int64_t cols) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  memory.resize(static_cast<std::size_t>(rows * cols));
  for (float& value : memory) value = normal(random);
  return {reinterpret_cast<std::byte*>(memory.data()), DType::kF32, rows, cols, cols};
}

absl::Status Cases::linear(const Named& type, std::int64_t cols, std::int64_t out, std::int64_t rows,
                           const std::function<void(const Case&)>& visit) {
  TANDEM_ASSIGN(const std::size_t bytes, backend_.packed_bytes({type.dtype, out, cols, nullptr}));
  const std::int64_t copies = std::max<std::int64_t>(1, kWorkingSet / static_cast<std::int64_t>(bytes));
  TANDEM_ASSIGN(const Backend::Buffer weights, backend_.allocate(bytes * static_cast<std::size_t>(copies)));
  fill_finite(weights.get(), bytes);
  for (std::int64_t i = 1; i < copies; ++i) {
    std::memcpy(weights.get() + i * static_cast<std::int64_t>(bytes), weights.get(), bytes);
  }
  const Tensor x = tensor(x_, rows, cols);
  const Tensor y = tensor(y_, rows, out);
  Case one{.op = "linear", .shape = fmt::format("{} {}->{}", type.name, cols, out), .rows = rows};
  one.arithmetic = !is_float(type.dtype)                     ? Arithmetic::kInt8
                   : has_bf16_ && type.dtype == DType::kBF16 ? Arithmetic::kBf16
                                                             : Arithmetic::kF32;
  one.operations = 2.0 * static_cast<double>(rows * cols * out);
  one.bytes = static_cast<double>(bytes) + 4.0 * static_cast<double>(rows * (cols + out));
  one.call = [&](std::int64_t i) {
    const Weight weight{type.dtype, out, cols, weights.get() + i % copies * static_cast<std::int64_t>(bytes)};
    backend_.linear({x, {&weight, 1}, nullptr, y}, stream_);
  };
  visit(one);
  return absl::OkStatus();
}

// `sequences` of `depth` earlier tokens each, with `rows` new ones.
absl::Status Cases::attention(const Named& type, std::int32_t sequences, std::int32_t rows, std::int32_t depth,
                              const std::function<void(const Case&)>& visit) {
  constexpr std::int32_t kHeads = 9;
  constexpr std::int32_t kKvHeads = 3;
  constexpr std::int32_t kDim = 64;
  KvLayout layout{type.dtype, 1, kKvHeads, kDim, kBlockTokens};
  const std::int32_t blocks_each = (depth + rows + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t set = std::int64_t{sequences} * blocks_each * layout.block_bytes();
  layout.num_layers = static_cast<std::int32_t>(std::clamp<std::int64_t>(kWorkingSet / set, 1, 64));
  const auto bytes = static_cast<std::size_t>(std::int64_t{sequences} * blocks_each * layout.block_bytes());
  TANDEM_ASSIGN(const Backend::Buffer kv, backend_.allocate(bytes));
  fill_finite(kv.get(), bytes);
  std::vector<SequenceRows> batch;
  std::vector<BlockId> blocks;
  for (std::int32_t s = 0; s < sequences; ++s) batch.push_back({s * rows, rows, depth, s * blocks_each});
  for (std::int32_t b = 0; b < sequences * blocks_each; ++b) blocks.push_back({static_cast<std::uint32_t>(b)});
  const std::int64_t all_rows = std::int64_t{sequences} * rows;
  const Tensor qkv = tensor(x_, all_rows, (kHeads + 2 * kKvHeads) * kDim);
  const Tensor out = tensor(y_, all_rows, kHeads * kDim);
  Case one{.op = "attention",
           .shape = fmt::format("{} {}/{}x{} {} x {} at {}", type.name, kHeads, kKvHeads, kDim, sequences, rows, depth),
           .rows = all_rows};
  one.arithmetic = has_bf16_ && type.dtype != DType::kF32 ? Arithmetic::kBf16 : Arithmetic::kF32;
  const double keys = (static_cast<double>(depth) + (rows + 1) / 2.0) * static_cast<double>(all_rows);
  one.operations = 4.0 * kHeads * kDim * keys;
  one.bytes =
      static_cast<double>(bytes) / layout.num_layers + 4.0 * kDim * (2 * kHeads) * static_cast<double>(all_rows);
  one.call = [&](std::int64_t i) {
    const auto layer = static_cast<std::int32_t>(i % layout.num_layers);
    backend_.attention({qkv, kHeads, {kv.get(), layout}, layer, 0.125F, batch, blocks, out}, stream_);
  };
  visit(one);
  return absl::OkStatus();
}

void Cases::element_wise(std::int64_t rows, const std::function<bool(const std::string&)>& wanted,
                         const std::function<void(const Case&)>& visit) {
  constexpr std::int64_t kHidden = 576;
  constexpr std::int64_t kFfn = 1536;
  const auto run = [&](const char* op, std::int64_t cols, double floats_moved, std::function<void(std::int64_t)> call) {
    Case one{.op = op, .shape = std::to_string(cols), .rows = rows};
    one.bytes = 4.0 * floats_moved * static_cast<double>(rows);
    one.call = std::move(call);
    visit(one);
  };
  if (wanted("rms_norm")) {
    const Tensor hidden = tensor(x_, rows, kHidden);
    const Tensor out = tensor(y_, rows, kHidden);
    std::vector<float> delta_memory;
    const Tensor delta = tensor(delta_memory, rows, kHidden);
    std::fill(delta_memory.begin(), delta_memory.end(), 0.0F);  // added again and again
    const std::vector<float> weight(kHidden, 1.0F);
    run("rms_norm", kHidden, 4 * kHidden,
        [&](std::int64_t) { backend_.rms_norm({hidden, delta, weight.data(), 1e-5F, out}, stream_); });
  }
  if (wanted("rope")) {
    const Tensor qkv = tensor(x_, rows, 960);
    const Tensor angles = tensor(y_, rows, 64);
    std::fill(y_.begin(), y_.end(), std::sqrt(0.5F));  // a rotation: the values keep their size
    run("rope", 768, 2 * 768 + 64,
        [&](std::int64_t) { backend_.rope({qkv, angles, 9, 3, 64, RopeStyle::kHalf}, stream_); });
  }
  if (wanted("gate")) {
    const Tensor gate_up = tensor(x_, rows, 2 * kFfn);
    const Tensor out = tensor(y_, rows, kFfn);
    run("gate", kFfn, 3 * kFfn, [&](std::int64_t) { backend_.gate({gate_up, Activation::kSilu, out}, stream_); });
  }
  if (wanted("kv_write")) {
    const Tensor qkv = tensor(x_, rows, 960);
    const KvLayout layout{DType::kF16, 1, 3, 64, kBlockTokens};
    const std::int64_t num_blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    std::vector<std::byte> kv(static_cast<std::size_t>(num_blocks * layout.block_bytes()));
    std::vector<BlockId> blocks;
    for (std::uint32_t b = 0; b < num_blocks; ++b) blocks.push_back({b});
    const SequenceRows sequence{0, static_cast<std::int32_t>(rows), 0, 0};
    run("kv_write", 384, 1.5 * 384,
        [&](std::int64_t) { backend_.kv_write({qkv, 9, {kv.data(), layout}, 0, {&sequence, 1}, blocks}, stream_); });
  }
}

void Cases::sample(std::int64_t rows, const char* what, const SampleRow& row,
                   const std::function<void(const Case&)>& visit) {
  constexpr std::int64_t kVocab = 49152;
  const Tensor logits = tensor(x_, rows, kVocab);
  for (float& value : x_) value *= kLogitScale;
  const std::vector<SampleRow> wanted(static_cast<std::size_t>(rows), row);
  std::vector<Sampled> out(static_cast<std::size_t>(rows));
  Case one{.op = "sample", .shape = fmt::format("{} of {}", what, kVocab), .rows = rows};
  one.bytes = 4.0 * static_cast<double>(rows * kVocab);
  one.call = [&](std::int64_t) { backend_.sample({logits, wanted, out}, stream_); };
  visit(one);
}

absl::Status Cases::for_each(const std::function<bool(const std::string&)>& wanted,
                             const std::function<void(const Case&)>& visit) {
  if (wanted("linear")) {
    for (const Named& type : kWeightTypes) {
      for (const std::int64_t rows : {1, 8, 32, 512}) {
        if (type.dtype != DType::kQ4_K && type.dtype != DType::kQ6_K) TANDEM_TRY(linear(type, 576, 3072, rows, visit));
        TANDEM_TRY(linear(type, 1536, 576, rows, visit));
        TANDEM_TRY(linear(type, 2048, 2048, rows, visit));
      }
    }
    for (const std::int64_t rows : {1, 8}) TANDEM_TRY(linear({"Q8_0", DType::kQ8_0}, 576, 49152, rows, visit));
  }
  if (wanted("attention")) {
    for (const Named& type : kKvTypes) {
      for (const std::int32_t rows : {512, 2048}) TANDEM_TRY(attention(type, 1, rows, 0, visit));
      for (const std::int32_t depth : {2047, 8191}) TANDEM_TRY(attention(type, 1, 1, depth, visit));
      for (const std::int32_t sequences : {8, 32}) TANDEM_TRY(attention(type, sequences, 1, 511, visit));
    }
  }
  for (const std::int64_t rows : {1, 256}) element_wise(rows, wanted, visit);
  if (wanted("sample")) {
    for (const std::int64_t rows : {1, 32}) {
      sample(rows, "greedy", {}, visit);
      SampleRow nucleus;
      nucleus.temperature = 0.8F;
      nucleus.top_p = 0.95F;
      sample(rows, "top-p", nucleus, visit);
    }
  }
  return absl::OkStatus();
}

OpRate measure(const Case& one, const Limits& limits, std::uint32_t repeat) {
  std::int64_t next = 0;
  const auto seconds = [&](std::int64_t calls) {
    const std::int64_t start_ns = steady_now_ns();
    for (std::int64_t i = 0; i < calls; ++i) one.call(next++);
    return static_cast<double>(steady_now_ns() - start_ns) * 1e-9;
  };
  seconds(1);  // pages, scratch
  const double first = std::max(seconds(1), 1e-9);
  const auto calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(kRunNs * 1e-9 / first), 1, 100'000);
  std::vector<double> microseconds;
  for (std::uint32_t i = 0; i < repeat; ++i) microseconds.push_back(seconds(calls) * 1e6 / static_cast<double>(calls));
  OpRate rate{.op = one.op, .shape = one.shape, .rows = one.rows, .us = spread_of(std::move(microseconds))};
  rate.gops = one.operations / rate.us.median * 1e-3;
  rate.gbps = one.bytes / rate.us.median * 1e-3;
  const double roof = one.arithmetic == Arithmetic::kInt8   ? limits.int8_gops
                      : one.arithmetic == Arithmetic::kBf16 ? limits.bf16_gops
                                                            : limits.f32_gops;
  rate.compute_part = rate.gops / roof;
  rate.memory_part = rate.gbps / limits.memory_gbps;
  return rate;
}

}  // namespace

absl::Status run_roofline(const RooflineOptions& options, const RooflineReport& report) {
  const auto is_wanted = [](const std::vector<std::string>& list, std::string_view name) {
    return list.empty() || std::ranges::find(list, name) != list.end();
  };
  static constexpr std::string_view kOps[] = {"linear", "attention", "rms_norm", "rope", "gate", "kv_write", "sample"};
  for (const std::string& op : options.ops) {
    if (std::ranges::find(kOps, op) == std::end(kOps)) {
      return absl::InvalidArgumentError(fmt::format("unknown op \"{}\"; the ops are {}", op, fmt::join(kOps, ", ")));
    }
  }
  std::vector<std::string> isas = options.isas;
  if (isas.empty()) {
    for (const cpu::Isa isa : cpu::kAllIsas) {
      if (cpu::supports(isa)) isas.emplace_back(cpu::name(isa));
    }
  }
  for (const std::string& isa : isas) {
    for (const int threads : options.threads) {
      TANDEM_ASSIGN(const auto backend, cpu::create_cpu_backend({isa, threads}));
      const int units = backend->info().num_units;
      const auto which = std::ranges::find(cpu::kAllIsas, isa, [](cpu::Isa each) { return cpu::name(each); });
      const Limits limits = measure_limits(*which, units);
      report.limits(isa, units, limits);
      TANDEM_ASSIGN(const auto stream, backend->open_stream(Share{}));
      Cases cases(*backend, *stream, limits.bf16_gops > 0);
      TANDEM_TRY(cases.for_each([&](const std::string& op) { return is_wanted(options.ops, op); },
                                [&](const Case& one) { report.op(isa, units, measure(one, limits, options.repeat)); }));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::bench
