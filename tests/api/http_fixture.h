// The HTTP front end over the fake engine, on a free port of the loopback.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/http_client.h"
#include "api/http_server.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "support/fake_engine.h"

namespace tandem {

using Json = nlohmann::json;
using std::chrono::milliseconds;

inline constexpr std::string_view kChat = "/v1/chat/completions";

inline std::string chat_body(std::string_view text, std::string_view more = {}) {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}],"seed":1{}{}}})", text, more.empty() ? "" : ",",
                     more);
}

class HttpServerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}, FakeEngineOptions engine_options = {}) {
    options.version = "9.9";
    engine_ = std::make_unique<FakeEngine>(engine_options);
    auto server = HttpServer::create(std::move(options), *engine_, engine_->registry());
    ASSERT_TRUE(server.ok()) << message(server.status());
    server_ = *std::move(server);
    server_->start();
  }
  TestClient client(int receive_buffer = 0) { return TestClient(server_->port(), receive_buffer); }
  // A fresh request still works.
  void expect_alive() {
    TestClient fresh = client();
    const auto reply = fresh.call("POST", kChat, chat_body("hi", R"("max_tokens":1)"));
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
  }
  static void expect_error(const std::optional<TestReply>& reply, int status) {
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, status) << reply->body;
    EXPECT_EQ(reply->header("content-type"), "application/json");
    const Json body = Json::parse(reply->body, nullptr, false);
    ASSERT_TRUE(body.contains("error")) << reply->body;
    for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(body["error"].contains(key)) << key;
  }

  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<HttpServer> server_;  // before the engine
};

}  // namespace tandem
