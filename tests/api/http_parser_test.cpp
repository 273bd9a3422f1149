#include "api/http_parser.h"

#include "api/api_keys.h"
#include "api/request_id.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

constexpr std::uint32_t kHeadBytes = 4096;

// Feeds `bytes` in pieces of `step`; the result of the last call.
ParseResult feed(HttpParser& parser, std::string_view bytes, std::size_t step, std::uint64_t max_body = 1000) {
  InputBuffer input;
  bool has_head = false;
  ParseResult result = ParseResult::kNeedMore;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    input.append(bytes.substr(at, step));
    if (!has_head) {
      result = parser.read_head(input);
      if (result == ParseResult::kFailed) return result;
      has_head = result == ParseResult::kReady;
    }
    if (has_head) result = parser.read_body(input, max_body);
    if (result != ParseResult::kNeedMore) return result;
  }
  return result;
}

TEST(HttpParser, reads_a_request_in_pieces_of_any_size) {
  const std::string request =
      "\r\nPOST /x?y=1 HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
      "Expect: 100-Continue\r\nx-slo-TTFT-ms: 5\r\n\r\n3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: t\r\n\r\n";
  for (std::size_t step = 1; step <= request.size(); ++step) {
    HttpParser parser(kHeadBytes);
    ASSERT_EQ(feed(parser, request, step), ParseResult::kReady) << step << parser.failure().body;
    EXPECT_EQ(parser.head().method, "POST");
    EXPECT_EQ(parser.head().target, "/x?y=1");
    EXPECT_TRUE(parser.head().keep_alive && parser.head().chunked && parser.head().expects_continue);
    EXPECT_EQ(parser.head().slo_ttft_ms, "5");
    EXPECT_EQ(parser.take_body(), "abcde");
  }
}

TEST(HttpParser, refuses_what_servers_read_differently) {
  const std::string host = "Host: h\r\n";
  const std::string get = "GET / HTTP/1.1\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {get + "\r\n", 400},                                                    // no Host
      {get + host + host + "\r\n", 400},                                      // two
      {get + host + "A: b\r\n c\r\n\r\n", 400},                               // folded
      {get + host + "A : b\r\n\r\n", 400},                                    // blank before the colon
      {get + host + "Transfer-Encoding: chunked, identity\r\n\r\n", 400},
      {get + host + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {get + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400},
      {get + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400},
      {get + host + "Content-Length: -1\r\n\r\n", 400},
      {get + host + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: h\n\n", 400},                                   // bare LF
      {"GET / HTTP/3.0\r\n" + host + "\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {std::string("\x16\x03\x01\x02", 4), 400},                              // TLS
      {get + host + "A: " + std::string(2 * kHeadBytes, 'x'), 431},
      {get + host + "A: " + std::string(2 * kHeadBytes, 'x') + "\r\n\r\n", 431},
      {get + host + "Content-Length: 1001\r\n\r\n", 413},
      {get + host + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x'), 413},
      {get + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {get + host + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(200000, 'x'), 400},
  };
  for (const auto& [bytes, status] : cases) {
    HttpParser parser(kHeadBytes);
    EXPECT_EQ(feed(parser, bytes, bytes.size()), ParseResult::kFailed) << bytes.substr(0, 80);
    EXPECT_EQ(parser.failure().status, status) << bytes.substr(0, 80);
  }
}

TEST(HttpParser, leaves_the_next_request_alone) {
  InputBuffer input;
  input.append("GET /a HTTP/1.1\r\nHost: h\r\n\r\nDELETE /b HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpParser parser(kHeadBytes);
  ASSERT_EQ(parser.read_head(input), ParseResult::kReady);
  ASSERT_EQ(parser.read_body(input, 10), ParseResult::kReady);
  EXPECT_EQ(parser.head().target, "/a");
  parser.reset();
  ASSERT_EQ(parser.read_head(input), ParseResult::kReady);
  ASSERT_EQ(parser.read_body(input, 10), ParseResult::kReady);
  EXPECT_EQ(parser.head().method, "DELETE");
  EXPECT_TRUE(input.empty());
}

TEST(HttpParser, survives_random_bytes) {
  std::uint32_t state = 7;
  const std::string base = "POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nabcde";
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = base;
    for (int i = 0; i < 3; ++i) {
      state = state * 1664525U + 1013904223U;
      bytes[(state >> 8U) % bytes.size()] = static_cast<char>(state >> 24U);
    }
    HttpParser parser(kHeadBytes);
    feed(parser, bytes, 1 + state % 40);
  }
}

TEST(Routes, know_paths_methods_and_keys) {
  EXPECT_TRUE(match_route("POST", "/v1/chat/completions?x=1").method_allowed);
  EXPECT_TRUE(match_route("POST", "http://host:1/v1/chat/completions").method_allowed);
  EXPECT_FALSE(match_route("GET", "/v1/chat/completions").method_allowed);
  EXPECT_FALSE(match_route("PO", "/v1/chat/completions").method_allowed);
  EXPECT_EQ(match_route("GET", "/v1/models/a/b%20c").model_id, "a/b c");
  EXPECT_EQ(match_route("GET", "/nope").route, Route::kUnknown);
  EXPECT_EQ(match_route("GET", "/health").key, KeyNeed::kNone);
  EXPECT_EQ(match_route("GET", "/version").key, KeyNeed::kAny);
  EXPECT_EQ(match_route("POST", "/flush_cache").key, KeyNeed::kAdmin);

  const ApiKeys keys({ApiKey{"one"}, ApiKey{"two"}});
  EXPECT_TRUE(keys.caller("bearer two"));
  EXPECT_TRUE(keys.caller("BEARER   one  "));
  for (const std::string_view bad :
       {"", "Bearer", "Bearer ", "Bearer on", "Basic one", "Bearerone", "one", "Bearer one two"}) {
    EXPECT_FALSE(keys.caller(bad)) << bad;
  }
}

TEST(Routes, bound_request_ids) {
  EXPECT_EQ(request_id("abc-1"), "abc-1");
  for (const std::string& bad :
       {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a\r\nb"), std::string("\xC3\xA9")}) {
    EXPECT_TRUE(request_id(bad).starts_with("req-"));
  }
}

std::string header(const HttpReply& reply, std::string_view name) {
  for (const auto& [key, value] : reply.headers) {
    if (key == name) return value;
  }
  return {};
}

TEST(Cors, follows_the_configuration) {
  HttpReply none;
  add_cors_headers({}, {.origin = "http://a", .requested_headers = {}}, none);
  EXPECT_TRUE(none.headers.empty());
  HttpReply any;
  add_cors_headers({"*"}, {.origin = "null", .requested_headers = {}}, any);
  EXPECT_EQ(header(any, "Access-Control-Allow-Origin"), "*");
  HttpReply listed;
  add_cors_headers({"http://a"}, {.origin = "http://a", .requested_headers = {}}, listed);
  EXPECT_EQ(header(listed, "Access-Control-Allow-Origin"), "http://a");
  EXPECT_EQ(header(listed, "Vary"), "Origin");
  HttpReply other;
  add_cors_headers({"http://a", "null"}, {.origin = "null", .requested_headers = {}}, other);
  EXPECT_EQ(header(other, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(header(other, "Vary"), "Origin");
  HttpReply preflight;
  add_preflight_headers({"http://a"}, {.origin = "http://a", .requested_headers = "authorization,x-stainless-os"},
                        preflight);
  EXPECT_EQ(header(preflight, "Access-Control-Allow-Headers"), "authorization,x-stainless-os");
}

}  // namespace
}  // namespace tandem
