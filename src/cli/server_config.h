// Every option of `tandem serve` as plain data with its default. The option table (cli/server_options.h) alone fills
// it, from flags and from the configuration file. The composition root passes single values on; no layer sees this
// struct.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "tandem/placement.h"
#include "tandem/types.h"

namespace tandem {

struct ServerConfig {
  // ---- model
  std::string model;              // a .gguf file or a folder with config.json; empty: the default model
  std::string served_model_name;  // empty: the model's own name

  // ---- placement and compute
  Placement placement = Placement::kSemi;
  std::optional<std::uint16_t> decode_units;  // cores of decode while both phases have work; absent: half
  std::uint32_t threads = 0;  // 0: every core this process may use
  std::string isa;            // "avx2", "avx512" or "avx512-bf16"; empty: the best the processor has

  // ---- endpoints
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;               // 0: any free port, printed at start
  std::optional<std::uint16_t> grpc_port;  // absent: no gRPC; 0: any free port
  std::uint32_t http_threads = 1;
  std::uint32_t max_connections = 8192;  // as far as the limit of open files lets
  std::uint64_t max_body_bytes = std::uint64_t{16} << 20;
  std::optional<std::uint64_t> max_pending_body_bytes;  // absent: eight times max_body_bytes
  std::uint32_t max_header_bytes = std::uint32_t{64} << 10;
  std::vector<std::string> cors_allow_origins;  // empty: no CORS headers; "*": any origin
  std::vector<std::string> api_keys;            // "KEY" or "KEY max-priority=N"; empty: no authentication
  std::optional<std::int32_t> max_priority;     // of keys without their own; absent: 0 with api_keys, any without
  std::string admin_api_key;                    // empty: any key of api_keys is an administrator's

  // ---- KV pool; at most one of the two sizes is set, neither: what the memory allows. What is absent is taken over
  // from the memory of a running owner
  std::optional<std::int32_t> block_tokens;  // absent: 16
  std::optional<std::uint64_t> kv_cache_tokens;
  std::optional<double> kv_cache_gib;
  std::optional<DType> kv_dtype;  // kF16, kBF16, kF32 or kQ8_0; absent: f32 for unquantised weights, else f16

  bool prefix_cache = true;
  std::string owner_socket;  // of a running `tandem owner`; empty: one is started, and ends with the server

  // ---- scheduling
  std::optional<std::uint32_t> max_context_tokens;  // absent: the model's own limit
  std::uint32_t max_running_sequences = 64;
  std::uint32_t max_queued_requests = 512;
  std::uint32_t prefill_chunk_tokens = 256;
  std::uint32_t look_ahead_steps = 1;  // decode steps queued on a worker beyond the one it is running
  std::optional<std::uint32_t> default_ttft_ms;  // targets of requests that bring none; absent: no target
  std::optional<std::uint32_t> default_tpot_ms;

  // ---- life and log
  std::uint32_t drain_grace_s = 30;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

}  // namespace tandem
