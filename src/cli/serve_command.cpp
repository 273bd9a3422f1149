// `tandem serve`: an instance behind its HTTP and gRPC front ends, until a signal drains it.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "api/grpc_server.h"
#include "api/http_server.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/server_options.h"
#include "fmt/core.h"
#include "instance.h"

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

HttpOptions http_options(const ServerConfig& config, const std::vector<ApiKey>& keys) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port;
  options.threads = config.http_threads;
  options.api_keys = keys;
  options.max_priority = max_priority(config);
  options.admin_api_key = config.admin_api_key;
  options.max_body_bytes = config.max_body_bytes;
  options.max_header_bytes = config.max_header_bytes;
  options.cors_allow_origins = config.cors_allow_origins;
  options.version = TANDEM_VERSION;
  return options;
}

}  // namespace

int serve_command(const ServerConfig& config) {
  init_logging(config.log_level, config.log_format, "serve");
  // Blocked before any thread starts, so that only the descriptor below sees them.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const FileDescriptor signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  const FileDescriptor fatal_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

  const int fatal = fatal_fd.get();
  auto instance = Instance::start(config, [fatal] {
    const std::uint64_t one = 1;
    if (::write(fatal, &one, sizeof(one)) < 0) TANDEM_LOG(kError, "cannot wake the main thread");
  });
  if (!instance.ok()) {
    TANDEM_LOG(kError, "cannot start: {}", message(instance.status()));
    return 1;
  }
  LocalEngine& engine = (*instance)->engine();
  const auto keys = api_keys(config);
  if (!keys.ok()) {
    TANDEM_LOG(kError, "cannot start: {}", message(keys.status()));
    return 1;
  }
  auto http = HttpServer::create(http_options(config, *keys), engine);
  if (!http.ok()) {
    TANDEM_LOG(kError, "cannot start: {}", message(http.status()));
    return 1;
  }
  std::unique_ptr<GrpcServer> grpc;
  if (config.grpc_port) {
    auto created =
        GrpcServer::create({config.host, *config.grpc_port, *keys, max_priority(config), config.admin_api_key}, engine);
    if (!created.ok()) {
      TANDEM_LOG(kError, "cannot start: {}", message(created.status()));
      return 1;
    }
    grpc = *std::move(created);
    TANDEM_LOG(kInfo, "gRPC listens on {}:{}", config.host, grpc->port());
  }
  (*http)->start();
  print_greeting(config, **instance, engine.model().id, (*http)->port());

  pollfd events[2] = {{signal_fd.get(), POLLIN, 0}, {fatal_fd.get(), POLLIN, 0}};
  while (::poll(events, 2, -1) < 0) {
  }
  bool failed = (events[1].revents & POLLIN) != 0;
  if (failed) {
    TANDEM_LOG(kError, "ending: {}", (*instance)->trouble());
    engine.drain(std::chrono::milliseconds(0));
  } else {
    signalfd_siginfo taken = {};
    if (::read(signal_fd.get(), &taken, sizeof(taken)) < 0) TANDEM_LOG(kError, "cannot read the signal");
    TANDEM_LOG(kInfo, "draining: running requests have {} s; a second signal ends them at once", config.drain_grace_s);
    (*http)->stop_accepting();
    if (grpc) grpc->stop_accepting();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(config.drain_grace_s);
    engine.begin_drain();
    while (engine.busy() && std::chrono::steady_clock::now() < deadline && ::poll(events, 2, 20) == 0) {
    }
    engine.drain(std::chrono::milliseconds(0));
    failed = !(*instance)->trouble().empty();
  }
  // Let the last events reach their sockets.
  (*http)->stop();
  if (grpc) grpc->stop();
  TANDEM_LOG(kInfo, "stopped");
  return failed ? 1 : 0;
}

}  // namespace tandem
