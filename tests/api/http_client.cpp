#include "api/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "fmt/format.h"

namespace tandem {

TestClient::TestClient(std::uint16_t port, int receive_buffer_bytes)
    : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0)
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fd_ = FileDescriptor();
}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool TestClient::fill(std::chrono::milliseconds limit) {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, static_cast<int>(limit.count())) <= 0) return false;
  char bytes[16384];
  const auto n = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(n));
  return true;
}

std::optional<std::string> TestClient::line() {
  for (;;) {
    if (const auto end = buffer_.find("\r\n"); end != std::string::npos) {
      std::string out = buffer_.substr(0, end);
      buffer_.erase(0, end + 2);
      return out;
    }
    if (!fill()) return std::nullopt;
  }
}

std::optional<TestReply> TestClient::receive(std::string_view method) {
  TestReply reply;
  const auto status = line();
  if (!status || !status->starts_with("HTTP/1.1 ")) return std::nullopt;
  reply.status = std::atoi(status->c_str() + 9);
  for (;;) {
    const auto field = line();
    if (!field) return std::nullopt;
    if (field->empty()) break;
    const auto colon = field->find(": ");
    if (colon == std::string::npos) return std::nullopt;
    std::string name = field->substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    reply.headers[name] = field->substr(colon + 2);
  }
  if (reply.status < 200) {
    ++num_interim_;
    return receive(method);
  }
  if (method == "HEAD" || reply.status == 204) return reply;
  const auto take = [&](std::size_t n) {
    while (buffer_.size() < n) {
      if (!fill()) return false;
    }
    reply.body += buffer_.substr(0, n);
    buffer_.erase(0, n);
    return true;
  };
  if (reply.headers.contains("content-length")) {
    return take(std::strtoul(reply.headers["content-length"].c_str(), nullptr, 10)) ? std::optional(reply)
                                                                                    : std::nullopt;
  }
  if (reply.header("transfer-encoding") != "chunked") {
    while (fill()) {
    }
    reply.body = std::exchange(buffer_, {});
    return reply;
  }
  for (;;) {
    const auto size_line = line();
    if (!size_line) return std::nullopt;
    const std::size_t size = std::strtoul(size_line->c_str(), nullptr, 16);
    if (size > 0 && !take(size)) return std::nullopt;
    if (line() != "") return std::nullopt;
    if (size == 0) return reply;
  }
}

std::optional<TestReply> TestClient::call(std::string_view method, std::string_view path, std::string_view body,
                                          std::string_view headers) {
  if (!send(http_request(method, path, body, headers))) return std::nullopt;
  return receive(method);
}

bool TestClient::wait_for(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

bool TestClient::wait_closed(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(left.count())) <= 0) return false;
    char bytes[16384];
    const auto n = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (n <= 0) return true;
    buffer_.append(bytes, static_cast<std::size_t>(n));
  }
}

void TestClient::half_close() { ::shutdown(fd_.get(), SHUT_WR); }

std::string http_request(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view headers) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, path, headers);
  if (!body.empty()) out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  return out + "\r\n" + std::string(body);
}

}  // namespace tandem
