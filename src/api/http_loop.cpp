#include "api/http_loop.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <vector>

#include "api/http_connection.h"
#include "base/log.h"
#include "fmt/format.h"

namespace tandem {
namespace {

using ErrorCode = boost::system::error_code;

constexpr std::chrono::milliseconds kTick{250};
constexpr std::chrono::milliseconds kStopFlush{1000};

}  // namespace

void HttpShared::count(int http_status) {
  if (http_status >= 0 && static_cast<std::size_t>(http_status) < replies_.size()) {
    replies_[static_cast<std::size_t>(http_status)].fetch_add(1, std::memory_order_relaxed);
  }
}

std::string HttpShared::metrics() const {
  std::string out =
      "# HELP tandem_http_replies_total Replies by HTTP status, counted when the head is written.\n"
      "# TYPE tandem_http_replies_total counter\n";
  for (std::size_t status = 0; status < replies_.size(); ++status) {
    if (const auto n = replies_[status].load(std::memory_order_relaxed); n > 0) {
      out += fmt::format("tandem_http_replies_total{{status=\"{}\"}} {}\n", status, n);
    }
  }
  out += fmt::format(
      "# HELP tandem_http_connections Open client connections.\n# TYPE tandem_http_connections gauge\n"
      "tandem_http_connections {}\n",
      num_connections.load());
  return out;
}

void IoLoop::adopt(Socket socket) {
  if (stop_deadline_) return;  // it closes: nobody would look after it
  auto connection = std::make_shared<Connection>(*this, shared_, std::move(socket));
  connections_.emplace(connection.get(), connection);
  connection->start();
}

void IoLoop::remove(Connection& connection) {
  // The caller is a member of the connection: let it return first.
  if (const auto it = connections_.find(&connection); it != connections_.end()) {
    asio::post(io_, [keep = std::move(it->second)] {});
    connections_.erase(it);
  }
  if (stop_deadline_ && connections_.empty()) timer_.cancel();
}

void IoLoop::run() {
  schedule_tick();
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& e) {
      // Out of memory in one handler must not end the other connections of the loop.
      TANDEM_LOG(kError, "http: a handler failed: {}", e.what());
    }
  }
}

void IoLoop::begin_stop() {
  asio::post(io_, [this] {
    stop_deadline_ = SteadyClock::now() + kStopFlush;
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [key, connection] : connections_) all.push_back(connection);
    for (const auto& connection : all) connection->shut_down();
    if (connections_.empty()) timer_.cancel();
  });
}

void IoLoop::schedule_tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](ErrorCode) { tick(); });
}

void IoLoop::tick() {
  const auto now = SteadyClock::now();
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (const auto& [key, connection] : connections_) all.push_back(connection);
  const bool over = stop_deadline_ && now >= *stop_deadline_;
  for (const auto& connection : all) over ? connection->close() : connection->tick(now);
  // Without the timer the loop runs out of work as soon as the last connection is gone.
  if (!stop_deadline_ || !connections_.empty()) schedule_tick();
}

}  // namespace tandem
