// What the front end does when there is too much of something: connections, unfinished requests, silence.
#include <vector>

#include "api/http_fixture.h"

namespace tandem {
namespace {

// The value of a series without labels.
double metric(TestClient& client, const std::string& name) {
  const auto reply = client.call("GET", "/metrics");
  if (!reply) return -1;
  const auto at = reply->body.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(reply->body.substr(at + name.size() + 2));
}

std::string upload_head(std::size_t bytes) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                     kChat, bytes);
}

TEST_F(HttpServerTest, connections_beyond_the_limit_may_ask_for_health_alone) {
  HttpOptions options;
  options.max_connections = 3;
  options.give_way_after = std::chrono::hours(1);
  start(options);
  std::vector<TestClient> kept;
  for (int i = 0; i < 3; ++i) {
    kept.push_back(client());
    ASSERT_EQ(kept.back().call("GET", "/health")->status, 200);
  }
  for (const char* path : {"/health", "/ready", "/metrics"}) {
    const auto reply = client().call("GET", path);
    ASSERT_TRUE(reply) << path;
    EXPECT_EQ(reply->status, 200) << path;
    EXPECT_EQ(reply->header("connection"), "close");
  }
  const auto refused = client().call("POST", kChat, chat_body("hi"));
  expect_error(refused, 503);
  EXPECT_EQ(refused->header("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused->body)["error"]["code"], "overloaded");
  EXPECT_NE(refused->body.find("All 3 connections"), std::string::npos);
  expect_error(client().call("GET", "/v1/models"), 503);

  for (TestClient& old : kept) EXPECT_EQ(old.call("POST", kChat, chat_body("hi"))->status, 200);
  kept.pop_back();
  // Its place is free as soon as the server has seen it go.
  std::optional<TestReply> reply;
  for (int i = 0; i < 500 && (!reply || reply->status != 200); ++i) {
    reply = client().call("POST", kChat, chat_body("hi"));
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(reply->status, 200);
}

TEST_F(HttpServerTest, the_longest_idle_connection_makes_room_and_a_stream_does_not) {
  HttpOptions options;
  options.max_connections = 3;
  options.give_way_after = milliseconds(0);
  start(options);
  TestClient stream = client();
  ASSERT_TRUE(stream.send(http_request("POST", kChat, chat_body("x", R"("stream":true,"ignore_eos":true)"))));
  ASSERT_TRUE(stream.wait_for("data: "));
  TestClient used = client();
  TestClient idle = client();
  ASSERT_EQ(idle.call("GET", "/health")->status, 200);
  ASSERT_EQ(used.call("GET", "/health")->status, 200);
  TestClient late = client();
  EXPECT_EQ(late.call("POST", kChat, chat_body("hi"))->status, 200);
  EXPECT_TRUE(idle.wait_closed());
  EXPECT_EQ(used.call("POST", kChat, chat_body("hi"))->status, 200);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client().call("POST", kChat, chat_body("hi"))->status, 200);
  EXPECT_EQ(engine_->num_running(), 1U) << "the stream goes on";
  TestClient monitor = client();
  EXPECT_GE(metric(monitor, "tandem_http_evicted_connections_total"), 1);
}

TEST_F(HttpServerTest, health_answers_behind_any_number_of_silent_connections) {
  for (const std::uint32_t threads : {1U, 3U}) {
    HttpOptions options;
    options.threads = threads;
    options.max_connections = 4;
    options.give_way_after = std::chrono::hours(1);
    start(options);
    TestClient first = client();
    ASSERT_EQ(first.call("GET", "/health")->status, 200);
    std::vector<TestClient> silent;
    for (std::uint32_t i = 0; i < HttpOptions::kProbeConnections + 40; ++i) {
      silent.push_back(client());
      if (i % 16 != 0) continue;
      const auto reply = client().call("GET", "/health");
      ASSERT_TRUE(reply) << i;
      ASSERT_EQ(reply->status, 200) << i;
    }
    EXPECT_LE(metric(first, "tandem_http_connections"), 5 + HttpOptions::kProbeConnections);
    EXPECT_EQ(first.call("POST", kChat, chat_body("hi"))->status, 200);
    server_.reset();
  }
}

TEST_F(HttpServerTest, unfinished_bodies_have_one_bound_together) {
  HttpOptions options;
  options.max_pending_body_bytes = 64 << 10;
  start(options);
  const std::string part(30 << 10, ' ');
  std::vector<TestClient> slow;
  for (int i = 0; i < 2; ++i) {
    slow.push_back(client());
    ASSERT_TRUE(slow.back().send(upload_head(100 << 10) + part));
  }
  // Wait until both are counted: the next big one is refused, at the latest with its last byte.
  TestClient third = client();
  std::optional<TestReply> refused;
  for (int i = 0; i < 500 && (!refused || refused->status != 503); ++i) {
    third = client();
    refused = third.call("POST", kChat, std::string(40 << 10, ' '));
    std::this_thread::sleep_for(milliseconds(10));
  }
  expect_error(refused, 503);
  EXPECT_EQ(refused->header("retry-after"), "1");
  EXPECT_EQ(refused->header("connection"), "close");
  EXPECT_EQ(Json::parse(refused->body)["error"]["code"], "overloaded");
  EXPECT_NE(refused->body.find("65536 bytes together"), std::string::npos);
  EXPECT_TRUE(third.wait_closed());
  // Short requests have room of their own.
  for (int i = 0; i < 20; ++i) expect_alive();
  EXPECT_EQ(client().call("GET", "/health")->status, 200);
  // A body that grows in chunks meets the same bound.
  TestClient chunked = client();
  ASSERT_TRUE(chunked.send(fmt::format("POST {} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", kChat)));
  for (int i = 0; i < 8; ++i) chunked.send(fmt::format("{:x}\r\n{}\r\n", 8 << 10, std::string(8 << 10, ' ')));
  expect_error(chunked.receive(), 503);
  // What was given up or has been parsed is free again.
  slow.clear();
  const std::string large = chat_body("hi", fmt::format("\"user\":\"{}\"", std::string(50 << 10, 'u')));
  TestClient fourth = client();
  std::optional<TestReply> good;
  for (int i = 0; i < 500 && (!good || good->status == 503); ++i) {
    fourth = client();
    good = fourth.call("POST", kChat, large);
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (int i = 0; i < 10 && good; ++i) {
    EXPECT_NE(good->status, 503) << good->body;
    good = fourth.call("POST", kChat, large);
  }
  EXPECT_TRUE(good);
}

TEST_F(HttpServerTest, a_silent_stream_gets_comment_lines) {
  HttpOptions options;
  options.stream_head_hold = milliseconds(10);
  options.stream_comment_after = milliseconds(300);
  start(options);
  TestClient c = client();
  ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body("!silent", R"("stream":true)"))));
  EXPECT_TRUE(c.wait_for("\"role\":\"assistant\""));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(c.wait_for(": keep-alive\n\n"));
  EXPECT_TRUE(c.buffered().ends_with("\r\ne\r\n: keep-alive\n\n\r\n")) << c.buffered();
  ASSERT_TRUE(c.wait_for(": keep-alive\n\n\r\ne\r\n: keep-alive\n\n\r\n"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(500)) << "no more of them than asked for";
}

TEST_F(HttpServerTest, refused_requests_are_counted_once) {
  start();
  TestClient c = client();
  expect_error(c.call("POST", kChat, "{nonsense"), 400);
  expect_error(c.call("POST", kChat, chat_body("hi", R"("temperature":9)")), 400);
  expect_error(c.call("POST", "/tokenize", "{}"), 400);  // no request for an answer
  EXPECT_EQ(metric(c, "tandem_requests_refused_total"), 2);
  EXPECT_NE(c.call("GET", "/metrics")->body.find("tandem_http_replies_total{status=\"400\"} 3\n"), std::string::npos);
}

TEST_F(HttpServerTest, refuses_a_host_that_has_no_address) {
  start();
  for (const char* host : {"/tmp/socket", "no such host", "256.1.1.1", "[::1"}) {
    HttpOptions options;
    options.host = host;
    const auto server = HttpServer::create(options, *engine_, engine_->registry());
    ASSERT_FALSE(server.ok()) << host;
    EXPECT_NE(message(server.status()).find(fmt::format("cannot listen on \"{}\"", host)), std::string_view::npos);
    EXPECT_NE(message(server.status()).find("write an address"), std::string_view::npos);
  }
}

TEST_F(HttpServerTest, names_each_address_that_it_listens_on) {
  start();
  ASSERT_EQ(server_->addresses().size(), 1U);
  EXPECT_EQ(server_->addresses()[0], fmt::format("127.0.0.1:{}", server_->port()));
}

}  // namespace
}  // namespace tandem
