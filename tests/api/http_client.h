// A blocking test client on a raw socket: sends bytes as given and reads replies; every wait has a limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/handles.h"

namespace tandem {

struct TestReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // chunks joined
  std::string header(const std::string& name) const {
    return headers.contains(name) ? headers.at(name) : std::string();
  }
};

class TestClient final {
 public:
  // `receive_buffer_bytes` > 0 makes a client that can hold little.
  explicit TestClient(std::uint16_t port, int receive_buffer_bytes = 0);

  bool send(std::string_view bytes);
  // The next reply; interim ones (1xx) are counted and skipped. nullopt: closed, damaged, or nothing within the limit.
  std::optional<TestReply> receive(std::string_view method = "GET");
  std::optional<TestReply> call(std::string_view method, std::string_view path, std::string_view body = {},
                                std::string_view headers = {});
  // Reads until `text` has come, without consuming it.
  bool wait_for(std::string_view text);
  // True once the server has closed.
  bool wait_closed(std::chrono::milliseconds limit = std::chrono::seconds(5));
  void half_close();
  void close() { fd_ = FileDescriptor(); }
  int num_interim() const { return num_interim_; }
  const std::string& buffered() const { return buffer_; }

 private:
  bool fill(std::chrono::milliseconds limit = std::chrono::seconds(5));
  std::optional<std::string> line();

  FileDescriptor fd_;
  std::string buffer_;
  int num_interim_ = 0;
};

std::string http_request(std::string_view method, std::string_view path, std::string_view body = {},
                         std::string_view headers = {});

}  // namespace tandem
