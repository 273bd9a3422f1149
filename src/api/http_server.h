// The OpenAI HTTP front end: plain HTTP/1.1, callbacks, one event loop per thread. Owns its threads and connections;
// the engine is borrowed and outlives it. create() binds, start() serves. Routes: api/http_routes.h; fields:
// api/openai.h.
//
// Disconnects. A reset, a failed write, or no write progress for `write_timeout` ends a connection and cancels its
// requests at once. An end-of-file alone may be a half-close, whose client still waits for its reply: the connection
// then writes something that a waiting client ignores ("100 Continue" before a reply's head, a comment in a stream),
// and a client that is really gone answers it with a reset. HTTP/1.0 has no interim replies; there, end-of-file before
// the head counts as a half-close. A stream's unsent bytes are bounded by `max_stream_backlog_bytes`.
//
// Times: a stream's head waits for the first text, so that a failure before it is a plain HTTP error, but no longer
// than `stream_head_hold`. A failure after the head is one error event, and the connection closes without [DONE].
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/api_keys.h"
#include "tandem/engine.h"

namespace tandem {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port
  std::uint32_t threads = 1;
  std::vector<ApiKey> api_keys;                 // empty: no authentication
  std::optional<std::int32_t> max_priority;     // of requests without a key; absent: no bound
  std::string admin_api_key;                    // of administrative routes; empty: any of api_keys
  std::vector<std::string> cors_allow_origins;  // empty: no CORS headers; "*": any origin
  std::uint64_t max_body_bytes = std::uint64_t{16} << 20;
  std::uint32_t max_header_bytes = std::uint32_t{64} << 10;
  std::uint32_t max_connections = 8192;  // more are answered 503 and closed
  std::uint64_t max_stream_backlog_bytes = std::uint64_t{1} << 20;
  std::string version;
  std::chrono::milliseconds idle_timeout{75'000};      // between requests
  std::chrono::milliseconds head_timeout{30'000};      // for a whole request head
  std::chrono::milliseconds body_timeout{30'000};      // without a byte of the body
  std::chrono::milliseconds body_total_timeout{300'000};
  std::chrono::milliseconds write_timeout{30'000};     // without write progress
  std::chrono::milliseconds stream_head_hold{5'000};
};

class HttpServer final {
 public:
  static absl::StatusOr<std::unique_ptr<HttpServer>> create(HttpOptions options, Engine& engine);
  ~HttpServer();  // stop()

  std::uint16_t port() const;
  void start();
  // For a drain: the listener closes, health and readiness say 503, replies close their connections, and what runs goes
  // on. Any thread.
  void stop_accepting();
  // Ends what still runs with 503 or an error event, flushes for at most a second, and joins the threads.
  void stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
