#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/json_as_sent.h"
#include "api/json_fields.h"
#include "api/openai.h"
#include "api/openai_messages.h"
#include "api/request_check.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr IntegerRange kSeed{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
constexpr std::size_t kMaxCallChoices = 1024;  // of all prompts of one call together
constexpr std::uint32_t kDefaultCompletionTokens = 16;

// Fields that change the answer and are not supported. Null, false, "", [] and {} say "off" and pass.
constexpr std::array kUnsupported = std::to_array<std::string_view>({"audio",
                                                                     "prediction",
                                                                     "web_search_options",
                                                                     "guided_json",
                                                                     "guided_regex",
                                                                     "guided_choice",
                                                                     "guided_grammar",
                                                                     "grammar",
                                                                     "structured_outputs",
                                                                     "regex",
                                                                     "ebnf",
                                                                     "json_schema",
                                                                     "stop_regex",
                                                                     "bad_words",
                                                                     "allowed_token_ids",
                                                                     "truncate_prompt_tokens",
                                                                     "prompt_logprobs",
                                                                     "input_ids",
                                                                     "input_embeds",
                                                                     "prompt_embeds",
                                                                     "lora_path",
                                                                     "custom_logit_processor",
                                                                     "logits_processors",
                                                                     "use_beam_search",
                                                                     "chat_template",
                                                                     "documents",
                                                                     "suffix",
                                                                     "return_token_ids",
                                                                     "thinking_token_budget"});

absl::Status unsupported(std::string_view param, std::string_view what = {}) {
  return request_error(fmt::format("'{}'{} is not supported yet by this build; leave it out.", param, what), param,
                       "unsupported_parameter");
}

bool is_off(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}

absl::Status check_unsupported(const Fields& fields) {
  for (const std::string_view name : kUnsupported) {
    const Json* value = fields.find(name);
    if (value != nullptr && !is_off(*value)) return unsupported(name);
  }
  for (const std::string_view name : {"tools", "functions"}) {
    const Json* value = fields.find(name);
    if (value == nullptr) continue;
    if (!value->is_array()) return type_error(name, "an array of objects", *value);
    if (!value->empty()) return unsupported(name);
  }
  // Without tools, "auto" can only choose none.
  for (const std::string_view name : {"tool_choice", "function_call"}) {
    const Json* value = fields.find(name);
    if (value == nullptr || *value == "none" || *value == "auto") continue;
    if (!value->is_string() && !value->is_object()) return type_error(name, "a string or an object", *value);
    return unsupported(name, " other than \"none\" and \"auto\"");
  }
  const Json* modalities = fields.find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"}))
    return unsupported("modalities", " other than [\"text\"]");
  return absl::OkStatus();
}

absl::Status check_response_format(const Fields& fields) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) return type_error("response_format", "an object", *format);
  const Fields inner(*format, "response_format.");
  std::string type;
  TANDEM_TRY(inner.read("type", type));
  if (type == "text") return absl::OkStatus();
  if (type == "json_object" || type == "json_schema") {
    return request_error(fmt::format("'response_format' of type '{}' is not supported yet by this build.", type),
                         "response_format", "unsupported_parameter");
  }
  return field_error("response_format.type", "expected 'text', 'json_object' or 'json_schema'.");
}

absl::Status check_model(const Fields& fields, const ModelInfo& model) {
  std::string name;
  TANDEM_TRY(fields.read("model", name));
  if (name.empty() || name == model.id) return absl::OkStatus();
  return request_error(fmt::format("The model '{}' does not exist; this server has '{}'.", shortened(name), model.id),
                       "model", "model_not_found", absl::StatusCode::kNotFound);
}

absl::Status parse_logit_bias(const Fields& fields, SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return absl::OkStatus();
  if (!bias->is_object()) return type_error("logit_bias", "an object from token id to number", *bias);
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (key.empty() || error != std::errc{} || end != key.data() + key.size()) {
      return field_error("logit_bias", fmt::format("the key '{}' is not a token id.", shortened(key, 32)));
    }
    TANDEM_ASSIGN(const float amount, read_number(value, "logit_bias"));
    sampling.logit_bias.emplace_back(id, amount);
  }
  return absl::OkStatus();
}

absl::Status parse_sampling(const Fields& fields, SamplingParams& sampling) {
  TANDEM_TRY(fields.read("temperature", sampling.temperature));
  TANDEM_TRY(fields.read("top_p", sampling.top_p));
  TANDEM_TRY(fields.read("min_p", sampling.min_p));
  TANDEM_TRY(fields.read("presence_penalty", sampling.presence_penalty));
  TANDEM_TRY(fields.read("frequency_penalty", sampling.frequency_penalty));
  TANDEM_TRY(fields.read("repetition_penalty", sampling.repetition_penalty));
  TANDEM_TRY(fields.read("top_k", sampling.top_k, limits::kTopK));
  TANDEM_TRY(fields.read("seed", sampling.seed, kSeed));
  return parse_logit_bias(fields, sampling);
}

absl::Status parse_stop_strings(const Fields& fields, std::vector<std::string>& stops) {
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return absl::OkStatus();
  const auto add = [&stops](const Json& value) {
    if (!value.is_string()) return type_error("stop", "a string or an array of strings", value);
    stops.push_back(value.get<std::string>());
    return absl::OkStatus();
  };
  if (!stop->is_array()) return add(*stop);
  for (const Json& value : *stop) TANDEM_TRY(add(value));
  return absl::OkStatus();
}

absl::Status parse_stopping(const Fields& fields, StopParams& stopping) {
  TANDEM_TRY(fields.read("min_tokens", stopping.min_tokens, limits::kMinTokens));
  TANDEM_TRY(fields.read("ignore_eos", stopping.ignore_eos));
  TANDEM_TRY(fields.read("no_stop_trim", stopping.include_stop_text));
  TANDEM_TRY(fields.read("include_stop_str_in_output", stopping.include_stop_text));
  if (const Json* ids = fields.find("stop_token_ids"); ids != nullptr) {
    TANDEM_ASSIGN(stopping.stop_token_ids, read_token_ids(*ids, "stop_token_ids"));
  }
  return parse_stop_strings(fields, stopping.stop);
}

absl::Status parse_stream(const Fields& fields, ApiCall& call) {
  TANDEM_TRY(fields.read("stream", call.stream));
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return type_error("stream_options", "an object", *options);
  if (!call.stream) return field_error("stream_options", "only allowed when 'stream' is true.");
  return Fields(*options, "stream_options.").read("include_usage", call.include_usage);
}

// What both endpoints share. `request.stopping.max_tokens` is set by the caller before.
absl::Status parse_common(const Fields& fields, const CallContext& context, ApiCall& call, Request& request) {
  TANDEM_TRY(check_unsupported(fields));
  TANDEM_TRY(check_response_format(fields));
  TANDEM_TRY(parse_stream(fields, call));
  TANDEM_TRY(parse_sampling(fields, request.sampling));
  TANDEM_TRY(parse_stopping(fields, request.stopping));
  TANDEM_TRY(fields.read("n", request.num_choices, limits::kNumChoices));
  call.num_choices = request.num_choices;
  bool skip_special_tokens = true;
  TANDEM_TRY(fields.read("skip_special_tokens", skip_special_tokens));
  request.show_control_tokens = !skip_special_tokens;
  TANDEM_TRY(fields.read("priority", request.priority, limits::kPriority));
  TANDEM_TRY(fields.read("cache_salt", request.cache_salt));
  TANDEM_TRY(fields.read("cache_prompt", request.use_prefix_cache));
  request.id = context.request_id;
  request.slo = context.slo;
  call.lowered_priority = attribute(context.caller, request);
  return absl::OkStatus();
}

absl::Status parse_chat_logprobs(const Fields& fields, Request& request) {
  bool wanted = false;
  TANDEM_TRY(fields.read("logprobs", wanted));
  std::uint32_t top = 0;
  TANDEM_TRY(fields.read("top_logprobs", top, limits::kTopLogprobs));
  // 0 says "no alternatives", which is so without log-probabilities too.
  if (top > 0 && !wanted) return field_error("top_logprobs", "only allowed when 'logprobs' is true.");
  if (wanted) request.top_logprobs = top;
  return absl::OkStatus();
}

absl::Status parse_template_options(const Fields& fields, std::string_view body, ChatPrompt& prompt) {
  TANDEM_TRY(fields.read("continue_final_message", prompt.continue_final_message));
  prompt.add_generation_prompt = !prompt.continue_final_message;
  TANDEM_TRY(fields.read("add_generation_prompt", prompt.add_generation_prompt));
  if (const Json* kwargs = fields.find("chat_template_kwargs"); kwargs != nullptr) {
    if (!kwargs->is_object()) return type_error("chat_template_kwargs", "an object", *kwargs);
    if (!kwargs->empty()) prompt.template_kwargs_json = json_as_sent(body, "chat_template_kwargs").front();
  }
  return absl::OkStatus();
}

absl::StatusOr<Prompt> parse_one_prompt(const Json& value) {
  if (value.is_string()) return Prompt(value.get<std::string>());
  TANDEM_ASSIGN(std::vector<TokenId> ids, read_token_ids(value, "prompt"));
  return Prompt(std::move(ids));
}

// A string, a list of strings, a list of token ids, or a list of such lists.
absl::StatusOr<std::vector<Prompt>> parse_prompts(const Fields& fields) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) return missing_error("prompt");
  std::vector<Prompt> prompts;
  const bool is_list = value->is_array() && !value->empty() && ((*value)[0].is_string() || (*value)[0].is_array());
  if (!is_list) {
    if (!value->is_string() && !value->is_array()) return type_error("prompt", "a string or an array", *value);
    TANDEM_ASSIGN(Prompt prompt, parse_one_prompt(*value));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (value->size() > kMaxCallChoices) {
    return field_error(
        "prompt", fmt::format("too many prompts. Expected at most {}, but got {}.", kMaxCallChoices, value->size()));
  }
  const bool strings = (*value)[0].is_string();
  for (const Json& item : *value) {
    if (item.is_string() != strings)
      return field_error("prompt", "the prompts of one request must be all strings or all token ids.");
    TANDEM_ASSIGN(Prompt prompt, parse_one_prompt(item));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

absl::Status parse_completion_logprobs(const Fields& fields, Request& request) {
  const Json* value = fields.find("logprobs");
  if (value != nullptr && *value == false) return absl::OkStatus();
  return fields.read("logprobs", request.top_logprobs, limits::kTopLogprobs);
}

absl::Status check_best_of(const Fields& fields, std::uint32_t num_choices) {
  std::optional<std::int64_t> best_of;
  TANDEM_TRY(fields.read("best_of", best_of, limits::kNumChoices));
  if (!best_of || *best_of == 1 || *best_of == num_choices) return absl::OkStatus();
  return unsupported("best_of", " other than 1");
}

}  // namespace

absl::StatusOr<ApiCall> parse_chat_call(std::string_view body, const CallContext& context) {
  TANDEM_ASSIGN(const Json json, parse_json_object(body));
  const Fields fields(json);
  TANDEM_TRY(check_model(fields, context.model));
  ApiCall call;
  call.kind = ApiKind::kChat;
  Request request;
  ChatPrompt prompt;
  TANDEM_ASSIGN(prompt.messages, parse_messages(fields, body));
  TANDEM_TRY(fields.read("max_tokens", request.stopping.max_tokens, limits::kMaxTokens));
  if (fields.find("max_completion_tokens") != nullptr) call.names.max_tokens = "max_completion_tokens";
  TANDEM_TRY(fields.read("max_completion_tokens", request.stopping.max_tokens, limits::kMaxTokens));
  TANDEM_TRY(parse_common(fields, context, call, request));
  TANDEM_TRY(parse_chat_logprobs(fields, request));
  TANDEM_TRY(parse_template_options(fields, body, prompt));
  bool echo = false;
  TANDEM_TRY(fields.read("echo", echo));
  if (echo) return unsupported("echo", " of a chat");
  request.prompt = std::move(prompt);
  call.requests.push_back(std::move(request));
  return call;
}

absl::StatusOr<ApiCall> parse_completion_call(std::string_view body, const CallContext& context) {
  TANDEM_ASSIGN(const Json json, parse_json_object(body));
  const Fields fields(json);
  TANDEM_TRY(check_model(fields, context.model));
  ApiCall call;
  call.kind = ApiKind::kCompletion;
  call.names.top_logprobs = "logprobs";
  Request request;
  TANDEM_ASSIGN(std::vector<Prompt> prompts, parse_prompts(fields));
  TANDEM_TRY(fields.read("echo", request.echo));
  request.stopping.max_tokens = kDefaultCompletionTokens;
  // Nothing but the prompt, with its log-probabilities, is what echo with 0 asks for.
  const IntegerRange max_tokens{.min = request.echo ? 0 : limits::kMaxTokens.min, .max = limits::kMaxTokens.max};
  TANDEM_TRY(fields.read("max_tokens", request.stopping.max_tokens, max_tokens));
  TANDEM_TRY(parse_common(fields, context, call, request));
  TANDEM_TRY(parse_completion_logprobs(fields, request));
  TANDEM_TRY(check_best_of(fields, call.num_choices));
  if (prompts.size() * call.num_choices > kMaxCallChoices) {
    return field_error("n", fmt::format("prompts x n must be at most {}, but got {} x {}.", kMaxCallChoices,
                                        prompts.size(), call.num_choices));
  }
  request.score_prompt = request.echo && request.top_logprobs.has_value();
  for (Prompt& prompt : prompts) {
    Request& one = call.requests.emplace_back(request);
    one.prompt = std::move(prompt);
  }
  return call;
}

absl::Status in_openai_names(const absl::Status& status, const FieldNames& names) {
  const std::string field = error_field(status).value_or("");
  if (field == "num_choices") return rename_field(status, "n");
  if (field == "max_tokens") return rename_field(status, names.max_tokens);
  if (field == "top_logprobs") return rename_field(status, names.top_logprobs);
  if (field == "ttft_ms") return rename_field(status, "x-slo-ttft-ms");
  if (field == "tpot_ms") return rename_field(status, "x-slo-tpot-ms");
  return status;
}

}  // namespace tandem
