// The subcommands of the tandem binary; each returns the process' exit code. Part of the composition root.
// Exit codes: 0 done, 1 failed (a line on stderr says why), 2 the command line or configuration is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/server_config.h"
#include "tandem/types.h"

namespace tandem {

int serve_command(const ServerConfig& config);

struct GenerateOptions {
  std::string prompt;         // a user's turn for the chat template; raw text with `raw`
  std::string messages_file;  // JSON list of messages instead
  bool raw = false;
  std::uint32_t max_tokens = 256;
  float temperature = 0.0F;
  float top_p = 1.0F;
  std::int64_t seed = -1;  // below 0: a fresh one
};
int generate_command(const ServerConfig& config, const GenerateOptions& options);

struct ScoreOptions {
  std::string input;
  std::string output;
};
int score_command(const ServerConfig& config, const ScoreOptions& options);

// Lists are runs of their own, one after the other. threads 0: all cores.
struct BenchEngineOptions {
  std::string model;
  std::string isa;
  std::optional<DType> kv_dtype;
  std::vector<int> threads{0};
  std::vector<std::uint32_t> prompts{512, 2048};
  std::vector<std::uint32_t> depths{0, 2048};
  std::vector<std::uint32_t> sequences{1, 2, 4, 8, 16, 32};
  std::uint32_t decode_tokens = 128;
  std::uint32_t chunk_tokens = 256;
  std::uint32_t repeat = 5;
  bool cold = false;  // no uncounted first run
  bool json = false;
};
int bench_engine_command(const BenchEngineOptions& options);

struct BenchKernelsOptions {
  std::vector<std::string> isas;
  std::vector<int> threads{0};
  std::vector<std::string> ops;
  std::uint32_t repeat = 7;
  bool json = false;
};
int bench_kernels_command(const BenchKernelsOptions& options);

struct InspectOptions {
  std::string owner_socket;
  bool json = false;
};
int inspect_command(const InspectOptions& options);

struct BenchPoolOptions {
  std::uint32_t num_blocks = 20'000;
  std::vector<std::uint32_t> lease_blocks{1, 32};
  std::vector<std::uint32_t> percent_used{10, 90, 99};
  std::vector<std::uint32_t> processes{1, 2};
  std::uint32_t repeat = 7;
  bool json = false;
};
int bench_pool_command(const BenchPoolOptions& options);

struct OwnerCommandOptions {
  std::string socket;
  int parent_pid = 0;  // 0: lives on its own
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};
int owner_command(const OwnerCommandOptions& options);

struct WorkerCommandOptions {
  std::string owner_socket;
  std::string model;
  std::string isa;
  std::uint32_t threads = 0;
  std::uint32_t lane = 0;
  std::uint64_t epoch = 1;
  DType kv_dtype = DType::kF16;
  std::uint32_t block_tokens = 16;
  std::uint32_t num_blocks = 0;
  std::uint32_t max_rows = 0;
  int parent_pid = 0;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};
int worker_command(const WorkerCommandOptions& options);

}  // namespace tandem
