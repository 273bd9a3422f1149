// The subcommands of the tandem binary; each returns the process' exit code. Part of the composition root.
// Exit codes: 0 done, 1 failed (a line on stderr says why), 2 the command line or configuration is wrong.
#pragma once

#include <cstdint>
#include <string>

#include "tandem/config.h"
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
