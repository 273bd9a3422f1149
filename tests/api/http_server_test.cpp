#include "api/http_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/http_fixture.h"

namespace tandem {
namespace {

TEST_F(HttpServerTest, answers_a_chat_and_keeps_the_connection) {
  start();
  TestClient c = client();
  for (int i = 0; i < 3; ++i) {
    const auto reply = c.call("POST", kChat, chat_body("hi"), "X-Request-Id: abc\r\n");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->header("x-request-id"), "abc");
    const Json body = Json::parse(reply->body);
    EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
    EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  }
}

TEST_F(HttpServerTest, a_stream_says_what_the_whole_reply_says) {
  start();
  TestClient c = client();
  const auto whole = c.call("POST", kChat, chat_body("hi", R"("n":2)"));
  const auto stream =
      c.call("POST", kChat, chat_body("hi", R"("n":2,"stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_TRUE(whole && stream);
  EXPECT_EQ(stream->header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(stream->header("cache-control"), "no-cache");
  EXPECT_EQ(stream->header("x-accel-buffering"), "no");
  std::vector<std::string> joined(2);
  Json usage;
  std::size_t begin = 0;
  std::string last;
  while (begin < stream->body.size()) {
    const auto end = stream->body.find("\n\n", begin);
    ASSERT_NE(end, std::string::npos);
    last = stream->body.substr(begin + 6, end - begin - 6);
    begin = end + 2;
    if (last == "[DONE]") break;
    const Json chunk = Json::parse(last);
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) joined[choice["index"]] += choice["delta"].value("content", "");
  }
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(begin, stream->body.size());
  const Json body = Json::parse(whole->body);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(joined[i], body["choices"][i]["message"]["content"].get<std::string>());
  EXPECT_EQ(usage, body["usage"]);
}

TEST_F(HttpServerTest, pipelined_requests_are_answered_in_order) {
  start();
  TestClient c = client();
  const std::string chat = chat_body("hi");
  ASSERT_TRUE(c.send(http_request("GET", "/v1/models") + http_request("DELETE", "/v1/models") +
                     http_request("GET", "/v1/models/fake/model") + http_request("POST", kChat, chat) +
                     http_request("GET", "/health")));
  const auto models = c.receive();
  const auto refused = c.receive();
  const auto model = c.receive();
  const auto reply = c.receive();
  const auto health = c.receive();
  ASSERT_TRUE(models && refused && model && reply && health);
  EXPECT_EQ(Json::parse(models->body)["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(refused->status, 405);
  EXPECT_EQ(refused->header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(Json::parse(model->body)["id"], "fake/model");
  EXPECT_EQ(Json::parse(reply->body)["object"], "chat.completion");
  EXPECT_EQ(health->status, 200);
  EXPECT_EQ(c.call("GET", "/version")->body, R"({"version":"9.9"})");
}

TEST_F(HttpServerTest, simple_routes) {
  start();
  TestClient c = client();
  EXPECT_EQ(c.call("GET", "/ready")->status, 200);
  EXPECT_EQ(c.call("GET", "/readyz")->status, 200);
  const auto metrics = c.call("GET", "/metrics", {}, "X-Forwarded-For: , ,\r\n");
  EXPECT_TRUE(metrics->header("content-type").starts_with("text/plain; version=0.0.4"));
  EXPECT_NE(metrics->body.find("fake_running 0\n"), std::string::npos);
  EXPECT_NE(metrics->body.find("tandem_http_replies_total{status=\"200\"} 2\n"), std::string::npos);
  const auto head = c.call("HEAD", "/v1/models");
  EXPECT_EQ(head->status, 200);
  EXPECT_NE(head->header("content-length"), "0");
  EXPECT_EQ(c.call("OPTIONS", kChat)->status, 204);
  EXPECT_EQ(c.call("POST", "/v1/tokenize", R"({"prompt":"ab"})")->body,
            R"({"count":2,"max_model_len":4096,"tokens":[97,98]})");
  EXPECT_EQ(c.call("POST", "/detokenize", R"({"tokens":[97]})")->body, R"({"prompt":"a","text":"a"})");
  expect_error(c.call("GET", "/v1/models/none"), 404);
  expect_error(c.call("GET", "/nowhere"), 404);
  expect_error(c.call("POST", "/nowhere", "{}"), 404);
  expect_error(c.call("POST", kChat, "{}", "Content-Encoding: gzip\r\n"), 415);
  expect_error(c.call("POST", kChat, "{}"), 400);
  expect_error(c.call("POST", kChat, chat_body("hi", R"("model":"other")")), 404);
  EXPECT_EQ(c.call("GET", "/health")->status, 200);
  engine_->set_alive(false);
  expect_error(c.call("GET", "/health"), 503);
  expect_error(c.call("GET", "/ready"), 503);
  expect_error(c.call("POST", kChat, chat_body("hi")), 503);
}

TEST_F(HttpServerTest, failures_before_the_first_text_are_plain_errors) {
  start();
  TestClient c = client();
  for (const std::string_view stream : {R"("stream":false)", R"("stream":true)"}) {
    for (const int status : {429, 503, 500}) {
      const auto refused = c.call("POST", kChat, chat_body(fmt::format("!refuse={}", status), stream));
      expect_error(refused, status);
      EXPECT_EQ(refused->header("retry-after"), status == 500 ? "" : "1");
      expect_error(c.call("POST", kChat, chat_body(fmt::format("!queued={}", status), stream)), status);
    }
    const auto too_long = c.call("POST", kChat, chat_body(std::string(5000, 'x'), stream));
    expect_error(too_long, 400);
    EXPECT_EQ(Json::parse(too_long->body)["error"]["code"], "context_length_exceeded");
    expect_error(c.call("POST", kChat, chat_body("\xFF\xFE", stream)), 400);
    expect_error(c.call("POST", kChat, chat_body("a\\uD800b", stream)), 400);
  }
  expect_error(c.call("POST", kChat, chat_body("!fail=0")), 503);
  expect_alive();
}

TEST_F(HttpServerTest, a_failure_in_a_stream_is_its_last_event) {
  // Slow enough that the first text is sent before the failure: one that comes earlier is a plain HTTP error, rightly.
  FakeEngineOptions slow;
  slow.step = milliseconds(300);
  start({}, slow);
  TestClient c = client();
  const auto reply = c.call("POST", kChat, chat_body("!fail=2", R"("stream":true)"));
  ASSERT_TRUE(reply) << "the stream ends as chunked coding asks";
  EXPECT_EQ(reply->status, 200);
  const auto at = reply->body.rfind("data: ");
  EXPECT_TRUE(Json::parse(reply->body.substr(at + 6)).contains("error"));
  EXPECT_EQ(reply->body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(reply->body.find("\"stop\""), std::string::npos);
  EXPECT_TRUE(c.wait_closed(milliseconds(2000)));
}

TEST_F(HttpServerTest, one_failing_prompt_ends_the_whole_call) {
  start();
  TestClient c = client();
  expect_error(c.call("POST", "/v1/completions", R"({"prompt":["!silent","!refuse=429"]})"), 429);
  EXPECT_TRUE(engine_->wait_running(0, milliseconds(2000)));
  const auto reply = c.call("POST", "/v1/completions", R"({"prompt":["a","b"],"n":2,"max_tokens":3})");
  ASSERT_TRUE(reply);
  EXPECT_EQ(Json::parse(reply->body)["choices"].size(), 4U);
}

TEST_F(HttpServerTest, keys_guard_the_api_but_not_monitoring) {
  HttpOptions options;
  options.api_keys = {"secret"};
  start(options);
  TestClient c = client();
  for (const std::string_view open : {"/health", "/ready", "/metrics"})
    EXPECT_EQ(c.call("GET", open)->status, 200) << open;
  const auto refused = c.call("GET", "/v1/models");
  expect_error(refused, 401);
  EXPECT_EQ(refused->header("www-authenticate"), "Bearer");
  expect_error(c.call("GET", "/v1/models", {}, "Authorization: Basic secret\r\n"), 401);
  // A refused request's body is not read as the next request.
  expect_error(c.call("POST", kChat, chat_body(std::string(2000, 'x')), "Authorization: Bearer wrong\r\n"), 401);
  EXPECT_EQ(c.call("POST", kChat, chat_body("hi"), "Authorization: bearer  secret\r\n")->status, 200);
  EXPECT_EQ(engine_->requests().back().tenant, "key0");
  EXPECT_EQ(c.call("OPTIONS", kChat)->status, 204);
}

TEST_F(HttpServerTest, placement_is_shown_and_changed_by_administrators) {
  constexpr std::string_view kPath = "/v1/admin/placement";
  HttpOptions options;
  options.api_keys = {"user"};
  options.admin_api_key = "admin";
  start(options);
  TestClient c = client();
  const auto as_admin = [&](std::string_view method, std::string_view body) {
    return c.call(method, kPath, std::string(body), "Authorization: Bearer admin\r\n");
  };
  for (const std::string_view method : {"GET", "POST"}) {
    expect_error(c.call(method, kPath, "{}"), 401);
    expect_error(c.call(method, kPath, "{}", "Authorization: Bearer user\r\n"), 401);
  }
  const auto before = as_admin("GET", {});
  ASSERT_EQ(before->status, 200);
  EXPECT_EQ(
      before->body,
      R"({"placement":"semi","num_units":4,"decode_units":2,"lanes":[)"
      R"({"lane":"prefill","up":true,"epoch":1,"restarts":0},{"lane":"decode","up":true,"epoch":1,"restarts":0}]})");
  const auto after = as_admin("POST", R"({"decode_units":1,"replace":["decode"]})");
  ASSERT_EQ(after->status, 200) << after->body;
  const Json state = Json::parse(after->body);
  EXPECT_EQ(state["decode_units"], 1);
  EXPECT_EQ(state["lanes"][0]["epoch"], 1);
  EXPECT_EQ(state["lanes"][1]["epoch"], 2);
  EXPECT_EQ(as_admin("GET", {})->body, after->body);
  expect_error(as_admin("POST", R"({"decode_units":3})"), 504);
  expect_error(as_admin("DELETE", {}), 405);
}

TEST_F(HttpServerTest, a_bad_placement_names_the_field) {
  start();
  TestClient c = client();
  const std::pair<std::string_view, Json> cases[] = {
      {R"({"decode_units":0})", "decode_units"},
      {R"({"decode_units":4})", "decode_units"},
      {R"({"decode_units":1.5})", "decode_units"},
      {R"({"decode_units":"1"})", "decode_units"},
      {R"({"decode_units":1e12})", "decode_units"},
      {R"({"replace":"decode"})", "replace"},
      {R"({"replace":["both"]})", "replace"},
      {R"({"replace":[1]})", "replace"},
      {R"({"replace":["decode","decode"]})", "replace"},
      {R"({"decode_unit":1})", "decode_unit"},
      {"{}", nullptr},
      {R"({"replace":[]})", nullptr},
      {"[]", nullptr},
  };
  for (const auto& [body, param] : cases) {
    const auto reply = c.call("POST", "/v1/admin/placement", std::string(body));
    expect_error(reply, 400);
    EXPECT_EQ(Json::parse(reply->body)["error"]["param"], param) << body << ": " << reply->body;
  }
}

TEST_F(HttpServerTest, a_long_refused_body_closes_the_connection_and_the_reply_arrives) {
  HttpOptions options;
  options.api_keys = {"secret"};
  options.max_body_bytes = 1 << 20;
  start(options);
  TestClient c = client();
  const auto refused = c.call("POST", kChat, std::string(300000, 'x'));
  expect_error(refused, 401);
  EXPECT_EQ(refused->header("connection"), "close");
  EXPECT_TRUE(c.wait_closed(milliseconds(3000)));
  TestClient d = client();
  expect_error(d.call("POST", kChat, std::string(2 << 20, 'x'), "Authorization: Bearer secret\r\n"), 413);
  EXPECT_TRUE(d.wait_closed(milliseconds(3000)));
}

TEST_F(HttpServerTest, expect_continue_is_answered_or_refused_at_once) {
  HttpOptions options;
  options.api_keys = {"secret"};
  start(options);
  const std::string body = chat_body("hi");
  const std::string head =
      fmt::format("POST {} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n", kChat, body.size());
  TestClient c = client();
  ASSERT_TRUE(c.send(head + "Authorization: Bearer secret\r\n\r\n"));
  ASSERT_TRUE(c.wait_for("HTTP/1.1 100 Continue\r\n\r\n"));
  ASSERT_TRUE(c.send(body));
  EXPECT_EQ(c.receive()->status, 200);
  EXPECT_EQ(c.num_interim(), 1);
  TestClient d = client();
  ASSERT_TRUE(d.send(head + "\r\n"));
  const auto refused = d.receive();
  expect_error(refused, 401);
  EXPECT_EQ(d.num_interim(), 0);
  EXPECT_EQ(refused->header("connection"), "close");
  EXPECT_TRUE(d.wait_closed(milliseconds(3000)));
  TestClient e = client();
  expect_error(e.call("POST", kChat, body, "Authorization: Bearer secret\r\nExpect: miracles\r\n"), 417);
}

TEST_F(HttpServerTest, damaged_requests_get_a_reply_and_an_end) {
  HttpOptions options;
  options.max_header_bytes = 8192;
  start(options);
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"GET / HTTP/1.1\r\n\r\n", 400},
           {"nonsense\r\n\r\n", 400},
           {"\x16\x03\x01", 400},
           {"GET /health HTTP/1.1\r\nHost: h\r\nX: " + std::string(9000, 'x'), 431}}) {
    TestClient c = client();
    ASSERT_TRUE(c.send(bytes));
    expect_error(c.receive(), status);
    EXPECT_TRUE(c.wait_closed(milliseconds(3000)));
  }
  expect_alive();
}

TEST_F(HttpServerTest, http_1_0_gets_a_stream_that_ends_with_the_connection) {
  start();
  TestClient c = client();
  const std::string body = chat_body("hi", R"("stream":true)");
  ASSERT_TRUE(c.send(fmt::format("POST {} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", kChat, body.size(), body)));
  const auto reply = c.receive();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header("transfer-encoding"), "");
  EXPECT_TRUE(reply->body.ends_with("data: [DONE]\n\n"));
}

// A client that goes away, in every stage and in every way, frees its request within a second.
TEST_F(HttpServerTest, a_client_that_leaves_is_cancelled) {
  start();
  for (const std::string_view more : {R"("stream":true,"ignore_eos":true)", R"("ignore_eos":true)"}) {
    for (const std::string_view text : {"long", "!silent"}) {
      const std::size_t before = engine_->num_cancelled();
      TestClient c = client();
      ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body(text, more))));
      ASSERT_TRUE(engine_->wait_running(1, milliseconds(2000)));
      std::this_thread::sleep_for(milliseconds(30));
      c.close();
      EXPECT_TRUE(engine_->wait_running(0, milliseconds(1000))) << text << more;
      EXPECT_EQ(engine_->num_cancelled(), before + 1);
    }
  }
  // Bytes of a next request hide the end of the connection, but not for long.
  TestClient c = client();
  ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body("!silent")) + http_request("GET", "/health")));
  ASSERT_TRUE(engine_->wait_running(1, milliseconds(2000)));
  std::this_thread::sleep_for(milliseconds(30));
  ASSERT_TRUE(c.send(http_request("GET", "/health")));
  c.close();
  EXPECT_TRUE(engine_->wait_running(0, milliseconds(1000)));
  expect_alive();
}

TEST_F(HttpServerTest, a_half_closed_client_gets_its_whole_reply) {
  FakeEngineOptions slow;
  slow.step = milliseconds(20);
  start({}, slow);
  for (const std::string_view more : {R"("stream":true)", R"("stream":false)"}) {
    TestClient c = client();
    ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body("hi", more))));
    c.half_close();
    const auto reply = c.receive();
    ASSERT_TRUE(reply) << more;
    EXPECT_EQ(reply->status, 200);
    EXPECT_NE(reply->body.find("\"stop\""), std::string::npos);
    EXPECT_TRUE(c.wait_closed());
  }
  EXPECT_EQ(engine_->num_cancelled(), 0U);
  // Also when it had asked for more than one thing.
  TestClient c = client();
  ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body("hi")) + http_request("GET", "/health")));
  c.half_close();
  EXPECT_EQ(c.receive()->status, 200);
  EXPECT_EQ(c.receive()->body, R"({"status":"ok"})");
  EXPECT_TRUE(c.wait_closed());
}

TEST_F(HttpServerTest, a_client_that_does_not_read_is_ended) {
  HttpOptions options;
  options.max_stream_backlog_bytes = 64 << 10;
  FakeEngineOptions fast;
  fast.step = std::chrono::microseconds(20);
  fast.context_length = 20000;
  start(options, fast);
  TestClient c = client(2048);
  ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body("long", R"("stream":true,"ignore_eos":true,"n":8)"))));
  ASSERT_TRUE(engine_->wait_running(1, milliseconds(10000)));
  EXPECT_TRUE(engine_->wait_running(0, milliseconds(20000)));
  EXPECT_EQ(engine_->num_cancelled(), 1U);
  expect_alive();
}

TEST_F(HttpServerTest, a_stalled_writer_is_ended_after_the_time_limit) {
  HttpOptions options;
  options.write_timeout = milliseconds(300);
  FakeEngineOptions fast;
  fast.context_length = 20000;
  start(options, fast);
  TestClient c = client(2048);
  // A reply of 1.5 MB that nobody reads: more than both kernels hold.
  ASSERT_TRUE(c.send(
      http_request("POST", "/v1/completions",
                   fmt::format(R"({{"prompt":"{}","echo":true,"max_tokens":1,"n":100}})", std::string(15000, 'a')))));
  ASSERT_TRUE(engine_->wait_running(1, milliseconds(5000)));
  ASSERT_TRUE(engine_->wait_running(0, milliseconds(5000)));
  TestClient monitor = client();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  bool only_the_monitor = false;
  while (!only_the_monitor && std::chrono::steady_clock::now() < end) {
    const auto metrics = monitor.call("GET", "/metrics");
    ASSERT_TRUE(metrics);
    only_the_monitor = metrics->body.find("tandem_http_connections 1\n") != std::string::npos;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(only_the_monitor);
  EXPECT_TRUE(c.wait_closed());
  EXPECT_LT(c.buffered().size(), 1U << 20U);
}

TEST_F(HttpServerTest, silent_connections_are_ended) {
  HttpOptions options;
  options.idle_timeout = options.head_timeout = options.body_timeout = milliseconds(200);
  start(options);
  TestClient idle = client();
  TestClient head = client();
  TestClient body = client();
  ASSERT_TRUE(head.send("GET /hea"));
  ASSERT_TRUE(body.send(fmt::format("POST {} HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc", kChat)));
  expect_error(head.receive(), 408);
  expect_error(body.receive(), 408);
  EXPECT_TRUE(idle.wait_closed(milliseconds(2000)));
}

TEST_F(HttpServerTest, a_stream_opens_after_the_hold_even_without_text) {
  HttpOptions options;
  options.stream_head_hold = milliseconds(100);
  start(options);
  TestClient c = client();
  ASSERT_TRUE(c.send(http_request("POST", kChat, chat_body("!silent", R"("stream":true)"))));
  EXPECT_TRUE(c.wait_for("\"role\":\"assistant\""));
}

TEST_F(HttpServerTest, draining_finishes_what_runs_and_refuses_the_rest) {
  FakeEngineOptions slow;
  slow.step = milliseconds(20);
  start({}, slow);
  TestClient running = client();
  TestClient kept = client();
  ASSERT_EQ(kept.call("GET", "/health")->status, 200);
  ASSERT_TRUE(running.send(http_request("POST", kChat, chat_body("hi", R"("stream":true)"))));
  ASSERT_TRUE(running.wait_for("data: "));
  server_->stop_accepting();
  const auto health = kept.call("GET", "/health");
  expect_error(health, 503);
  EXPECT_EQ(health->header("connection"), "close");
  const auto reply = running.receive();
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->body.ends_with("data: [DONE]\n\n"));
  TestClient late(server_->port());
  EXPECT_FALSE(late.call("GET", "/health"));
}

TEST_F(HttpServerTest, stopping_tells_every_client) {
  start();
  TestClient stream = client();
  TestClient whole = client();
  TestClient idle = client();
  ASSERT_TRUE(stream.send(http_request("POST", kChat, chat_body("x", R"("stream":true,"ignore_eos":true)"))));
  ASSERT_TRUE(whole.send(http_request("POST", kChat, chat_body("!silent"))));
  ASSERT_TRUE(stream.wait_for("data: "));
  ASSERT_TRUE(engine_->wait_running(2, milliseconds(2000)));
  std::thread stopper([this] { server_->stop(); });
  const auto events = stream.receive();
  const auto error = whole.receive();
  EXPECT_TRUE(idle.wait_closed());
  stream.close();
  whole.close();
  stopper.join();
  expect_error(error, 503);
  ASSERT_TRUE(events);
  EXPECT_NE(events->body.find("data: {\"error\""), std::string::npos);
  EXPECT_TRUE(engine_->wait_running(0, milliseconds(2000)));
}

TEST_F(HttpServerTest, cors_and_request_ids) {
  HttpOptions options;
  options.cors_allow_origins = {"http://app.example"};
  start(options);
  TestClient c = client();
  const auto preflight = c.call("OPTIONS", kChat, {},
                                "Origin: http://app.example\r\nAccess-Control-Request-Method: POST\r\n"
                                "Access-Control-Request-Headers: authorization,x-stainless-os\r\n");
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->header("access-control-allow-origin"), "http://app.example");
  EXPECT_EQ(preflight->header("access-control-allow-headers"), "authorization,x-stainless-os");
  const auto reply =
      c.call("GET", "/health", {}, "Origin: http://app.example\r\nX-Request-Id: " + std::string(500, 'a') + "\r\n");
  EXPECT_NE(reply->header("access-control-expose-headers").find("X-Request-Id"), std::string::npos);
  EXPECT_EQ(reply->header("vary"), "Origin");
  EXPECT_EQ(reply->header("access-control-allow-credentials"), "");
  EXPECT_TRUE(reply->header("x-request-id").starts_with("req-"));
  EXPECT_EQ(c.call("GET", "/health", {}, "Origin: null\r\n")->header("access-control-allow-origin"), "");
}

TEST_F(HttpServerTest, many_clients_on_several_threads) {
  HttpOptions options;
  options.threads = 3;
  start(options);
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t, &good] {
      for (int i = 0; i < 12; ++i) {
        TestClient c = client();
        if ((t + i) % 4 == 0) {  // leaves early
          c.send(http_request("POST", kChat, chat_body("x", R"("stream":true,"ignore_eos":true)")));
          c.wait_for("data: ");
          ++good;
          continue;
        }
        const auto reply = c.call(
            "POST", kChat, chat_body(std::string(i % 3 == 0 ? 3000 : 3, 'x'), i % 2 == 0 ? R"("stream":true)" : ""));
        if (reply && reply->status == 200 && reply->body.find("\"stop\"") != std::string::npos) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 96);
  EXPECT_TRUE(engine_->wait_running(0, milliseconds(2000)));
}

TEST_F(HttpServerTest, long_bodies_are_parsed_off_the_loop) {
  start();
  TestClient c = client();
  std::string text(4 << 20, 'x');
  const auto begin = std::chrono::steady_clock::now();
  const auto refused = c.call("POST", "/v1/completions", R"({"prompt":")" + text + R"(","max_tokens":1})");
  expect_error(refused, 400);
  // A tenth of a second on an idle machine; the limit leaves room for sanitizers and loaded ones.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  const auto tokens = c.call("POST", "/tokenize", R"({"prompt":")" + text.substr(0, 100000) + R"("})");
  ASSERT_TRUE(tokens);
  EXPECT_EQ(Json::parse(tokens->body)["count"], 100000);
}

TEST_F(HttpServerTest, refuses_an_address_that_is_taken) {
  start();
  HttpOptions options;
  options.port = server_->port();
  const auto second = HttpServer::create(options, *engine_, engine_->registry());
  ASSERT_FALSE(second.ok());
  EXPECT_NE(message(second.status()).find(std::to_string(options.port)), std::string_view::npos);
}

}  // namespace
}  // namespace tandem
