#include "api/openai_response.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "api/json_text.h"
#include "api/openai_error.h"
#include "api/request_error.h"
#include "api/request_id.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "support/fake_engine.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

const ModelInfo& model() {
  static const ModelInfo info{.id = "org/\"m\"", .root = "", .context_length = 8, .created = 7};
  return info;
}
const FakeTokenizer& tokenizer() {
  static const FakeTokenizer instance;
  return instance;
}

ApiCall call(ApiKind kind, bool stream, std::uint32_t n = 1, std::optional<std::uint32_t> top = {}) {
  ApiCall result{.kind = kind,
                 .stream = stream,
                 .include_usage = stream,
                 .num_choices = n,
                 .requests = {},
                 .names = {},
                 .lowered_priority = {}};
  Request request;
  request.prompt = std::string("pr\xC3\xB6mpt");
  request.num_choices = n;
  request.top_logprobs = top;
  result.requests.push_back(request);
  return result;
}

TextEvent text(std::uint32_t choice, std::string piece, std::vector<TokenInfo> tokens = {}) {
  return {.choice = choice, .text = std::move(piece), .tokens = std::move(tokens)};
}

TokenInfo token(std::string bytes, float logprob) {
  return {.id = 1, .bytes = std::move(bytes), .logprob = logprob, .top = {}};
}

std::vector<Json> events(const std::string& sse, bool* has_end = nullptr) {
  std::vector<Json> out;
  std::size_t begin = 0;
  while (begin < sse.size()) {
    const auto end = sse.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos) << "an event ends with an empty line";
    if (end == std::string::npos) break;
    const std::string event = sse.substr(begin, end - begin);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_EQ(event.find('\n'), std::string::npos) << event;
    const bool is_end = event == "data: [DONE]";
    if (is_end && has_end != nullptr) *has_end = true;
    if (!is_end) out.push_back(Json::parse(event.substr(6)));
    begin = end + 2;
  }
  return out;
}

TEST(JsonText, escapes_and_repairs) {
  std::string out;
  append_json_string(out, "a\"\\\n\r\t\x01\x7F\xC3\xA9\xF0\x9F\xAB\xA0\xFF\xE9\xBE z\xED\xA0\x80\xC0\xAF");
  EXPECT_EQ(out,
            "\"a\\\"\\\\\\n\\r\\t\\u0001\x7F\xC3\xA9\xF0\x9F\xAB\xA0\xEF\xBF\xBD\xEF\xBF\xBD "
            "z\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_NO_THROW(Json::parse(out).dump());
}

TEST(JsonText, any_bytes_give_json_that_a_strict_reader_takes) {
  std::uint32_t state = 12345;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525U + 1013904223U;
      bytes.push_back(static_cast<char>(state >> 24U));
    }
    std::string out;
    append_json_string(out, bytes);
    EXPECT_TRUE(Json::accept(out));
    std::string repaired;
    append_repaired_utf8(repaired, bytes);
    EXPECT_EQ(Json::parse(out).get<std::string>(), repaired);
  }
}

TEST(JsonText, log_probabilities_stay_numbers) {
  const auto written = [](float value) {
    std::string out;
    append_json_logprob(out, value);
    return out;
  };
  EXPECT_EQ(written(-0.5F), "-0.5");
  EXPECT_EQ(written(0.0F), "0.0");
  EXPECT_EQ(written(-0.0F), "0.0");
  EXPECT_EQ(written(1.0F), "0.0");
  EXPECT_EQ(written(-2.0F), "-2.0");
  EXPECT_EQ(written(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(written(std::nanf("")), "-9999.0");
}

TEST(ApiReply, streams_role_content_finish_usage_and_end) {
  ApiReply reply(call(ApiKind::kChat, true, 2), model(), tokenizer());
  EXPECT_FALSE(reply.started());
  reply.on_event(0, PromptEvent{.token_ids = {1, 2}});
  EXPECT_FALSE(reply.started()) << "an accepted prompt may still fail with an HTTP status";
  reply.on_event(0, text(1, "b"));
  EXPECT_TRUE(reply.started());
  reply.on_event(0, text(0, "a\n"));
  reply.on_event(
      0, FinishEvent{.choice = 1, .reason = FinishReason::kLength, .matched_stop = {}, .matched_stop_token = {}});
  reply.on_event(
      0, FinishEvent{.choice = 0, .reason = FinishReason::kStop, .matched_stop = "x", .matched_stop_token = {}});
  reply.on_event(0, DoneEvent{.status = absl::OkStatus(),
                              .usage = {.prompt_tokens = 5, .completion_tokens = 3, .cached_tokens = 2}});
  EXPECT_TRUE(reply.done());
  bool ended = false;
  const auto chunks = events(reply.take_events(), &ended);
  EXPECT_TRUE(ended);
  ASSERT_EQ(chunks.size(), 7U);
  EXPECT_EQ(chunks[0]["choices"][0]["index"], 1);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(chunks[1]["choices"][0]["delta"], Json::parse(R"({"content":"b"})"));
  EXPECT_EQ(chunks[3]["choices"][0]["delta"]["content"], "a\n");
  EXPECT_EQ(chunks[4]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chunks[5]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(chunks[5]["choices"][0]["matched_stop"], "x");
  EXPECT_EQ(chunks[6]["choices"], Json::array());
  EXPECT_EQ(chunks[6]["usage"]["total_tokens"], 8);
  EXPECT_EQ(chunks[6]["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(chunks[i]["usage"].is_null());
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    EXPECT_EQ(chunks[i]["model"], "org/\"m\"");
    EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
  }
}

TEST(ApiReply, logprobs_of_silent_tokens_ride_on_the_next_chunk) {
  ApiReply reply(call(ApiKind::kChat, true, 1, 1), model(), tokenizer());
  reply.on_event(0, text(0, "", {token("\xE9\xBE", -1)}));
  reply.on_event(0, text(0, "\xE9\xBE\x9C", {token("\x9C", -2)}));
  reply.on_event(0, text(0, "", {token("<end>", -3)}));
  reply.on_event(0, FinishEvent{});
  const auto chunks = events(reply.take_events());
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_TRUE(chunks[0]["choices"][0]["logprobs"].is_null());
  const Json& content = chunks[1]["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0]["bytes"], Json::parse("[233,190]"));
  EXPECT_EQ(content[1]["logprob"], -2.0);
  EXPECT_EQ(content[1]["top_logprobs"], Json::array());
  EXPECT_EQ(chunks[2]["choices"][0]["logprobs"]["content"].size(), 1U);
  EXPECT_EQ(chunks[2]["choices"][0]["finish_reason"], "stop");
}

TEST(ApiReply, legacy_logprobs_count_offsets_in_characters) {
  ApiCall api_call = call(ApiKind::kCompletion, false, 1, 1);
  api_call.requests[0].echo = true;
  ApiReply reply(api_call, model(), tokenizer());
  reply.on_event(0, PromptEvent{.token_ids = {'p', 'r'}});
  reply.on_event(0, PromptScoresEvent{.scores = {token("r\xC3\xB6mpt", -1)}, .top1 = {}, .last_logits = {}});
  TokenInfo with_top = token("\xC3\xA9 x", -0.5F);
  with_top.top = {{.id = 2, .bytes = "y", .logprob = -0.25F}};
  reply.on_event(0, text(0, "\xC3\xA9 x", {with_top}));
  reply.on_event(0, text(0, "z", {token("z", -4)}));
  reply.on_event(0, FinishEvent{});
  reply.on_event(0, DoneEvent{});
  ASSERT_TRUE(reply.done());
  const Json body = Json::parse(reply.body());
  EXPECT_EQ(body["object"], "text_completion");
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "pr\xC3\xB6mpt\xC3\xA9 xz");
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::parse("[0,1,6,9]"));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json::parse("[null,-1.0,-0.5,-4.0]"));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], nullptr);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][2], Json::parse("{\"y\":-0.25,\"\xC3\xA9 x\":-0.5}"));
}

TEST(ApiReply, each_alternative_of_legacy_logprobs_keeps_a_key_of_its_own) {
  ApiReply reply(call(ApiKind::kCompletion, false, 1, 5), model(), tokenizer());
  TokenInfo chosen{.id = 10, .bytes = "\xE9\xBE", .logprob = -1, .top = {}};
  chosen.top = {{.id = 7, .bytes = "\xE9", .logprob = -0.5F},  {.id = 10, .bytes = "\xE9\xBE", .logprob = -1},
                {.id = 8, .bytes = "\xF0\x9F", .logprob = -2}, {.id = 20, .bytes = "x", .logprob = -3},
                {.id = 21, .bytes = "x", .logprob = -4},       {.id = 22, .bytes = "x", .logprob = -5}};
  TokenInfo twin{.id = 30, .bytes = "y", .logprob = -3, .top = {{.id = 31, .bytes = "y", .logprob = -1}}};
  reply.on_event(0, text(0, "\uFFFDy", {chosen, twin}));
  reply.on_event(0, FinishEvent{});
  reply.on_event(0, DoneEvent{});
  const Json logprobs = Json::parse(reply.body())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["bytes:\\xe9\\xbe","y"])"));
  EXPECT_EQ(logprobs["top_logprobs"][0],
            Json::parse(R"({"bytes:\\xe9":-0.5,"bytes:\\xe9\\xbe":-1.0,"bytes:\\xf0\\x9f":-2.0,"x":-3.0,)"
                        R"("bytes:\\x78":-4.0,"token_id:22":-5.0})"));
  EXPECT_EQ(logprobs["top_logprobs"][1], Json::parse(R"({"bytes:\\x79":-1.0,"y":-3.0})"));
}

TEST(ApiReply, whole_reply_has_every_choice_in_order) {
  ApiCall two = call(ApiKind::kCompletion, false, 2);
  two.requests.push_back(two.requests[0]);
  ApiReply reply(two, model(), tokenizer());
  for (const std::size_t prompt : {1U, 0U}) {
    for (const std::uint32_t choice : {1U, 0U}) {
      reply.on_event(prompt, text(choice, std::to_string(prompt * 2 + choice)));
      FinishEvent finish;
      finish.choice = choice;
      reply.on_event(prompt, finish);
    }
    EXPECT_FALSE(reply.done());
    reply.on_event(prompt, DoneEvent{.status = absl::OkStatus(),
                                     .usage = {.prompt_tokens = 1, .completion_tokens = 2, .cached_tokens = 0}});
  }
  ASSERT_TRUE(reply.done());
  const Json body = Json::parse(reply.body());
  ASSERT_EQ(body["choices"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], std::to_string(i));
  }
  EXPECT_EQ(body["usage"]["total_tokens"], 6);
}

TEST(ApiReply, a_failure_is_not_dressed_up_as_an_end) {
  ApiReply reply(call(ApiKind::kChat, true), model(), tokenizer());
  reply.on_event(0, text(0, "a"));
  FinishEvent cancelled;
  cancelled.reason = FinishReason::kCancelled;
  reply.on_event(0, cancelled);
  reply.on_event(0, DoneEvent{.status = absl::UnavailableError("the worker was lost"), .usage = {}});
  EXPECT_FALSE(reply.done());
  const auto chunks = events(reply.take_events() + reply.error_event());
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[2]["error"]["message"], "the worker was lost");
  EXPECT_EQ(chunks[2]["error"]["code"], "service_unavailable");
}

TEST(ApiReply, an_engine_that_breaks_its_contract_is_a_500) {
  ApiReply early(call(ApiKind::kChat, false), model(), tokenizer());
  early.on_event(0, DoneEvent{});
  EXPECT_EQ(early.status().code(), absl::StatusCode::kInternal);
  ApiReply wrong(call(ApiKind::kChat, false), model(), tokenizer());
  wrong.on_event(0, text(9, "x"));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInternal);
}

TEST(ErrorJson, has_all_four_keys) {
  const Json error = Json::parse(error_json(400, request_error("bad \"x\"\xFF", "messages[0]", "c")))["error"];
  EXPECT_EQ(error["message"], "bad \"x\"\xEF\xBF\xBD");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "messages[0]");
  EXPECT_EQ(error["code"], "c");
  const Json bare = Json::parse(error_json(500, absl::InternalError("x")))["error"];
  EXPECT_TRUE(bare["param"].is_null());
  EXPECT_EQ(bare["code"], "internal_error");
}

TEST(RandomHex, is_new_each_time) { EXPECT_NE(random_hex128(), random_hex128()); }

}  // namespace
}  // namespace tandem
