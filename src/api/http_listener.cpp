#include "api/http_listener.h"

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace tandem {
namespace {

using ErrorCode = boost::system::error_code;
using Endpoint = asio::ip::tcp::endpoint;

// One per turn starves new connections under load. Fewer than the probes, so that one that was just accepted may ask
// before the next ones push it out.
constexpr std::size_t kAcceptBatch = HttpOptions::kProbeConnections / 2;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr int kBacklog = 4096;
constexpr int kPortTries = 16;  // a free port of one address may be taken on another

std::string text_of(const Endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return fmt::format("{}:{}", endpoint.address().is_v6() ? "[" + address + "]" : address, endpoint.port());
}

absl::Status failed(const std::string& what, std::string_view step, const ErrorCode& ec) {
  return absl::UnavailableError(
      fmt::format("cannot listen on {}: {}: {}; choose another host or port", what, step, ec.message()));
}

// Without IPv6 a name may still have an IPv6 address.
bool family_is_missing(const ErrorCode& ec) {
  return ec == asio::error::address_family_not_supported || ec.value() == EADDRNOTAVAIL ||
         ec.value() == EPROTONOSUPPORT;
}

absl::StatusOr<std::vector<Endpoint>> resolve(asio::io_context& io, const std::string& host, std::uint16_t port) {
  ErrorCode ec;
  asio::ip::tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, fmt::to_string(port), asio::ip::resolver_base::passive, ec);
  std::vector<Endpoint> endpoints;
  for (const auto& entry : found) {
    if (std::ranges::find(endpoints, entry.endpoint()) == endpoints.end()) endpoints.push_back(entry.endpoint());
  }
  if (ec || endpoints.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("cannot listen on \"{}\": {}; write an address such as 127.0.0.1, ::1, 0.0.0.0 or ::, or a name "
                    "that has one",
                    host, ec ? ec.message() : "the name has no address"));
  }
  return endpoints;
}

enum class Families : std::uint8_t { kOwn, kBoth };

template <class Acceptor>
ErrorCode listen_on(Acceptor& acceptor, const Endpoint& endpoint, Families families, std::string_view& step) {
  ErrorCode ec;
  const auto failed_at = [&](std::string_view name) {
    step = name;
    return ec.failed();
  };
  acceptor.open(endpoint.protocol(), ec);
  if (failed_at("socket")) return ec;
  acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (failed_at("SO_REUSEADDR")) return ec;
  if (endpoint.address().is_v6()) {
    // Where the system does not allow both families, the socket serves its own.
    ErrorCode ignored;
    acceptor.set_option(asio::ip::v6_only(families == Families::kOwn), ignored);
  }
  acceptor.bind(endpoint, ec);
  if (failed_at("bind")) return ec;
  acceptor.listen(kBacklog, ec);
  if (failed_at("listen")) return ec;
  acceptor.non_blocking(true, ec);
  failed_at("non-blocking mode");
  return ec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::create(asio::io_context& io, const std::string& host,
                                                                   std::uint16_t port) {
  TANDEM_ASSIGN(const std::vector<Endpoint> endpoints, resolve(io, host, port));
  absl::Status status;
  for (int attempt = 0; attempt < kPortTries; ++attempt) {
    std::unique_ptr<HttpListener> listener(new HttpListener());
    status = listener->bind_all(io, host, endpoints, port);
    if (status.ok()) return listener;
    if (port != 0 || endpoints.size() == 1) break;
  }
  return status;
}

absl::Status HttpListener::bind_all(asio::io_context& io, const std::string& host,
                                    const std::vector<Endpoint>& endpoints, std::uint16_t port) {
  const Families families = endpoints.size() == 1 ? Families::kBoth : Families::kOwn;
  absl::Status left_out;
  for (Endpoint endpoint : endpoints) {
    endpoint.port(port_ == 0 ? port : port_);
    auto socket = std::make_unique<Port>(io);
    std::string_view step;
    if (const ErrorCode ec = listen_on(socket->acceptor, endpoint, families, step); ec) {
      const absl::Status why = failed(text_of(endpoint), step, ec);
      if (!family_is_missing(ec)) return why;
      left_out = why;
      continue;
    }
    ErrorCode ignored;
    const Endpoint bound = socket->acceptor.local_endpoint(ignored);
    port_ = bound.port();
    addresses_.push_back(text_of(bound));
    ports_.push_back(std::move(socket));
  }
  if (ports_.empty()) return left_out;
  if (!left_out.ok()) {
    TANDEM_LOG(kWarning, "http: one address of \"{}\" is left out: {}", host, message(left_out));
  }
  return absl::OkStatus();
}

void HttpListener::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  for (const auto& port : ports_) accept(*port);
}

void HttpListener::close() {
  ErrorCode ignored;
  for (const auto& port : ports_) {
    port->acceptor.close(ignored);
    port->pause.cancel();
  }
}

void HttpListener::accept(Port& port) {
  IoLoop& loop = handlers_.next_loop();
  port.acceptor.async_accept(loop.io(), [this, &port, &loop](ErrorCode ec, Socket socket) {
    if (!port.acceptor.is_open()) return;
    if (!ec) handlers_.accepted(loop, std::move(socket));
    for (std::size_t i = 1; i < kAcceptBatch && !ec; ++i) {
      IoLoop& other = handlers_.next_loop();
      Socket more(other.io());
      port.acceptor.accept(more, ec);
      if (!ec) handlers_.accepted(other, std::move(more));
    }
    if (!ec || ec == asio::error::would_block || ec == asio::error::connection_aborted) return accept(port);
    if (pacer_.due()) TANDEM_LOG(kWarning, "http: cannot accept a connection: {}", ec.message());
    if (ec.value() == EMFILE || ec.value() == ENFILE) handlers_.out_of_descriptors();
    accept_later(port);
  });
}

// The connection stays in the backlog; asking again at once would only spin.
void HttpListener::accept_later(Port& port) {
  port.pause.expires_after(kAcceptPause);
  port.pause.async_wait([this, &port](ErrorCode) {
    if (port.acceptor.is_open()) accept(port);
  });
}

}  // namespace tandem
