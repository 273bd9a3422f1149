// The event loops of the HTTP front end: what they share, and one loop with its connections. A loop's members run on
// its thread, unless they say otherwise. A loop also decides what becomes of a connection beyond the limit.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "api/byte_budget.h"
#include "api/http_routes.h"
#include "api/http_server.h"
#include "api/request_counters.h"
#include "base/metrics.h"
#include "tandem/engine.h"

namespace tandem {

namespace asio = boost::asio;
using SteadyClock = std::chrono::steady_clock;
using Executor = asio::io_context::executor_type;  // a concrete one: half the cost of any_io_executor
using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
using Timer = asio::basic_waitable_timer<SteadyClock, asio::wait_traits<SteadyClock>, Executor>;

// Lets one log line through per half a minute. Any thread.
class LinePacer final {
 public:
  bool due();

 private:
  std::atomic<std::int64_t> next_us_{0};
};

// kProbe: beyond the limit of connections. It may ask for what needs no key (health, metrics); all else is answered
// 503.
enum class Admission : std::uint8_t { kFull, kProbe };

// What all loops share: constant after start, or atomic.
struct HttpShared {
  HttpShared(HttpOptions http_options, Engine& borrowed, MetricRegistry& metrics);

  void count(int http_status);
  std::atomic<std::uint32_t>& connections(Admission admission) {
    return num_connections_[static_cast<std::size_t>(admission)];
  }
  // Says in the log, now and then, that the limit of connections is reached.
  void report_full();

  const HttpOptions options;
  const ApiKeys keys, admin_keys;
  Engine& engine;
  std::function<void(std::function<void()>)> run_job;  // on the pool for long parses; set before start
  std::atomic<bool> draining = false;
  ByteBudget pending_bodies;
  RequestCounters requests;
  Gauge open_connections;
  Counter evicted_connections, refused_connections;

 private:
  std::atomic<std::uint32_t> num_connections_[2] = {};  // by Admission
  std::array<Counter, 600> replies_;                    // by status
  LinePacer pacer_;
};

class Connection;

// An io_context and its connections.
class IoLoop final {
 public:
  explicit IoLoop(HttpShared& shared) : shared_(shared), timer_(io_) {}

  asio::io_context& io() { return io_; }
  void adopt(Socket socket);
  void remove(Connection& connection);
  // The connection waits for a request from now on, behind the others that do.
  void begin_waiting(Connection& connection);
  void end_waiting(Connection& connection);
  // Closes the connection that has waited for a request the longest, if that is at least `waited`.
  bool close_waiting(Admission admission, std::chrono::milliseconds waited);
  // Until begin_stop() and the end of the last connection.
  void run();
  // Any thread.
  void begin_stop();

 private:
  struct Entry {
    // The second owner is every operation of the connection that is under way.
    std::shared_ptr<Connection> connection;
    std::optional<std::list<Connection*>::iterator> waiting;
  };

  std::optional<Admission> admit();
  void schedule_tick();
  void tick();

  HttpShared& shared_;
  asio::io_context io_{1};
  Timer timer_;
  std::unordered_map<Connection*, Entry> connections_;
  std::list<Connection*> waiting_[2];  // by Admission; the longest first
  std::optional<SteadyClock::time_point> stop_deadline_;
};

}  // namespace tandem
