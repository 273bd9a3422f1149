// The event loops of the HTTP front end: what they share, and one loop with its connections. A loop's members run on
// its thread, unless they say otherwise.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "api/http_routes.h"
#include "api/http_server.h"
#include "tandem/engine.h"

namespace tandem {

namespace asio = boost::asio;
using SteadyClock = std::chrono::steady_clock;
using Executor = asio::io_context::executor_type;  // a concrete one: half the cost of any_io_executor
using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
using Timer = asio::basic_waitable_timer<SteadyClock, asio::wait_traits<SteadyClock>, Executor>;

// What all loops share: constant after start, or atomic.
struct HttpShared {
  HttpShared(HttpOptions http_options, Engine& borrowed)
      : options(std::move(http_options)),
        keys(options.api_keys, options.max_priority),
        admin_keys(options.admin_api_key.empty() ? std::vector<ApiKey>{} : std::vector{ApiKey{options.admin_api_key}}),
        engine(borrowed) {}

  void count(int http_status);
  std::string metrics() const;  // of the front end itself, Prometheus text

  const HttpOptions options;
  const ApiKeys keys, admin_keys;
  Engine& engine;
  std::function<void(std::function<void()>)> run_job;  // on the pool for long parses; set before start
  std::atomic<bool> draining = false;
  std::atomic<std::uint32_t> num_connections = 0;

 private:
  std::array<std::atomic<std::uint64_t>, 600> replies_{};  // by status
};

class Connection;

// An io_context and its connections.
class IoLoop final {
 public:
  explicit IoLoop(HttpShared& shared) : shared_(shared), timer_(io_) {}

  asio::io_context& io() { return io_; }
  void adopt(Socket socket);
  void remove(Connection& connection);
  // Until begin_stop() and the end of the last connection.
  void run();
  // Any thread.
  void begin_stop();

 private:
  void schedule_tick();
  void tick();

  HttpShared& shared_;
  asio::io_context io_{1};
  Timer timer_;
  // shared_ptr: the second owner is every operation of the connection that is under way.
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::optional<SteadyClock::time_point> stop_deadline_;
};

}  // namespace tandem
