// HTTP/1.x requests out of a byte stream: head first, so that a request can be refused before its body is read. Beast
// does the parsing; on top of it come the checks Beast leaves out (limits, one Host, folded headers, transfer codings).
// Owned by a connection, used on its thread; knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/http_routes.h"

namespace tandem {

// Received bytes that are not parsed yet.
class InputBuffer final {
 public:
  std::string_view view() const { return std::string_view(bytes_).substr(begin_); }
  void append(std::string_view bytes);
  void consume(std::size_t n) { begin_ += n; }
  bool empty() const { return begin_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - begin_; }

 private:
  std::string bytes_;
  std::size_t begin_ = 0;
};

struct HttpHead {
  std::string method;
  std::string target;
  bool is_http_1_1 = true;
  bool keep_alive = false;
  bool expects_continue = false;
  bool unknown_expectation = false;
  bool chunked = false;
  std::uint64_t content_length = 0;  // 0 when chunked or without a body
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string origin;
  std::string requested_headers;
  std::string request_id;
  std::string slo_ttft_ms;
  std::string slo_tpot_ms;

  bool has_body() const { return chunked || content_length > 0; }
};

enum class ParseResult : std::uint8_t { kNeedMore, kReady, kFailed };

class HttpParser final {
 public:
  explicit HttpParser(std::uint32_t max_header_bytes);
  ~HttpParser();

  // kReady: head() is valid. Consumes nothing while more is needed, apart from blank lines before a request.
  ParseResult read_head(InputBuffer& input);
  // After read_head. kReady: body() is complete. A body longer than `max_body_bytes` fails with 413.
  ParseResult read_body(InputBuffer& input, std::uint64_t max_body_bytes);

  const HttpHead& head() const { return head_; }
  std::size_t body_bytes() const;  // so far
  std::string take_body();
  // The reply to send after kFailed; the stream is out of step then, so the connection has to close.
  const HttpReply& failure() const { return failure_; }
  // Ready for the next request of the connection.
  void reset();

 private:
  struct Impl;  // keeps Beast out of this header

  ParseResult fail(int http_status, std::string_view message);
  ParseResult parse_head(std::string_view bytes);

  const std::uint32_t max_header_bytes_;
  std::size_t searched_ = 0;  // bytes of the input known not to hold the end of the head
  HttpHead head_;
  HttpReply failure_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
