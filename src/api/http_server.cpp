#include "api/http_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "api/http_listener.h"
#include "api/http_loop.h"
#include "base/status.h"
#include "fmt/format.h"

namespace tandem {
namespace {

constexpr std::size_t kPoolThreads = 2;

}  // namespace

struct HttpServer::Impl {
  Impl(HttpOptions options, Engine& engine, MetricRegistry& metrics)
      : shared(std::move(options), engine, metrics), pool(kPoolThreads) {
    shared.run_job = [this](std::function<void()> job) { asio::post(pool, std::move(job)); };
    for (std::uint32_t i = 0; i < std::max<std::uint32_t>(shared.options.threads, 1); ++i) {
      loops.push_back(std::make_unique<IoLoop>(shared));
    }
  }

  void accept();

  HttpShared shared;
  std::vector<std::unique_ptr<IoLoop>> loops;
  std::unique_ptr<HttpListener> listener;  // used on loop 0's thread, once started
  std::vector<std::thread> threads;
  asio::thread_pool pool;
  std::size_t next = 0;
};

void HttpServer::Impl::accept() {
  listener->start({
      .next_loop = [this]() -> IoLoop& { return *loops[next++ % loops.size()]; },
      // A socket belongs to its loop; hop there, since this runs on loop 0.
      .accepted =
          [](IoLoop& loop, Socket socket) {
            asio::post(loop.io(), [&loop, socket = std::move(socket)]() mutable { loop.adopt(std::move(socket)); });
          },
      .out_of_descriptors =
          [this] {
            for (const auto& loop : loops) {
              asio::post(loop->io(),
                         [&loop = *loop] { loop.close_waiting(Admission::kFull, std::chrono::milliseconds(0)); });
            }
          },
  });
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::create(HttpOptions options, Engine& engine,
                                                               MetricRegistry& metrics) {
  try {
    auto impl = std::make_unique<Impl>(std::move(options), engine, metrics);
    const HttpOptions& wanted = impl->shared.options;
    TANDEM_ASSIGN(impl->listener, HttpListener::create(impl->loops[0]->io(), wanted.host, wanted.port));
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
  } catch (const std::exception& e) {
    return absl::InternalError(fmt::format("cannot set up the HTTP server: {}", e.what()));
  }
}

HttpServer::~HttpServer() { stop(); }

std::uint16_t HttpServer::port() const { return impl_->listener->port(); }

const std::vector<std::string>& HttpServer::addresses() const { return impl_->listener->addresses(); }

void HttpServer::start() {
  asio::post(impl_->loops[0]->io(), [impl = impl_.get()] { impl->accept(); });
  for (const auto& loop : impl_->loops) impl_->threads.emplace_back([&loop = *loop] { loop.run(); });
}

void HttpServer::stop_accepting() {
  impl_->shared.draining.store(true);
  asio::post(impl_->loops[0]->io(), [impl = impl_.get()] { impl->listener->close(); });
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
