// The listening sockets of the HTTP front end: one for each address that the host name has, all on one port. Accepts
// and hands the connections on. Used on the thread of the io_context that it was made with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/http_loop.h"

namespace tandem {

class HttpListener final {
 public:
  struct Handlers {
    std::function<IoLoop&()> next_loop;              // of the next connection
    std::function<void(IoLoop&, Socket)> accepted;
    std::function<void()> out_of_descriptors;        // a connection waits, and there is no descriptor for it
  };

  // Binds and listens. `port` 0: any free one, the same for every address. An address whose family this system does not
  // have is left out, with a warning, as long as another one is there; what else fails, such as a port that is taken on
  // one of the addresses, fails the call.
  static absl::StatusOr<std::unique_ptr<HttpListener>> create(asio::io_context& io, const std::string& host,
                                                              std::uint16_t port);

  std::uint16_t port() const { return port_; }
  // "127.0.0.1:8080", "[::1]:8080"
  const std::vector<std::string>& addresses() const { return addresses_; }
  void start(Handlers handlers);
  void close();

 private:
  using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, Executor>;
  struct Port {
    explicit Port(asio::io_context& io) : acceptor(io.get_executor()), pause(io.get_executor()) {}
    Acceptor acceptor;
    Timer pause;
  };

  HttpListener() = default;
  absl::Status bind_all(asio::io_context& io, const std::string& host,
                        const std::vector<asio::ip::tcp::endpoint>& endpoints, std::uint16_t port);
  void accept(Port& port);
  void accept_later(Port& port);

  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::string> addresses_;
  std::uint16_t port_ = 0;
  Handlers handlers_;
  LinePacer pacer_;
};

}  // namespace tandem
