// `tandem bench`: the engine's, the kernels' and the KV pool's speed on this machine, as a table or as JSON lines.
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "bench/engine_bench.h"
#include "bench/pool_bench.h"
#include "bench/roofline.h"
#include "cli/commands.h"
#include "cli/stop_signals.h"
#include "fmt/core.h"
#include "instance.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using bench::EngineBenchResult;
using Json = nlohmann::ordered_json;

void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// Runs a measurement; a signal ends the process, since there is nothing to save.
int measure(const std::function<absl::Status()>& run) {
  init_logging(LogLevel::kInfo, LogFormat::kText, "bench");
  const absl::StatusOr<StopSignals> signals = StopSignals::create();
  std::optional<EndOnSignal> guard;
  if (signals.ok()) guard.emplace(*signals, "measuring");
  const absl::Status status = signals.ok() ? run() : signals.status();
  if (status.ok()) return 0;
  TANDEM_LOG(kError, "{}", message(status));
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

Json to_json(const bench::Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

std::string to_json_line(const EngineBenchResult& result) {
  const bool prefill = result.test == EngineBenchResult::Test::kPrefill;
  return Json{{"test", prefill ? "prefill" : "decode"},
              {"threads", result.threads},
              {"prompt", result.prompt},
              {"depth", result.depth},
              {"sequences", result.sequences},
              {"tokens_per_s", to_json(result.tokens_per_s)}}
      .dump();
}

std::string to_table_line(const EngineBenchResult& result) {
  const bench::Spread& rate = result.tokens_per_s;
  const bool prefill = result.test == EngineBenchResult::Test::kPrefill;
  return fmt::format("{:<8} {:>7} {:>7} {:>7} {:>9}   {:>9.1f}  ({:.1f} to {:.1f})", prefill ? "prefill" : "decode",
                     result.threads, prefill ? std::to_string(result.prompt) : "-",
                     prefill ? "-" : std::to_string(result.depth), result.sequences, rate.median, rate.min, rate.max);
}

std::string to_json_line(const std::string& isa, int threads, const bench::OpRate& rate) {
  return Json{{"op", rate.op},
              {"isa", isa},
              {"threads", threads},
              {"shape", rate.shape},
              {"rows", rate.rows},
              {"us", to_json(rate.us)},
              {"gops", rate.gops},
              {"gbps", rate.gbps},
              {"compute_part", rate.compute_part},
              {"memory_part", rate.memory_part}}
      .dump();
}

std::string to_table_line(const bench::OpRate& rate) {
  const auto percent = [](double part) { return part == 0 ? std::string("-") : fmt::format("{:.0f} %", part * 100); };
  return fmt::format("{:<10} {:<30} {:>5} {:>11.2f} {:>9} {:>6} {:>8.2f} {:>6}", rate.op, rate.shape, rate.rows,
                     rate.us.median, rate.gops == 0 ? "-" : fmt::format("{:.1f}", rate.gops),
                     percent(rate.compute_part), rate.gbps, percent(rate.memory_part));
}

std::string to_json_line(const bench::PoolBenchResult& result) {
  return Json{{"processes", result.processes},
              {"lease_blocks", result.lease_blocks},
              {"percent_used", result.percent_used},
              {"ledger_ns_per_block", to_json(result.ledger_ns)},
              {"mutex_ns_per_block", to_json(result.mutex_ns)}}
      .dump();
}

std::string to_table_line(const bench::PoolBenchResult& result) {
  const auto text = [](const bench::Spread& ns) {
    return fmt::format("{:>9.1f}  {:<20}", ns.median, fmt::format("({:.1f} to {:.1f})", ns.min, ns.max));
  };
  return fmt::format("{:>9} {:>6} {:>6} {} {}", result.processes, result.lease_blocks, result.percent_used,
                     text(result.ledger_ns), text(result.mutex_ns));
}

absl::Status bench_engine(const BenchEngineOptions& options) {
  TANDEM_ASSIGN(const std::string path, resolve_model_path(options.model));
  TANDEM_ASSIGN(const std::unique_ptr<ModelFile> model, open_model(path));
  bench::EngineBenchOptions wanted;
  wanted.isa = options.isa;
  wanted.kv_dtype = options.kv_dtype.value_or(default_kv_dtype(*model));
  wanted.threads = options.threads;
  wanted.prompts = options.prompts;
  wanted.depths = options.depths;
  wanted.sequences = options.sequences;
  wanted.decode_tokens = options.decode_tokens;
  wanted.chunk_tokens = options.chunk_tokens;
  wanted.repeat = options.repeat;
  wanted.warm_up = !options.cold;
  const auto about = [&](const std::string& description) {
    TANDEM_LOG(kInfo, "{}: {}", path, description);
    if (!options.json) {
      print_line("test     threads  prompt   depth sequences    tokens/s  (least to most)");
    }
  };
  return bench::run_engine_bench(*model, wanted, about, [&](const EngineBenchResult& result) {
    print_line(options.json ? to_json_line(result) : to_table_line(result));
  });
}

absl::Status bench_kernels(const BenchKernelsOptions& options) {
  bench::RooflineOptions wanted{options.isas, options.threads, options.ops, options.repeat};
  bench::RooflineReport sink;
  sink.limits = [&](const std::string& isa, int threads, const bench::Limits& limits) {
    if (options.json) {
      print_line(Json{{"limits", isa},
                      {"threads", threads},
                      {"int8_gops", limits.int8_gops},
                      {"f32_gops", limits.f32_gops},
                      {"bf16_gops", limits.bf16_gops},
                      {"memory_gbps", limits.memory_gbps}}
                     .dump());
      return;
    }
    print_line(fmt::format("\n{}, {} threads; limits: int8 {:.0f} GOP/s, f32 {:.0f} GOP/s,{} memory {:.1f} GB/s", isa,
                           threads, limits.int8_gops, limits.f32_gops,
                           limits.bf16_gops > 0 ? fmt::format(" bf16 {:.0f} GOP/s,", limits.bf16_gops) : "",
                           limits.memory_gbps));
    print_line(fmt::format("{:<10} {:<30} {:>5} {:>11} {:>9} {:>6} {:>8} {:>6}", "op", "shape", "rows", "us", "GOP/s",
                           "of lim", "GB/s", "of lim"));
  };
  sink.op = [&](const std::string& isa, int threads, const bench::OpRate& rate) {
    print_line(options.json ? to_json_line(isa, threads, rate) : to_table_line(rate));
  };
  return bench::run_roofline(wanted, sink);
}

absl::Status bench_pool(const BenchPoolOptions& options) {
  if (!options.json) {
    print_line("processes  lease  used%  ledger ns per block            mutex ns per block  (least to most)");
  }
  const bench::PoolBenchOptions wanted{options.num_blocks, options.lease_blocks, options.percent_used,
                                       options.processes, options.repeat};
  return bench::run_pool_bench(wanted, [&](const bench::PoolBenchResult& result) {
    print_line(options.json ? to_json_line(result) : to_table_line(result));
  });
}

}  // namespace

int bench_engine_command(const BenchEngineOptions& options) {
  return measure([&] { return bench_engine(options); });
}

int bench_kernels_command(const BenchKernelsOptions& options) {
  return measure([&] { return bench_kernels(options); });
}

int bench_pool_command(const BenchPoolOptions& options) {
  return measure([&] { return bench_pool(options); });
}

}  // namespace tandem
