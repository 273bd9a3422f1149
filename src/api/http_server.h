// The OpenAI HTTP front end: plain HTTP/1.1, callbacks, one event loop per thread. Owns its threads and connections;
// engine and registry are borrowed and outlive it. create() binds, start() serves. Routes: api/http_routes.h; fields:
// api/openai.h.
//
// Disconnects. A reset, a failed write, or no write progress for `write_timeout` ends a connection and cancels its
// requests at once. An end-of-file alone may be a half-close, whose client still waits for its reply: the connection
// then writes something that a waiting client ignores ("100 Continue" before a reply's head, a comment in a stream),
// and a client that is really gone answers it with a reset. HTTP/1.0 has no interim replies; there, end-of-file before
// the head counts as a half-close. A stream's unsent bytes are bounded by `max_stream_backlog_bytes`.
//
// Times: a stream's head waits for the first text, so that a failure before it is a plain HTTP error, but no longer
// than `stream_head_hold`. A stream that has nothing to send is kept open by a comment line (": keep-alive") each
// `stream_comment_after`. A failure after the head is one error event, and the connection closes without [DONE].
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/metrics.h"
#include "tandem/engine.h"

namespace tandem {

struct HttpOptions {
  std::string host = "127.0.0.1";  // a name is served on each address it has; "::" serves both families
  std::uint16_t port = 0;  // 0: any free port
  std::uint32_t threads = 1;
  std::vector<std::string> api_keys;            // empty: no authentication
  std::string admin_api_key;                    // of administrative routes; empty: any of api_keys
  std::vector<std::string> cors_allow_origins;  // empty: no CORS headers; "*": any origin
  std::uint64_t max_body_bytes = std::uint64_t{16} << 20;
  std::uint32_t max_header_bytes = std::uint32_t{64} << 10;
  // At the limit, a connection that has had no request for `give_way_after` is closed to admit a new one. While there
  // is none, kProbeConnections more may ask for health and metrics and are answered 503 for the rest.
  std::uint32_t max_connections = 8192;
  static constexpr std::uint32_t kProbeConnections = 64;
  std::chrono::milliseconds give_way_after{5'000};
  // Of all requests together that have begun to arrive and are not parsed; the first kFreeBytes of each do not count.
  std::uint64_t max_pending_body_bytes = std::uint64_t{128} << 20;
  static constexpr std::uint64_t kFreeBytes = 8 << 10;
  std::uint64_t max_stream_backlog_bytes = std::uint64_t{1} << 20;
  std::string version;
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds head_timeout{30'000};  // for a whole request head
  std::chrono::milliseconds body_timeout{30'000};  // without a byte of the body
  std::chrono::milliseconds body_total_timeout{300'000};
  std::chrono::milliseconds write_timeout{30'000};  // without write progress
  std::chrono::milliseconds stream_head_hold{5'000};
  std::chrono::milliseconds stream_comment_after{10'000};  // without a byte of a stream
};

class HttpServer final {
 public:
  static absl::StatusOr<std::unique_ptr<HttpServer>> create(HttpOptions options, Engine& engine,
                                                            MetricRegistry& metrics);
  ~HttpServer();  // stop()

  std::uint16_t port() const;
  const std::vector<std::string>& addresses() const;  // that it listens on, each with the port
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
