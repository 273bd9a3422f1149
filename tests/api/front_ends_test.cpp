// One request, two front ends: what HTTP refuses gRPC refuses too, each naming the field as its own clients know it,
// and the last value that one accepts is accepted by both.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/grpc_server.h"
#include "api/http_client.h"
#include "api/http_server.h"
#include "api/request_check.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "support/fake_engine.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem {
namespace {

using Json = nlohmann::json;
using Change = std::function<void(v1::GenerateRequest&)>;

constexpr std::string_view kTemperature = "sampling.temperature";

std::string repeated(std::string_view item, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += (i > 0 ? "," : "") + std::string(item);
  return out;
}

std::string biases(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += fmt::format("{}\"{}\":1", i > 0 ? "," : "", i);
  return "{" + out + "}";
}

class FrontEnds : public testing::Test {
 protected:
  FrontEnds() {
    HttpOptions http;
    http.api_keys = {ApiKey{"low", 3}, ApiKey{"free"}};
    GrpcOptions grpc;
    grpc.api_keys = http.api_keys;
    http_ = *HttpServer::create(http, engine_, metrics_);
    http_->start();
    grpc_ = *GrpcServer::create(grpc, engine_);
    channel_ = grpc::CreateChannel(fmt::format("127.0.0.1:{}", grpc_->port()), grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
  }

  std::optional<TestReply> post(std::string_view path, const std::string& body, std::string_view key = "free") {
    TestClient client(http_->port());
    return client.call("POST", path, body, fmt::format("Authorization: Bearer {}\r\n", key));
  }
  static std::string chat(const std::string& fields) {
    return R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) + "}";
  }
  // Without `change` a short chat.
  grpc::Status generate(const Change& change, std::string_view key = "free") {
    v1::GenerateRequest request;
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("hi");
    change(request);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("authorization", "Bearer " + std::string(key));
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    const auto lowered = context.GetServerInitialMetadata().find("x-tandem-priority");
    lowered_ = lowered == context.GetServerInitialMetadata().end()
                   ? ""
                   : std::string(lowered->second.data(), lowered->second.size());
    return status;
  }

  MetricRegistry metrics_;
  FakeEngine engine_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::string lowered_;  // what the last generate() was told
};

struct Case {
  std::string json;  // fields of a chat, or a whole body of a completion
  Change change;
  std::string param;  // empty: accepted
  std::string field;
};

void set_bias(v1::GenerateRequest& request, std::int32_t token, float bias) {
  (*request.mutable_sampling()->mutable_logit_bias())[token] = bias;
}

std::vector<Case> sampling_cases() {
  const auto sampling = [](auto set) { return [set](v1::GenerateRequest& r) { set(*r.mutable_sampling()); }; };
  std::vector<Case> cases;
  // A bad value, then the ends of what is accepted.
  const auto number = [&](const std::string& name, void (v1::SamplingParams::*set)(float), float low, float high) {
    for (const float value : {std::nextafter(low, -1000.0F), low, high, std::nextafter(high, 1000.0F)}) {
      const bool good = value == low || value == high;
      cases.push_back({fmt::format("\"{}\":{:.9g}", name, value), sampling([=](auto& s) { (s.*set)(value); }),
                       good ? "" : name, "sampling." + name});
    }
  };
  number("temperature", &v1::SamplingParams::set_temperature, 0, 2);
  number("top_p", &v1::SamplingParams::set_top_p, 0, 1);
  number("min_p", &v1::SamplingParams::set_min_p, 0, 1);
  number("presence_penalty", &v1::SamplingParams::set_presence_penalty, -2, 2);
  number("frequency_penalty", &v1::SamplingParams::set_frequency_penalty, -2, 2);
  number("repetition_penalty", &v1::SamplingParams::set_repetition_penalty, 0.01F, 10);
  for (const std::int32_t top_k : {-2, -1, 0, 2147483647}) {
    cases.push_back({fmt::format("\"top_k\":{}", top_k), sampling([=](auto& s) { s.set_top_k(top_k); }),
                     top_k < -1 ? "top_k" : "", "sampling.top_k"});
  }
  const TokenId vocab = FakeTokenizer().vocab_size();
  const auto bias = [&](TokenId token, float amount, bool good) {
    cases.push_back({fmt::format(R"("logit_bias":{{"{}":{}}})", token, amount),
                     [=](auto& r) { set_bias(r, token, amount); }, good ? "" : "logit_bias", "sampling.logit_bias"});
  };
  bias(-1, 1, false);
  bias(vocab, 1, false);
  bias(vocab - 1, 100, true);
  bias(0, -100, true);
  bias(0, 100.5F, false);
  bias(0, -100.5F, false);
  return cases;
}

std::vector<Case> stopping_cases() {
  const std::string long_stop(limits::kStopBytes, 's');
  const TokenId vocab = FakeTokenizer().vocab_size();
  const auto stops = [](std::size_t count, const std::string& text) {
    return [=](v1::GenerateRequest& r) {
      for (std::size_t i = 0; i < count; ++i) r.add_stop(text);
    };
  };
  const auto stop_ids = [](std::size_t count, TokenId id) {
    return [=](v1::GenerateRequest& r) {
      for (std::size_t i = 0; i < count; ++i) r.add_stop_token_ids(id);
    };
  };
  return {
      {"\"max_tokens\":0", [](auto& r) { r.set_max_tokens(0); }, "max_tokens", "max_tokens"},
      {"\"max_completion_tokens\":0", [](auto& r) { r.set_max_tokens(0); }, "max_completion_tokens", "max_tokens"},
      {"\"max_tokens\":1", [](auto& r) { r.set_max_tokens(1); }, "", ""},
      {"\"max_tokens\":4294967295", [](auto& r) { r.set_max_tokens(4294967295U); }, "", ""},
      {"\"max_tokens\":2,\"min_tokens\":3", [](auto& r) { r.set_max_tokens(2), r.set_min_tokens(3); }, "min_tokens",
       "min_tokens"},
      {"\"max_tokens\":3,\"min_tokens\":3", [](auto& r) { r.set_max_tokens(3), r.set_min_tokens(3); }, "", ""},
      {"\"stop\":[\"\"]", stops(1, ""), "stop", "stop"},
      {fmt::format("\"stop\":[{}]", repeated("\"zz\"", limits::kStops)), stops(limits::kStops, "zz"), "", ""},
      {fmt::format("\"stop\":[{}]", repeated("\"zz\"", limits::kStops + 1)), stops(limits::kStops + 1, "zz"), "stop",
       "stop"},
      {fmt::format("\"stop\":\"{}\"", long_stop), stops(1, long_stop), "", ""},
      {fmt::format("\"stop\":\"{}s\"", long_stop), stops(1, long_stop + "s"), "stop", "stop"},
      {"\"stop_token_ids\":[-1]", stop_ids(1, -1), "stop_token_ids", "stop_token_ids"},
      {fmt::format("\"stop_token_ids\":[{}]", vocab - 1), stop_ids(1, vocab - 1), "", ""},
      {fmt::format("\"stop_token_ids\":[{}]", vocab), stop_ids(1, vocab), "stop_token_ids", "stop_token_ids"},
      {fmt::format("\"stop_token_ids\":[{}]", repeated("1", limits::kStopTokens)), stop_ids(limits::kStopTokens, 1), "",
       ""},
      {fmt::format("\"stop_token_ids\":[{}]", repeated("1", limits::kStopTokens + 1)),
       stop_ids(limits::kStopTokens + 1, 1), "stop_token_ids", "stop_token_ids"},
  };
}

std::vector<Case> other_cases() {
  const std::string salt(limits::kCacheSaltBytes, 'c');
  return {
      {"", [](auto&) {}, "", ""},
      {"\"n\":0", [](auto& r) { r.set_num_choices(0); }, "n", "num_choices"},
      {"\"n\":128,\"max_tokens\":1", [](auto& r) { r.set_num_choices(128), r.set_max_tokens(1); }, "", ""},
      {"\"n\":129", [](auto& r) { r.set_num_choices(129); }, "n", "num_choices"},
      {"\"logprobs\":true,\"top_logprobs\":20", [](auto& r) { r.set_top_logprobs(20); }, "", ""},
      {"\"logprobs\":true,\"top_logprobs\":21", [](auto& r) { r.set_top_logprobs(21); }, "top_logprobs",
       "top_logprobs"},
      {"\"priority\":-2147483648", [](auto& r) { r.set_priority(-2147483647 - 1); }, "", ""},
      {"\"priority\":2147483647", [](auto& r) { r.set_priority(2147483647); }, "", ""},
      {fmt::format("\"cache_salt\":\"{}\"", salt), [=](auto& r) { r.set_cache_salt(salt); }, "", ""},
      {fmt::format("\"cache_salt\":\"{}c\"", salt), [=](auto& r) { r.set_cache_salt(salt + "c"); }, "cache_salt",
       "cache_salt"},
      {R"("messages":[])", [](auto& r) { r.mutable_chat()->clear_messages(); }, "messages", "chat.messages"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"wizard","content":"b"}])",
       [](auto& r) {
         v1::ChatMessage& added = *r.mutable_chat()->add_messages();
         added.set_role("wizard");
         added.set_content("b");
       },
       "messages[1].role", "chat.messages[1].role"},
      {R"("messages":[{"role":"function","name":"f","content":"b"}])",
       [](auto& r) {
         v1::ChatMessage& message = *r.mutable_chat()->mutable_messages(0);
         message.set_role("function");
         message.set_name("f");
       },
       "", ""},
  };
}

TEST_F(FrontEnds, both_accept_and_refuse_the_same_values) {
  std::vector<Case> cases = sampling_cases();
  for (auto&& more : {stopping_cases(), other_cases()}) cases.insert(cases.end(), more.begin(), more.end());
  // HTTP counts 1024 biases in an object, gRPC in a map.
  for (const int count : {1024, 1025}) {
    const auto change = [=](v1::GenerateRequest& r) {
      for (int i = 0; i < count; ++i) set_bias(r, i, 1);
    };
    // The fake tokenizer has fewer tokens than the limit has entries: only the refusal can be compared.
    if (count > 1024) cases.push_back({"\"logit_bias\":" + biases(count), change, "logit_bias", "sampling.logit_bias"});
  }
  for (const Case& each : cases) {
    const auto reply = post("/v1/chat/completions", chat(each.json));
    ASSERT_TRUE(reply) << each.json;
    const grpc::Status status = generate(each.change);
    if (each.param.empty()) {
      EXPECT_EQ(reply->status, 200) << each.json << reply->body;
      EXPECT_TRUE(status.ok()) << each.json << status.error_message();
      continue;
    }
    EXPECT_EQ(reply->status, 400) << each.json;
    EXPECT_EQ(Json::parse(reply->body)["error"]["param"], each.param) << reply->body;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << each.json;
    EXPECT_NE(status.error_message().find("'" + each.field + "'"), std::string::npos) << status.error_message();
  }
}

TEST_F(FrontEnds, both_check_prompts_that_are_no_chat) {
  const TokenId vocab = FakeTokenizer().vocab_size();
  const std::vector<Case> cases = {
      {R"({"prompt":""})", [](auto& r) { r.set_text(""); }, "prompt", "text"},
      {R"({"prompt":"x"})", [](auto& r) { r.set_text("x"); }, "", ""},
      {R"({"prompt":[]})", [](auto& r) { r.mutable_token_ids(); }, "prompt", "token_ids.ids"},
      {R"({"prompt":[-1]})", [](auto& r) { r.mutable_token_ids()->add_ids(-1); }, "prompt", "token_ids.ids"},
      {fmt::format(R"({{"prompt":[{}]}})", vocab - 1), [=](auto& r) { r.mutable_token_ids()->add_ids(vocab - 1); }, "",
       ""},
      {fmt::format(R"({{"prompt":[{}]}})", vocab), [=](auto& r) { r.mutable_token_ids()->add_ids(vocab); }, "prompt",
       "token_ids.ids"},
      {R"({"prompt":"x","logprobs":21})", [](auto& r) { r.set_text("x"), r.set_top_logprobs(21); }, "logprobs",
       "top_logprobs"},
      {"{}", [](auto& r) { r.clear_prompt(); }, "prompt", "prompt"},
  };
  for (const Case& each : cases) {
    const auto reply = post("/v1/completions", each.json);
    ASSERT_TRUE(reply) << each.json;
    const grpc::Status status = generate(each.change);
    EXPECT_EQ(reply->status, each.param.empty() ? 200 : 400) << each.json << reply->body;
    EXPECT_EQ(status.error_code(), each.param.empty() ? grpc::StatusCode::OK : grpc::StatusCode::INVALID_ARGUMENT)
        << each.json << status.error_message();
    if (each.param.empty()) continue;
    EXPECT_EQ(Json::parse(reply->body)["error"]["param"], each.param) << reply->body;
    EXPECT_NE(status.error_message().find("'" + each.field + "'"), std::string::npos) << status.error_message();
  }
}

TEST_F(FrontEnds, numbers_that_are_none_are_refused) {
  for (const float value : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    const grpc::Status status = generate([=](auto& r) { r.mutable_sampling()->set_temperature(value); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << value;
    EXPECT_NE(status.error_message().find(kTemperature), std::string::npos) << status.error_message();
  }
}

TEST_F(FrontEnds, bytes_that_are_no_message_are_the_clients_fault) {
  grpc::GenericStub stub(channel_);
  const auto call = [&](const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("authorization", "Bearer free");
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto reader = stub.PrepareUnaryCall(&context, method, request, &queue);
    reader->StartCall();
    reader->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  };
  for (const char* method : {"/tandem.v1.Inference/Generate", "/tandem.v1.Inference/GetModelInfo",
                             "/tandem.v1.Admin/GetPlacement", "/tandem.v1.Admin/SetPlacement"}) {
    // A length beyond the end; a wire type that does not exist.
    for (const std::string& bytes : {std::string("\x0A\x7F"), std::string("\x0F")}) {
      const grpc::Status status = call(method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method << status.error_message();
      EXPECT_NE(status.error_message().find("tandem.v1."), std::string::npos) << status.error_message();
    }
  }
  // Field 3, `text`, with ill-formed UTF-8.
  EXPECT_EQ(call("/tandem.v1.Inference/Generate", "\x1A\x02\xC3\x28").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(FrontEnds, a_priority_above_the_keys_bound_is_lowered_and_said) {
  struct Expected {
    std::string key;
    std::int32_t asked;
    std::int32_t got;
    std::string said;
  };
  for (const Expected& each : {Expected{"low", 9, 3, "3"}, Expected{"low", 3, 3, ""}, Expected{"low", -5, -5, ""},
                               Expected{"free", 9, 9, ""}}) {
    for (const char* stream : {"false", "true"}) {
      const auto reply = post("/v1/chat/completions",
                              chat(fmt::format("\"priority\":{},\"stream\":{}", each.asked, stream)), each.key);
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->status, 200) << reply->body;
      EXPECT_EQ(reply->header("x-tandem-priority"), each.said);
      EXPECT_EQ(engine_.requests().back().priority, each.got);
    }
    const std::string tenant = engine_.requests().back().tenant;
    ASSERT_TRUE(generate([&](auto& r) { r.set_priority(each.asked); }, each.key).ok());
    EXPECT_EQ(lowered_, each.said);
    EXPECT_EQ(engine_.requests().back().priority, each.got);
    EXPECT_EQ(engine_.requests().back().tenant, tenant) << "one key is one tenant at both doors";
    EXPECT_FALSE(tenant.empty());
  }
}

TEST_F(FrontEnds, targets_reach_the_engine_from_both) {
  TestClient client(http_->port());
  const auto ask = [&](std::string_view targets) {
    return client.call("POST", "/v1/chat/completions", chat(""),
                       "Authorization: Bearer free\r\n" + std::string(targets));
  };
  ASSERT_EQ(ask("x-slo-ttft-ms: 250\r\nx-slo-tpot-ms: 86400000\r\n")->status, 200);
  EXPECT_EQ(engine_.requests().back().slo.ttft_ms, 250U);
  EXPECT_EQ(engine_.requests().back().slo.tpot_ms, 86'400'000U);
  const auto refused = ask("x-slo-tpot-ms: 86400001\r\n");
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(Json::parse(refused->body)["error"]["param"], "x-slo-tpot-ms");
  ASSERT_TRUE(generate([](auto& r) { r.set_ttft_ms(1), r.set_tpot_ms(86'400'000); }).ok());
  EXPECT_EQ(engine_.requests().back().slo.tpot_ms, 86'400'000U);
  for (const std::uint32_t bad : {0U, 86'400'001U}) {
    EXPECT_EQ(generate([=](auto& r) { r.set_tpot_ms(bad); }).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(generate([=](auto& r) { r.set_ttft_ms(bad); }).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace tandem
