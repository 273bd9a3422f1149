// `tandem serve`: an instance behind its HTTP and gRPC front ends, until a signal drains it.
#include <signal.h>

#include <chrono>
#include <cstdio>

#include "api/grpc_server.h"
#include "api/http_server.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/instance_run.h"
#include "fmt/core.h"

namespace tandem {
namespace {

void print_greeting(const ServerConfig& config, const Instance& instance, const std::string& model,
                    std::uint16_t port) {
  const std::string host = config.host == "0.0.0.0" || config.host == "::" ? "127.0.0.1" : config.host;
  const std::string url =
      fmt::format("http://{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port);
  const std::string key = config.api_keys.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'";
  std::printf(
      "tandem serves %s on %s\n  %s\n\nTry it:\n  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s "
      "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Name the capital of France.\"}],\"temperature\":0,"
      "\"max_tokens\":64}'\n\n",
      model.c_str(), url.c_str(), instance.summary().c_str(), url.c_str(), key.c_str());
  std::fflush(stdout);
}

HttpOptions http_options(const ServerConfig& config) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port;
  options.threads = config.http_threads;
  options.api_keys = config.api_keys;
  options.admin_api_key = config.admin_api_key;
  options.max_body_bytes = config.max_body_bytes;
  options.max_header_bytes = config.max_header_bytes;
  options.cors_allow_origins = config.cors_allow_origins;
  options.version = TANDEM_VERSION;
  return options;
}

// Returns when nothing runs any more, or the grace is over, or a second signal has come.
void drain(const ServerConfig& config, InstanceRun& run, HttpServer& http, GrpcServer* grpc) {
  TANDEM_LOG(kInfo, "draining: running requests have {} s; a second signal ends them at once", config.drain_grace_s);
  http.stop_accepting();
  if (grpc != nullptr) grpc->stop_accepting();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(config.drain_grace_s);
  run.engine().begin_drain();
  while (run.engine().busy() && std::chrono::steady_clock::now() < deadline &&
         !run.wait(std::chrono::milliseconds(20))) {
  }
}

int failed_start(const absl::Status& status) {
  TANDEM_LOG(kError, "cannot start: {}", message(status));
  return 1;
}

}  // namespace

int serve_command(const ServerConfig& config) {
  init_logging(config.log_level, config.log_format, "serve");
  ::signal(SIGPIPE, SIG_IGN);
  auto run = InstanceRun::start(config, /*loading_status=*/0);  // a server that is stopped early has not failed
  if (!run.ok()) return failed_start(run.status());
  LocalEngine& engine = (*run)->engine();
  auto http = HttpServer::create(http_options(config), engine, (*run)->instance().metrics());
  if (!http.ok()) return failed_start(http.status());
  std::unique_ptr<GrpcServer> grpc;
  if (config.grpc_port) {
    auto created = GrpcServer::create({config.host, *config.grpc_port, config.api_keys, config.admin_api_key}, engine);
    if (!created.ok()) return failed_start(created.status());
    grpc = *std::move(created);
    TANDEM_LOG(kInfo, "gRPC listens on {}:{}", config.host, grpc->port());
  }
  (*run)->loaded();
  (*http)->start();
  print_greeting(config, (*run)->instance(), engine.model().id, (*http)->port());

  const bool failed = (*run)->wait(std::nullopt) == InstanceRun::End::kFailure;
  if (failed) {
    TANDEM_LOG(kError, "ending: {}", (*run)->instance().trouble());
  } else {
    drain(config, **run, **http, grpc.get());
  }
  const int status = failed || !(*run)->instance().trouble().empty() ? 1 : 0;
  (*run)->begin_stop(status);
  engine.drain(std::chrono::milliseconds(0));
  // Let the last events reach their sockets.
  (*http)->stop();
  if (grpc) grpc->stop();
  TANDEM_LOG(kInfo, "stopped");
  return status;
}

}  // namespace tandem
