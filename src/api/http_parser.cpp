#include "api/http_parser.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/optional.hpp>
#include <cctype>
#include <exception>
#include <utility>

#include "fmt/core.h"

namespace tandem {
namespace {

namespace http = boost::beast::http;

constexpr std::string_view kHeadEnd = "\r\n\r\n";
// A chunk's size line, or trailer, that is longer than this is an attack.
constexpr std::size_t kMaxChunkLineBytes = 64 << 10;

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// A line that begins with a blank continues the one before: obsolete, and read differently by different servers.
bool has_folded_line(std::string_view head) {
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at + 2)) {
    if (at + 2 < head.size() && (head[at + 2] == ' ' || head[at + 2] == '\t')) return true;
  }
  return false;
}

bool is_method_character(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

}  // namespace

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;

  std::string_view field(http::field name) const {
    const auto value = parser.get()[name];
    return {value.data(), value.size()};
  }
  std::string field(std::string_view name) const {
    const auto value = parser.get()[boost::beast::string_view(name.data(), name.size())];
    return {value.data(), value.size()};
  }
  // The values of all the lines of a header, joined as a list.
  std::string joined(http::field name) const {
    std::string out;
    const auto [first, last] = parser.get().equal_range(name);
    for (auto it = first; it != last; ++it) {
      if (it != first) out += ", ";
      out.append(it->value().data(), it->value().size());
    }
    return out;
  }
  // Feeds the parser; Beast may throw bad_alloc only, which counts as too large.
  std::size_t put(std::string_view bytes, boost::beast::error_code& ec) {
    try {
      return parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
    } catch (const std::exception&) {
      ec = http::error::body_limit;
      return 0;
    }
  }
};

void InputBuffer::append(std::string_view bytes) {
  if (begin_ > 0) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  bytes_.append(bytes);
}

HttpParser::HttpParser(std::uint32_t max_header_bytes)
    : max_header_bytes_(max_header_bytes), impl_(std::make_unique<Impl>()) {}
HttpParser::~HttpParser() = default;

void HttpParser::reset() {
  impl_ = std::make_unique<Impl>();
  head_ = {};
  searched_ = 0;
}

std::size_t HttpParser::body_bytes() const { return impl_->parser.get().body().size(); }

std::string HttpParser::take_body() { return std::move(impl_->parser.get().body()); }

ParseResult HttpParser::fail(int http_status, std::string_view message) {
  failure_ = error_reply(http_status, message);
  return ParseResult::kFailed;
}

ParseResult HttpParser::read_head(InputBuffer& input) {
  // Some clients end a body with a line break that belongs to nothing (RFC 9112, 2.2).
  while (input.view().starts_with("\r\n")) input.consume(2);
  const std::string_view bytes = input.view();
  if (bytes.empty() || bytes == "\r") return ParseResult::kNeedMore;
  if (!is_method_character(bytes[0]))
    return fail(400, "This is not an HTTP/1.1 request; this port speaks plain HTTP only.");
  const auto end = bytes.find(kHeadEnd, searched_);
  if (end == std::string_view::npos) {
    if (bytes.size() > max_header_bytes_)
      return fail(431, fmt::format("The request's headers are longer than {} bytes.", max_header_bytes_));
    if (bytes.find("\n\n", searched_) != std::string_view::npos)
      return fail(400, "The request's lines must end in CR LF.");
    searched_ = bytes.size() < 3 ? 0 : bytes.size() - 3;
    return ParseResult::kNeedMore;
  }
  const std::size_t length = end + kHeadEnd.size();
  if (length > max_header_bytes_)
    return fail(431, fmt::format("The request's headers are longer than {} bytes.", max_header_bytes_));
  const ParseResult result = parse_head(bytes.substr(0, length));
  if (result == ParseResult::kReady) input.consume(length);
  return result;
}

ParseResult HttpParser::parse_head(std::string_view bytes) {
  if (has_folded_line(bytes)) return fail(400, "A header line begins with a blank; folded headers are not accepted.");
  auto& parser = impl_->parser;
  parser.header_limit(max_header_bytes_);
  // The limit of the body is checked later, where the reply can still be a proper 413.
  parser.body_limit(boost::none);
  parser.eager(false);
  boost::beast::error_code ec;
  impl_->put(bytes, ec);
  if (ec || !parser.is_header_done()) return fail(400, "The request's head is not valid HTTP/1.1.");

  const auto& message = parser.get();
  const std::string coding = lower(impl_->joined(http::field::transfer_encoding));
  if (!coding.empty() && coding != "chunked") return fail(400, "The only Transfer-Encoding accepted is 'chunked'.");
  head_.is_http_1_1 = message.version() == 11;
  const auto hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head_.is_http_1_1))
    return fail(400, "An HTTP/1.1 request needs exactly one Host header.");
  head_.method = std::string_view(message.method_string().data(), message.method_string().size());
  head_.target = std::string_view(message.target().data(), message.target().size());
  head_.keep_alive = message.keep_alive();
  head_.chunked = parser.chunked();
  head_.content_length = parser.content_length().value_or(0);
  // HTTP/1.0 has no interim replies.
  const std::string expect = lower(impl_->joined(http::field::expect));
  head_.expects_continue = head_.is_http_1_1 && expect == "100-continue";
  head_.unknown_expectation = head_.is_http_1_1 && !expect.empty() && expect != "100-continue";
  head_.authorization = impl_->field(http::field::authorization);
  head_.content_type = impl_->field(http::field::content_type);
  head_.content_encoding = lower(impl_->joined(http::field::content_encoding));
  head_.origin = impl_->field(http::field::origin);
  head_.requested_headers = impl_->joined(http::field::access_control_request_headers);
  head_.request_id = impl_->field("X-Request-Id");
  head_.slo_ttft_ms = impl_->field("x-slo-ttft-ms");
  head_.slo_tpot_ms = impl_->field("x-slo-tpot-ms");
  return ParseResult::kReady;
}

ParseResult HttpParser::read_body(InputBuffer& input, std::uint64_t max_body_bytes) {
  auto& parser = impl_->parser;
  if (head_.content_length > max_body_bytes) {
    return fail(413,
                fmt::format("The request's body has {} bytes; the limit is {}.", head_.content_length, max_body_bytes));
  }
  parser.eager(true);
  while (!parser.is_done()) {
    if (input.empty()) return ParseResult::kNeedMore;
    boost::beast::error_code ec;
    const std::size_t n = impl_->put(input.view(), ec);
    input.consume(n);
    if (parser.get().body().size() > max_body_bytes) ec = http::error::body_limit;
    if (ec == http::error::body_limit) {
      return fail(413, fmt::format("The request's body is longer than the limit of {} bytes.", max_body_bytes));
    }
    if (ec == http::error::need_more) {
      if (input.size() > kMaxChunkLineBytes) return fail(400, "A chunk's size line or trailer is too long.");
      return ParseResult::kNeedMore;
    }
    if (ec) return fail(400, "The request's body is not valid: its chunks cannot be read.");
  }
  return ParseResult::kReady;
}

}  // namespace tandem
