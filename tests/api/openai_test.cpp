#include "api/openai.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/http_routes.h"
#include "api/request_check.h"
#include "api/token_calls.h"
#include "support/fake_engine.h"

namespace tandem {
namespace {

class OpenAiRequest : public testing::Test {
 protected:
  CallContext context() const {
    return {.model = model_,
            .tokenizer = tokenizer_,
            .request_id = "r1",
            .caller = {.tenant = "t0", .max_priority = {}},
            .slo = {.ttft_ms = 100, .tpot_ms = {}}};
  }
  absl::StatusOr<ApiCall> chat(const std::string& fields) const {
    return checked(parse_chat_call(
        R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) + "}", context()));
  }
  absl::StatusOr<ApiCall> messages(const std::string& messages) const {
    return checked(parse_chat_call(R"({"messages":)" + messages + "}", context()));
  }
  absl::StatusOr<ApiCall> completion(const std::string& fields) const {
    return checked(parse_completion_call("{" + fields + "}", context()));
  }
  // As the engine and its call do with what was parsed.
  absl::StatusOr<ApiCall> checked(absl::StatusOr<ApiCall> call) const {
    if (!call.ok()) return call;
    for (const Request& request : call->requests) {
      if (const absl::Status status = check_request(request, tokenizer_); !status.ok())
        return in_openai_names(status, call->names);
    }
    return call;
  }

  const ModelInfo model_{.id = "org/model", .root = "org/model", .context_length = 512, .created = 1};
  const FakeTokenizer tokenizer_;
};

void expect_error(const absl::StatusOr<ApiCall>& call, const std::string& param, const std::string& what) {
  ASSERT_FALSE(call.ok()) << what;
  EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_EQ(error_field(call.status()).value_or(""), param) << what << ": " << message(call.status());
  EXPECT_FALSE(message(call.status()).empty()) << what;
}

TEST_F(OpenAiRequest, takes_openais_defaults) {
  const auto call = chat("");
  ASSERT_TRUE(call.ok()) << message(call.status());
  ASSERT_EQ(call->requests.size(), 1U);
  const Request& request = call->requests[0];
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.top_p, 1.0F);
  EXPECT_FALSE(request.sampling.seed);
  EXPECT_FALSE(request.stopping.max_tokens);
  EXPECT_FALSE(request.top_logprobs);
  EXPECT_FALSE(call->stream);
  EXPECT_EQ(request.id, "r1");
  EXPECT_EQ(request.tenant, "t0");
  EXPECT_EQ(request.slo.ttft_ms, 100U);
  const auto completion_call = completion(R"("prompt":"x")");
  ASSERT_TRUE(completion_call.ok());
  EXPECT_EQ(completion_call->requests[0].stopping.max_tokens, 16U);
}

TEST_F(OpenAiRequest, reads_every_field) {
  const auto call =
      chat(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-2,
    "frequency_penalty":2,"seed":-5,"max_tokens":9,"max_completion_tokens":7,"min_tokens":2,"n":3,"stop":["a","b"],"stop_token_ids":[3,4],
    "ignore_eos":true,"cache_salt":"tenant","cache_prompt":false,"include_stop_str_in_output":true,"skip_special_tokens":false,"logprobs":true,"top_logprobs":4,"stream":true,
    "stream_options":{"include_usage":true},"logit_bias":{"5":-100,"7":1.5},"priority":-3,"chat_template_kwargs":{"x":1},
    "add_generation_prompt":false,"user":5,"metadata":[],"model":"org/model","response_format":{"type":"text"},"tools":[],"tool_choice":"none")");
  ASSERT_TRUE(call.ok()) << message(call.status());
  EXPECT_TRUE(call->stream && call->include_usage);
  EXPECT_EQ(call->num_choices, 3U);
  const Request& request = call->requests[0];
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.1F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(request.sampling.presence_penalty, -2.0F);
  EXPECT_EQ(request.sampling.frequency_penalty, 2.0F);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-5));
  EXPECT_EQ(request.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(request.stopping.max_tokens, 7U);
  EXPECT_EQ(request.stopping.min_tokens, 2U);
  EXPECT_EQ(request.stopping.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.stopping.stop_token_ids, (std::vector<TokenId>{3, 4}));
  EXPECT_EQ(request.cache_salt, "tenant");
  EXPECT_FALSE(request.use_prefix_cache);
  EXPECT_TRUE(request.stopping.ignore_eos && request.stopping.include_stop_text && request.show_control_tokens);
  EXPECT_EQ(request.num_choices, 3U);
  EXPECT_EQ(request.top_logprobs, 4U);
  EXPECT_EQ(request.priority, -3);
  const auto& prompt = std::get<ChatPrompt>(request.prompt);
  EXPECT_FALSE(prompt.add_generation_prompt);
  EXPECT_EQ(prompt.template_kwargs_json, R"({"x":1})");
}

TEST_F(OpenAiRequest, refuses_values_outside_their_range_and_names_the_field) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"max_tokens",
       {"0", "-1", "1.5", "\"8\"", "true", "[8]", "9223372036854775808", "18446744073709551616", "4294967296"}},
      {"max_completion_tokens", {"0", "{}", "99999999999999"}},
      {"temperature", {"-0.5", "2.5", "\"nan\"", "[]", "true"}},
      {"top_p", {"-0.1", "1.1", "\"x\""}},
      {"min_p", {"-1", "2"}},
      {"presence_penalty", {"-2.1", "2.1", "\"0\""}},
      {"frequency_penalty", {"-2.1", "2.1"}},
      {"repetition_penalty", {"0", "-1", "11"}},
      {"top_k", {"-2", "1.5", "4294967296"}},
      {"n", {"0", "129", "-1", "\"1\"", "1.5", "[]", "{}", "true"}},
      {"seed", {"9223372036854775808", "1.5", "\"8\"", "true", "[8]", "1e300"}},
      {"top_logprobs", {"21", "-1", "1"}},
      {"logprobs", {"1", "\"x\"", "[]"}},
      {"stop", {"\"\"", "[\"\"]", "[null]", "[5]", "5", "{}", "true", "[[]]"}},
      {"stream", {"1", "\"x\"", "[]", "{}"}},
      {"stream_options", {"{}", "true"}},
      {"logit_bias",
       {"{\"99999999\":5}", "{\"-1\":5}", "{\"abc\":5}", "{\"1.5\":5}", "{\"\":5}", "{\"1\":101}", "{\"1\":-101}",
        "{\"1\":\"5\"}", "{\"1\":null}", "[]", "5", "{\"a\":{}}"}},
      {"stop_token_ids", {"[-1]", "[99999]", "5"}},
      {"tools", {"true", "5", "\"x\"", "{}", "[[]]", "[{\"type\":\"function\"}]"}},
      {"tool_choice", {"\"required\"", "{\"type\":\"function\"}", "5", "true"}},
      {"response_format",
       {"{\"type\":\"json_object\"}", "[]", "5", "\"x\"", "{\"type\":\"json_schema\",\"json_schema\":{}}"}},
      {"model", {"5", "true", "[]", "{}"}},
      {"guided_json", {"{\"a\":1}"}},
      {"cache_salt", {"5", "[]"}},
      {"cache_prompt", {"\"yes\"", "1"}},
      {"echo", {"true"}},
      {"min_tokens", {"-1", "\"x\""}},
      {"chat_template_kwargs", {"[]"}},
  };
  for (const auto& [name, values] : cases) {
    for (const std::string& value : values) expect_error(chat("\"" + name + "\":" + value), name, name + "=" + value);
  }
  expect_error(chat(R"("max_tokens":3,"min_tokens":4)"), "min_tokens", "min over max");
  expect_error(chat(R"("response_format":{})"), "response_format.type", "no type");
  EXPECT_EQ(error_code(chat(R"("temperature":3)").status()), "decimal_above_max_value");
  EXPECT_EQ(error_code(chat(R"("max_tokens":0)").status()), "integer_below_min_value");
}

TEST_F(OpenAiRequest, null_and_off_values_read_as_absent) {
  for (const std::string name :
       {"max_tokens", "temperature", "stop", "n", "seed", "logprobs", "top_logprobs", "stream", "stream_options",
        "logit_bias", "tools", "tool_choice", "response_format", "user", "metadata", "model", "echo"}) {
    EXPECT_TRUE(chat("\"" + name + "\":null").ok()) << name;
  }
  for (const std::string fields :
       {R"("stop":[])", R"("logit_bias":{})", R"("tools":[])", R"("tool_choice":"auto")", R"("model":"")",
        R"("max_tokens":1e3)", R"("max_tokens":2147483648)", R"("seed":9223372036854775807)", R"("seed":0)",
        R"("top_k":-1)", R"("temperature":5e-324)", R"("guided_json":null)", R"("echo":false)"}) {
    const auto call = chat(fields);
    EXPECT_TRUE(call.ok()) << fields << message(call.status());
  }
  EXPECT_EQ(chat(R"("max_tokens":1e3)")->requests[0].stopping.max_tokens, 1000U);
}

TEST_F(OpenAiRequest, names_an_unknown_model) {
  const auto call = chat(R"("model":"other")");
  EXPECT_EQ(call.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error_code(call.status()), "model_not_found");
}

TEST_F(OpenAiRequest, refuses_bodies_that_are_not_json_without_repeating_them) {
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           "[]",
                                           "5",
                                           "null",
                                           "nul",
                                           R"({"messages":"\xff"})",
                                           "{\"messages\":\"\xFF\xFE\x80\"}",
                                           R"({"messages":[{"role":"user","content":"a\uD800b"}]})",
                                           R"({"stop":"\uDC00"})",
                                           R"({"temperature":NaN})",
                                           R"({"temperature":Infinity})",
                                           R"({"temperature":1e999})",
                                           R"({"temperature":-1e999})",
                                           "{} {}",
                                           std::string(200000, '['),
                                           R"({"a":)" + std::string(80, '[') + std::string(80, ']') + "}"};
  for (const std::string& body : bodies) {
    const auto call = parse_chat_call(body, context());
    ASSERT_FALSE(call.ok());
    EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(message(call.status()).find('\xFF'), std::string_view::npos);
    EXPECT_EQ(message(call.status()).find("nlohmann"), std::string_view::npos);
    EXPECT_EQ(message(call.status()).find("exception"), std::string_view::npos);
  }
}

TEST_F(OpenAiRequest, checks_messages) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "messages"},
      {"null", "messages"},
      {"{}", "messages"},
      {"\"hi\"", "messages"},
      {"5", "messages"},
      {"[null]", "messages[0]"},
      {"[[]]", "messages[0]"},
      {"[{}]", "messages[0].role"},
      {R"([{"role":5,"content":"a"}])", "messages[0].role"},
      {R"([{"role":"wizard","content":"a"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":[]}])", "messages[0].content"},
      {R"([{"role":"user","content":[5]}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])", "messages[0].content"},
      {R"([{"role":"user","content":"a"},{"role":"assistant","tool_calls":5}])", "messages[1].tool_calls"},
      {R"([{"role":"assistant","tool_calls":[{"function":{}}]}])", "messages[0].tool_calls[0].function.name"},
  };
  for (const auto& [value, param] : cases) expect_error(messages(value), param, value);
  expect_error(parse_chat_call("{}", context()), "messages", "absent");
}

TEST_F(OpenAiRequest, keeps_tool_calls_and_reads_null_content_as_empty) {
  const auto call =
      messages(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"done"}])");
  ASSERT_TRUE(call.ok()) << message(call.status());
  const auto& parsed = std::get<ChatPrompt>(call->requests[0].prompt).messages;
  ASSERT_EQ(parsed.size(), 3U);
  EXPECT_EQ(parsed[0].content, "a\nb");
  EXPECT_EQ(parsed[1].content, "");
  EXPECT_EQ(
      parsed[1].fields_json,
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]})");
  EXPECT_EQ(parsed[2].fields_json, R"({"role":"tool","tool_call_id":"c1","content":"done"})");
}

TEST_F(OpenAiRequest, reads_every_form_of_prompt) {
  EXPECT_EQ(std::get<std::string>(completion(R"("prompt":"x")")->requests[0].prompt), "x");
  EXPECT_EQ(completion(R"("prompt":["x","y"],"n":2)")->requests.size(), 2U);
  EXPECT_EQ(std::get<std::vector<TokenId>>(completion(R"("prompt":[1,2])")->requests[0].prompt),
            (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(completion(R"("prompt":[[1],[2],[3]])")->requests.size(), 3U);
  const std::string last = std::to_string(tokenizer_.vocab_size() - 1);
  EXPECT_TRUE(completion("\"prompt\":[" + last + "]").ok());
  for (const std::string prompt : {"null",         "5",
                                   "true",         "{}",
                                   "[]",           "[[]]",
                                   "\"\"",         "[\"\"]",
                                   "[-1]",         "[1,-1,2]",
                                   "[[-1]]",       "[[1],[-1]]",
                                   "[1,\"a\"]",    "[\"a\",1]",
                                   "[[1],\"a\"]",  "[1,2147483647]",
                                   "[4294967297]", "[5279552648203111001]",
                                   "[1.5]",        "[true]",
                                   "[null]"}) {
    expect_error(completion("\"prompt\":" + prompt), "prompt", prompt);
  }
  expect_error(completion("\"prompt\":[" + std::to_string(tokenizer_.vocab_size()) + "]"), "prompt", "vocab_size");
  expect_error(completion("\"max_tokens\":5"), "prompt", "absent");
}

TEST_F(OpenAiRequest, completion_fields) {
  const auto scored = completion(R"("prompt":"x","echo":true,"logprobs":1,"max_tokens":0,"best_of":1)");
  ASSERT_TRUE(scored.ok()) << message(scored.status());
  EXPECT_TRUE(scored->requests[0].echo && scored->requests[0].score_prompt);
  EXPECT_EQ(scored->requests[0].stopping.max_tokens, 0U);
  expect_error(completion(R"("prompt":"x","max_tokens":0)"), "max_tokens", "0 without echo");
  expect_error(completion(R"("prompt":"x","best_of":3)"), "best_of", "best_of");
  expect_error(completion(R"("prompt":"x","suffix":"s")"), "suffix", "suffix");
  expect_error(completion(R"("prompt":"x","logprobs":true)"), "logprobs", "bool");
  expect_error(completion(R"("prompt":"x","logprobs":21)"), "logprobs", "21");
  expect_error(completion(R"("prompt":"x","echo":true,"logprobs":1,"n":2)"), "n", "echoed logprobs of every choice");
  std::string many = "\"prompt\":[\"a\"";
  for (int i = 0; i < 9; ++i) many += ",\"b\"";
  expect_error(completion(many + "],\"n\":128"), "n", "too many choices");
}

TEST_F(OpenAiRequest, tokenizes_and_back) {
  EXPECT_EQ(*tokenize(R"({"prompt":"ab"})", context()), R"({"count":2,"max_model_len":512,"tokens":[97,98]})");
  EXPECT_EQ(*tokenize(R"({"content":"a","return_token_strs":true})", context()),
            R"({"count":1,"max_model_len":512,"tokens":[97],"token_strs":["a"]})");
  EXPECT_EQ(*detokenize(R"({"tokens":[97,34,98]})", context()), R"({"prompt":"a\"b","text":"a\"b"})");
  EXPECT_FALSE(tokenize(R"({"prompt":5})", context()).ok());
  EXPECT_FALSE(tokenize("{}", context()).ok());
  EXPECT_FALSE(detokenize(R"({"tokens":[-1]})", context()).ok());
  EXPECT_FALSE(detokenize(R"({"tokens":"x"})", context()).ok());
}

TEST(Milliseconds, accept_whole_positive_numbers_only) {
  EXPECT_EQ(*parse_milliseconds("250", "h"), 250U);
  for (const std::string_view bad : {"", "0", "-1", "1.5", "12x", "99999999999", " 5"})
    EXPECT_FALSE(parse_milliseconds(bad, "h").ok()) << bad;
}

}  // namespace
}  // namespace tandem
