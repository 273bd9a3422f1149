#include "cli/server_options.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "kernels/cpu/isa.h"
#include "tandem/types.h"

namespace tandem {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kDayMs = 86'400'000;
constexpr std::int64_t kMinPriority = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMaxPriority = std::numeric_limits<std::int32_t>::max();

void add_model(ServerConfig& c, OptionTable& table) {
  table.add_text("model", c.model, "a .gguf file or a folder with config.json; empty: the default model");
  table.add_text("served-model-name", c.served_model_name, "name in /v1/models; empty: the model's own");
}

void add_compute(ServerConfig& c, OptionTable& table) {
  table.add_choice("placement", c.placement, {{"semi", Placement::kSemi}, {"fused", Placement::kFused}},
                   "semi: prefill and decode in two workers over one KV pool; fused: both in one");
  table.add_integer("decode-units", c.decode_units, "auto", 1, 1023,
                    "cores decode gets while prompts are read too; auto: half");
  table.add_integer("threads", c.threads, 0, 1024, "cores to compute on; 0: all this process may use");
  std::vector<std::pair<std::string, std::string>> isas{{"auto", ""}};
  for (const auto& entry : cpu::kIsaWords) isas.emplace_back(entry.word, entry.word);
  table.add_choice<std::string>("isa", c.isa, std::move(isas),
                                "instruction set of the kernels; auto: the best this processor has");
}

void add_endpoints(ServerConfig& c, OptionTable& table) {
  table.add_text(
      "host", c.host,
      "address or name to listen on; a name is served on each of its addresses; 0.0.0.0 or :: for every interface");
  table.add_integer("port", c.port, 0, 65535, "HTTP port; 0: any free one, printed at start");
  table.add_integer("grpc-port", c.grpc_port, "off", 0, 65535, "gRPC port; 0: any free one, printed at start");
  table.add_integer("http-threads", c.http_threads, 1, 64, "threads that serve HTTP connections");
  table.add_integer("max-connections", c.max_connections, 8, 1'000'000,
                    "HTTP clients connected at a time, as far as the limit of open files (ulimit -n) lets");
  table.add_integer("max-body-bytes", c.max_body_bytes, 1024, 1024 * kMiB, "larger request bodies get 413");
  table.add_integer("max-pending-body-bytes", c.max_pending_body_bytes, "auto", 1024, 1024 * 1024 * kMiB,
                    "bodies that are arriving, all together; more get 503; auto: eight of the largest");
  table.add_integer("max-header-bytes", c.max_header_bytes, 1024, kMiB, "larger request headers get 431");
  table.add_list("cors-allow-origins", c.cors_allow_origins, "origins browsers may call from; * for any");
  table.add_list("api-keys", c.api_keys,
                 "keys clients present as `Authorization: Bearer KEY`; none: no authentication. \"KEY max-priority=N\" "
                 "gives a key a bound of its own. Prefer the configuration file: other users can read a command line");
  table.add_integer("max-priority", c.max_priority, "auto", kMinPriority, kMaxPriority,
                    "highest priority a request may have; what asks for more gets this one, and a header "
                    "x-tandem-priority that says so; auto: 0 with api-keys, any without");
  table.add_text("admin-api-key", c.admin_api_key, "key for administrative endpoints; empty: any of api-keys");
}

void add_pool(ServerConfig& c, OptionTable& table) {
  table.add_integer("block-tokens", c.block_tokens, "auto", 8, 128,
                    "tokens per KV block; a power of two; auto: 16. What of the pool is auto is taken over from the "
                    "memory of a running owner");
  table.add_integer("kv-cache-tokens", c.kv_cache_tokens, "auto", 1, kMaxTokens,
                    "size of the KV pool in tokens; auto: from the memory that is free");
  table.add_real("kv-cache-gib", c.kv_cache_gib, "auto", 0.001, 65536, "size of the KV pool in GiB instead");
  auto kv_dtypes = choices_of<std::optional<DType>>(kKvDTypeWords);
  kv_dtypes.insert(kv_dtypes.begin(), {"auto", std::nullopt});
  table.add_choice<std::optional<DType>>(
      "kv-dtype", c.kv_dtype, std::move(kv_dtypes),
      "element type of keys and values in the pool; auto: f32 when the weights are unquantised, else f16");
  table.add_flag("prefix-cache", c.prefix_cache, "keep the blocks of ended sequences for prompts that begin alike");
  table.add_text("owner-socket", c.owner_socket,
                 "@name or path of a running `tandem owner`, whose memory outlives this server; empty: start one");
}

void add_scheduling(ServerConfig& c, OptionTable& table) {
  table.add_integer("max-context-tokens", c.max_context_tokens, "auto", 1, 1 << 30,
                    "longest prompt and output together; auto: the model's own limit");
  table.add_integer("max-running-sequences", c.max_running_sequences, 1, 4096, "sequences decoded at a time");
  table.add_integer("max-queued-requests", c.max_queued_requests, 1, 1'000'000, "requests beyond them get 429");
  table.add_integer("prefill-chunk-tokens", c.prefill_chunk_tokens, 16, 65536, "most prompt tokens in one step");
  table.add_integer("look-ahead-steps", c.look_ahead_steps, 0, kMaxLookAhead,
                    "decode steps queued on a worker beyond the one it is running; 0: none");
  table.add_integer("default-ttft-ms", c.default_ttft_ms, "none", 1, kDayMs,
                    "target for the time to the first token, of requests that bring none (header x-slo-ttft-ms)");
  table.add_integer("default-tpot-ms", c.default_tpot_ms, "none", 1, kDayMs,
                    "target for the mean time between output tokens, of requests that bring none (header "
                    "x-slo-tpot-ms). Metric tandem_slo_requests_total counts whether targets are met; what is "
                    "scheduled first depends on the other target alone");
}

void add_life(ServerConfig& c, OptionTable& table) {
  table.add_integer("drain-grace-s", c.drain_grace_s, 0, 86'400, "seconds running requests get after SIGTERM");
  table.add_choice("log-level", c.log_level, choices_of<LogLevel>(kLogLevelWords),
                   "least level of the lines on stderr");
  table.add_choice("log-format", c.log_format, choices_of<LogFormat>(kLogFormatWords), "form of the lines on stderr");
}

// A key travels in a header: visible ASCII (RFC 9110, token68 and more), no space. The message never shows it.
absl::Status check_key(std::string_view key, std::string_view where) {
  constexpr std::size_t kMaxKey = 512;
  const bool visible = std::all_of(key.begin(), key.end(), [](char ch) { return ch > ' ' && ch <= '~'; });
  if (!key.empty() && key.size() <= kMaxKey && visible) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} must be 1 to {} visible ASCII characters without spaces", where, kMaxKey));
}

// "KEY" or "KEY max-priority=N".
absl::StatusOr<ApiKey> parse_api_key(std::string_view item, std::string_view where) {
  constexpr std::string_view kBound = " max-priority=";
  ApiKey parsed;
  if (const std::size_t at = item.find(kBound); at != std::string_view::npos) {
    const auto bound = parse_integer(item.substr(at + kBound.size()), kMinPriority, kMaxPriority);
    if (!bound.ok()) return annotate(bound.status(), fmt::format("{} max-priority", where));
    parsed.max_priority = static_cast<std::int32_t>(*bound);
    item = item.substr(0, at);
  }
  TANDEM_TRY(check_key(item, where));
  parsed.key = item;
  return parsed;
}

// "*", "null" or scheme://host[:port], as browsers send it.
absl::Status check_origin(std::string_view origin) {
  if (origin == "*" || origin == "null") return absl::OkStatus();
  const std::size_t scheme = origin.find("://");
  const bool has_scheme = scheme != std::string_view::npos && scheme > 0;
  const std::string_view host = has_scheme ? origin.substr(scheme + 3) : std::string_view();
  if (!host.empty() && host.find_first_of("/?# ,") == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "cors-allow-origins: \"{}\" is not an origin; write scheme://host or scheme://host:port without a path", origin));
}

}  // namespace

OptionTable server_options(ServerConfig& config) {
  OptionTable table;
  add_model(config, table);
  add_compute(config, table);
  add_endpoints(config, table);
  add_pool(config, table);
  add_scheduling(config, table);
  add_life(config, table);
  return table;
}

absl::Status check_server_config(const ServerConfig& config) {
  if (config.kv_cache_tokens && config.kv_cache_gib) {
    return absl::InvalidArgumentError(
        fmt::format("kv-cache-tokens ({}) and kv-cache-gib ({}) both size the KV pool; set one of them to auto",
                    *config.kv_cache_tokens, *config.kv_cache_gib));
  }
  if (config.block_tokens && (*config.block_tokens & (*config.block_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("block-tokens: {} is not a power of two; write 8, 16, 32, 64 or 128", *config.block_tokens));
  }
  if (config.max_pending_body_bytes.value_or(UINT64_MAX) < config.max_body_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("max-pending-body-bytes ({}) is less than max-body-bytes ({}): a body of that size could never be "
                    "read; raise the one or lower the other",
                    *config.max_pending_body_bytes, config.max_body_bytes));
  }
  if (config.host.empty()) return absl::InvalidArgumentError("host: is empty; write an address such as 127.0.0.1");
  if (const auto keys = api_keys(config); !keys.ok()) return keys.status();
  if (!config.admin_api_key.empty()) TANDEM_TRY(check_key(config.admin_api_key, "admin-api-key:"));
  for (const std::string& origin : config.cors_allow_origins) TANDEM_TRY(check_origin(origin));
  return absl::OkStatus();
}

std::optional<std::int32_t> max_priority(const ServerConfig& config) {
  if (config.max_priority) return config.max_priority;
  return config.api_keys.empty() ? std::nullopt : std::optional<std::int32_t>(0);
}

absl::StatusOr<std::vector<ApiKey>> api_keys(const ServerConfig& config) {
  std::vector<ApiKey> keys;
  for (const std::string& item : config.api_keys) {
    TANDEM_ASSIGN(ApiKey key, parse_api_key(item, fmt::format("api-keys: item {}", keys.size() + 1)));
    if (!key.max_priority) key.max_priority = max_priority(config);
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace tandem
