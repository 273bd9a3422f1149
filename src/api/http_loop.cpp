#include "api/http_loop.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <string_view>
#include <vector>

#include "api/http_connection.h"
#include "base/clock.h"
#include "base/log.h"
#include "fmt/format.h"

namespace tandem {
namespace {

using ErrorCode = boost::system::error_code;

constexpr std::chrono::milliseconds kTick{250};
constexpr std::chrono::milliseconds kStopFlush{1000};
constexpr std::int64_t kLineEveryUs = 30'000'000;

std::string refusal_text() {
  constexpr std::string_view kBody =
      R"({"error":{"message":"too many connections; try again later","type":"server_error","param":null,"code":"overloaded"}})";
  return fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      kBody.size(), kBody);
}

}  // namespace

bool LinePacer::due() {
  const std::int64_t now_us = steady_now_us();
  std::int64_t next_us = next_us_.load(std::memory_order_relaxed);
  return now_us >= next_us && next_us_.compare_exchange_strong(next_us, now_us + kLineEveryUs);
}

HttpShared::HttpShared(HttpOptions http_options, Engine& borrowed, MetricRegistry& metrics)
    : options(std::move(http_options)),
      keys(options.api_keys),
      admin_keys(options.admin_api_key.empty() ? std::vector<std::string>{} : std::vector{options.admin_api_key}),
      engine(borrowed),
      pending_bodies(options.max_pending_body_bytes),
      requests(metrics),
      open_connections(metrics.gauge("tandem_http_connections", "Open client connections")),
      evicted_connections(metrics.counter("tandem_http_evicted_connections_total",
                                          "Connections without a request that were closed to admit others")),
      refused_connections(metrics.counter("tandem_http_refused_connections_total",
                                          "Connections beyond the limit that were answered 503")) {
  for (const int status : every_status()) {
    replies_[static_cast<std::size_t>(status)] =
        metrics.counter("tandem_http_replies_total", "Replies by HTTP status, counted when the head is written",
                        {{"status", fmt::to_string(status)}});
  }
}

void HttpShared::count(int http_status) {
  if (http_status >= 0 && static_cast<std::size_t>(http_status) < replies_.size()) {
    replies_[static_cast<std::size_t>(http_status)].add();
  }
}

void HttpShared::report_full() {
  if (!pacer_.due()) return;
  TANDEM_LOG(kWarning,
             "http: all {} connections are in use: those without a request for {} s are closed for new ones, else new "
             "ones are refused; --max-connections and the limit of open files (ulimit -n) set the number",
             options.max_connections, std::chrono::duration_cast<std::chrono::seconds>(options.give_way_after).count());
}

void IoLoop::adopt(Socket socket) {
  if (stop_deadline_) return;  // it closes: nobody would look after it
  const std::optional<Admission> admission = admit();
  if (!admission) {
    shared_.refused_connections.add();
    shared_.count(503);
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(refusal_text()), ignored);
    return;
  }
  auto connection = std::make_shared<Connection>(*this, shared_, std::move(socket), *admission);
  connections_.emplace(connection.get(), Entry{connection, std::nullopt});
  connection->start();
}

std::optional<Admission> IoLoop::admit() {
  const HttpOptions& options = shared_.options;
  if (shared_.connections(Admission::kFull).load() < options.max_connections) return Admission::kFull;
  shared_.report_full();
  if (close_waiting(Admission::kFull, options.give_way_after)) return Admission::kFull;
  const bool has_place = shared_.connections(Admission::kProbe).load() < HttpOptions::kProbeConnections;
  if (has_place || close_waiting(Admission::kProbe, std::chrono::milliseconds(0))) return Admission::kProbe;
  return std::nullopt;
}

bool IoLoop::close_waiting(Admission admission, std::chrono::milliseconds waited) {
  const std::list<Connection*>& waiting = waiting_[static_cast<std::size_t>(admission)];
  if (waiting.empty() || SteadyClock::now() - waiting.front()->entered() < waited) return false;
  waiting.front()->close();
  shared_.evicted_connections.add();
  return true;
}

void IoLoop::begin_waiting(Connection& connection) {
  std::list<Connection*>& waiting = waiting_[static_cast<std::size_t>(connection.admission())];
  Entry& entry = connections_.at(&connection);
  if (entry.waiting) waiting.erase(*entry.waiting);
  entry.waiting = waiting.insert(waiting.end(), &connection);
}

void IoLoop::end_waiting(Connection& connection) {
  const auto entry = connections_.find(&connection);
  if (entry == connections_.end() || !entry->second.waiting) return;
  waiting_[static_cast<std::size_t>(connection.admission())].erase(*entry->second.waiting);
  entry->second.waiting.reset();
}

void IoLoop::remove(Connection& connection) {
  end_waiting(connection);
  // The caller is a member of the connection: let it return first.
  if (const auto it = connections_.find(&connection); it != connections_.end()) {
    asio::post(io_, [keep = std::move(it->second.connection)] {});
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
    for (const auto& [key, entry] : connections_) all.push_back(entry.connection);
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
  for (const auto& [key, entry] : connections_) all.push_back(entry.connection);
  const bool over = stop_deadline_ && now >= *stop_deadline_;
  for (const auto& connection : all) over ? connection->close() : connection->tick(now);
  // Without the timer the loop runs out of work as soon as the last connection is gone.
  if (!stop_deadline_ || !connections_.empty()) schedule_tick();
}

}  // namespace tandem
