#include "api/http_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "api/http_loop.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace tandem {
namespace {

using ErrorCode = boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Executor>;

constexpr std::size_t kAcceptBatch = 64;  // one per turn starves new connections under load
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::size_t kPoolThreads = 2;

}  // namespace

struct HttpServer::Impl {
  Impl(HttpOptions options, Engine& engine) : shared(std::move(options), engine), pool(kPoolThreads) {
    shared.run_job = [this](std::function<void()> job) { asio::post(pool, std::move(job)); };
    for (std::uint32_t i = 0; i < std::max<std::uint32_t>(shared.options.threads, 1); ++i) {
      loops.push_back(std::make_unique<IoLoop>(shared));
    }
    acceptor.emplace(loops[0]->io().get_executor());
    pause.emplace(loops[0]->io().get_executor());
  }

  absl::Status listen();
  void accept();
  void take(Socket socket, IoLoop& loop);
  IoLoop& next_loop() { return *loops[next++ % loops.size()]; }

  HttpShared shared;
  std::vector<std::unique_ptr<IoLoop>> loops;
  std::optional<Acceptor> acceptor;  // used on loop 0's thread, once started
  std::optional<Timer> pause;
  std::vector<std::thread> threads;
  asio::thread_pool pool;
  std::size_t next = 0;
  std::uint16_t port = 0;
};

absl::Status HttpServer::Impl::listen() {
  const HttpOptions& options = shared.options;
  const auto failed = [&options](std::string_view what, const ErrorCode& ec) {
    return absl::UnavailableError(fmt::format("cannot listen on {}:{}: {}: {}; choose another host or port",
                                              options.host, options.port, what, ec.message()));
  };
  ErrorCode ec;
  asio::ip::tcp::resolver resolver(loops[0]->io());
  const auto found = resolver.resolve(options.host, fmt::to_string(options.port), asio::ip::resolver_base::passive, ec);
  if (ec || found.empty()) return failed("no such address", ec);
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor->open(endpoint.protocol(), ec);
  if (ec) return failed("socket", ec);
  acceptor->set_option(asio::socket_base::reuse_address(true), ec);
  if (ec) return failed("SO_REUSEADDR", ec);
  acceptor->bind(endpoint, ec);
  if (ec) return failed("bind", ec);
  acceptor->listen(4096, ec);
  if (ec) return failed("listen", ec);
  acceptor->non_blocking(true, ec);
  if (ec) return failed("non-blocking mode", ec);
  port = acceptor->local_endpoint(ec).port();
  return absl::OkStatus();
}

void HttpServer::Impl::accept() {
  IoLoop& loop = next_loop();
  acceptor->async_accept(loop.io(), [this, &loop](ErrorCode ec, Socket socket) {
    if (!acceptor->is_open()) return;
    if (!ec) take(std::move(socket), loop);
    for (std::size_t i = 1; i < kAcceptBatch && !ec; ++i) {
      IoLoop& other = next_loop();
      Socket more(other.io());
      acceptor->accept(more, ec);
      if (!ec) take(std::move(more), other);
    }
    if (!ec || ec == asio::error::would_block || ec == asio::error::connection_aborted) return accept();
    // Out of descriptors: the connection stays in the backlog, and asking again at once would only spin.
    TANDEM_LOG(kWarning, "http: cannot accept a connection: {}", ec.message());
    pause->expires_after(kAcceptPause);
    pause->async_wait([this](ErrorCode) {
      if (acceptor->is_open()) accept();
    });
  });
}

void HttpServer::Impl::take(Socket socket, IoLoop& loop) {
  if (shared.num_connections.load() >= shared.options.max_connections) {
    constexpr std::string_view kBody =
        R"({"error":{"message":"too many connections; try again later","type":"server_error","param":null,"code":"overloaded"}})";
    const std::string full = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        kBody.size(), kBody);
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(full), ignored);
    return;
  }
  // A socket belongs to its loop; hop there, since this runs on loop 0.
  asio::post(loop.io(), [&loop, socket = std::move(socket)]() mutable { loop.adopt(std::move(socket)); });
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::create(HttpOptions options, Engine& engine) {
  try {
    auto impl = std::make_unique<Impl>(std::move(options), engine);
    TANDEM_TRY(impl->listen());
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
  } catch (const std::exception& e) {
    return absl::InternalError(fmt::format("cannot set up the HTTP server: {}", e.what()));
  }
}

HttpServer::~HttpServer() { stop(); }

std::uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::start() {
  asio::post(impl_->loops[0]->io(), [impl = impl_.get()] { impl->accept(); });
  for (const auto& loop : impl_->loops) impl_->threads.emplace_back([&loop = *loop] { loop.run(); });
}

void HttpServer::stop_accepting() {
  impl_->shared.draining.store(true);
  asio::post(impl_->loops[0]->io(), [impl = impl_.get()] {
    ErrorCode ignored;
    impl->acceptor->close(ignored);
    impl->pause->cancel();
  });
}

void HttpServer::stop() {
  if (impl_->threads.empty()) return;
  stop_accepting();
  for (const auto& loop : impl_->loops) loop->begin_stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  // Jobs touch their calls and the engine only; the calls are closed by now.
  impl_->pool.join();
}

}  // namespace tandem
