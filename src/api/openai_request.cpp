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

#include "api/json_fields.h"
#include "api/openai.h"
#include "api/openai_messages.h"
#include "base/status.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 8192;
constexpr std::size_t kMaxChoices = 1024;
constexpr std::int64_t kMaxTop = 20;
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
  return value_error("response_format.type", "expected 'text', 'json_object' or 'json_schema'.");
}

absl::Status check_model(const Fields& fields, const ModelInfo& model) {
  std::string name;
  TANDEM_TRY(fields.read("model", name));
  if (name.empty() || name == model.id) return absl::OkStatus();
  return request_error(fmt::format("The model '{}' does not exist; this server has '{}'.", shortened(name), model.id),
                       "model", "model_not_found", absl::StatusCode::kNotFound);
}

absl::Status parse_logit_bias(const Fields& fields, TokenId vocab_size, SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return absl::OkStatus();
  if (!bias->is_object()) return type_error("logit_bias", "an object from token id to number", *bias);
  if (bias->size() > kMaxBiases) {
    return value_error("logit_bias",
                       fmt::format("too many entries. Expected at most {}, but got {}.", kMaxBiases, bias->size()));
  }
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (key.empty() || error != std::errc{} || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      return value_error("logit_bias",
                         fmt::format("the key '{}' is not a token id. Expected a whole number from 0 to {}.",
                                     shortened(key, 32), vocab_size - 1));
    }
    TANDEM_ASSIGN(const double amount, read_number(value, "logit_bias", {.min = -100, .max = 100}));
    sampling.logit_bias.emplace_back(id, static_cast<float>(amount));
  }
  return absl::OkStatus();
}

absl::Status parse_sampling(const Fields& fields, TokenId vocab_size, SamplingParams& sampling) {
  TANDEM_TRY(fields.read("temperature", sampling.temperature, {.min = 0, .max = 2}));
  TANDEM_TRY(fields.read("top_p", sampling.top_p, {.min = 0, .max = 1}));
  if (sampling.top_p == 0.0F) {
    sampling.temperature = 0.0F;  // the smallest nucleus: the likeliest token alone
    sampling.top_p = 1.0F;
  }
  TANDEM_TRY(fields.read("min_p", sampling.min_p, {.min = 0, .max = 1}));
  TANDEM_TRY(fields.read("presence_penalty", sampling.presence_penalty, {.min = -2, .max = 2}));
  TANDEM_TRY(fields.read("frequency_penalty", sampling.frequency_penalty, {.min = -2, .max = 2}));
  TANDEM_TRY(fields.read("repetition_penalty", sampling.repetition_penalty, {.min = 0.01, .max = 10}));
  std::optional<std::int64_t> top_k;
  TANDEM_TRY(fields.read("top_k", top_k, {.min = -1, .max = kMaxInt32}));
  sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k.value_or(0), 0));
  std::optional<std::int64_t> seed;
  TANDEM_TRY(fields.read("seed", seed, {.min = -kMaxInt64 - 1, .max = kMaxInt64}));
  if (seed) sampling.seed = static_cast<std::uint64_t>(*seed);
  return parse_logit_bias(fields, vocab_size, sampling);
}

absl::Status parse_stop_strings(const Fields& fields, std::vector<std::string>& stops) {
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return absl::OkStatus();
  const auto add = [&stops](const Json& value) {
    if (!value.is_string()) return type_error("stop", "a string or an array of strings", value);
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty())
      return value_error("stop", "empty string. Expected at least one character; leave 'stop' out for none.");
    if (text.size() > kMaxStopBytes)
      return value_error("stop", fmt::format("string too long. Expected at most {} bytes.", kMaxStopBytes));
    stops.push_back(text);
    return absl::OkStatus();
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > kMaxStops) {
    return value_error(
        "stop",
        fmt::format("array too long. Expected an array with maximum length {}, but got an array with length {} "
                    "instead.",
                    kMaxStops, stop->size()),
        "array_above_max_length");
  }
  for (const Json& value : *stop) TANDEM_TRY(add(value));
  return absl::OkStatus();
}

absl::Status parse_stopping(const Fields& fields, TokenId vocab_size, StopParams& stopping) {
  std::optional<std::int64_t> min_tokens;
  TANDEM_TRY(fields.read("min_tokens", min_tokens, {.min = 0, .max = kMaxUint32}));
  stopping.min_tokens = static_cast<std::uint32_t>(min_tokens.value_or(0));
  if (stopping.max_tokens && stopping.min_tokens > *stopping.max_tokens) {
    return value_error("min_tokens", fmt::format("expected at most max_tokens ({}), but got {}.", *stopping.max_tokens,
                                                 stopping.min_tokens));
  }
  TANDEM_TRY(fields.read("ignore_eos", stopping.ignore_eos));
  TANDEM_TRY(fields.read("no_stop_trim", stopping.include_stop_text));
  TANDEM_TRY(fields.read("include_stop_str_in_output", stopping.include_stop_text));
  if (const Json* ids = fields.find("stop_token_ids"); ids != nullptr) {
    TANDEM_ASSIGN(stopping.stop_token_ids, read_token_ids(*ids, "stop_token_ids", vocab_size));
    if (stopping.stop_token_ids.size() > kMaxStopTokens) {
      return value_error("stop_token_ids", fmt::format("array too long. Expected at most {} ids.", kMaxStopTokens),
                         "array_above_max_length");
    }
  }
  return parse_stop_strings(fields, stopping.stop);
}

absl::Status parse_stream(const Fields& fields, ApiCall& call) {
  TANDEM_TRY(fields.read("stream", call.stream));
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return type_error("stream_options", "an object", *options);
  if (!call.stream) return value_error("stream_options", "only allowed when 'stream' is true.");
  return Fields(*options, "stream_options.").read("include_usage", call.include_usage);
}

// What both endpoints share. `request.stopping.max_tokens` is set by the caller before.
absl::Status parse_common(const Fields& fields, const CallContext& context, ApiCall& call, Request& request) {
  TANDEM_TRY(check_unsupported(fields));
  TANDEM_TRY(check_response_format(fields));
  TANDEM_TRY(parse_stream(fields, call));
  TANDEM_TRY(parse_sampling(fields, context.tokenizer.vocab_size(), request.sampling));
  TANDEM_TRY(parse_stopping(fields, context.tokenizer.vocab_size(), request.stopping));
  std::optional<std::int64_t> n;
  TANDEM_TRY(fields.read("n", n, {.min = 1, .max = 128}));
  call.num_choices = request.num_choices = static_cast<std::uint32_t>(n.value_or(1));
  bool skip_special_tokens = true;
  TANDEM_TRY(fields.read("skip_special_tokens", skip_special_tokens));
  request.show_control_tokens = !skip_special_tokens;
  std::optional<std::int64_t> priority;
  TANDEM_TRY(fields.read("priority", priority, {.min = -kMaxInt32 - 1, .max = kMaxInt32}));
  request.priority = static_cast<std::int32_t>(priority.value_or(0));
  TANDEM_TRY(fields.read("cache_salt", request.cache_salt));
  TANDEM_TRY(fields.read("cache_prompt", request.use_prefix_cache));
  request.id = context.request_id;
  request.tenant = context.tenant;
  request.slo = context.slo;
  return absl::OkStatus();
}

absl::Status parse_chat_logprobs(const Fields& fields, Request& request) {
  bool wanted = false;
  TANDEM_TRY(fields.read("logprobs", wanted));
  std::optional<std::int64_t> top;
  TANDEM_TRY(fields.read("top_logprobs", top, {.min = 0, .max = kMaxTop}));
  if (top && !wanted) return value_error("top_logprobs", "only allowed when 'logprobs' is true.");
  if (wanted) request.top_logprobs = static_cast<std::uint32_t>(top.value_or(0));
  return absl::OkStatus();
}

absl::Status parse_template_options(const Fields& fields, ChatPrompt& prompt) {
  TANDEM_TRY(fields.read("continue_final_message", prompt.continue_final_message));
  prompt.add_generation_prompt = !prompt.continue_final_message;
  TANDEM_TRY(fields.read("add_generation_prompt", prompt.add_generation_prompt));
  if (prompt.continue_final_message && prompt.add_generation_prompt) {
    return value_error("continue_final_message", "cannot be combined with 'add_generation_prompt': true.");
  }
  if (const Json* kwargs = fields.find("chat_template_kwargs"); kwargs != nullptr) {
    if (!kwargs->is_object()) return type_error("chat_template_kwargs", "an object", *kwargs);
    if (!kwargs->empty()) prompt.template_kwargs_json = kwargs->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return absl::OkStatus();
}

std::optional<std::uint32_t> as_limit(std::optional<std::int64_t> tokens) {
  if (!tokens) return std::nullopt;
  return static_cast<std::uint32_t>(*tokens);
}

absl::Status check_prompt_text(const std::string& text, const Tokenizer& tokenizer) {
  if (!text.empty() || tokenizer.spec().add_bos) return absl::OkStatus();
  return value_error("prompt", "empty string. This model has no begin token, so a prompt needs at least one character.",
                     "empty_string");
}

absl::StatusOr<Prompt> parse_one_prompt(const Json& value, const Tokenizer& tokenizer) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    TANDEM_TRY(check_prompt_text(text, tokenizer));
    return Prompt(text);
  }
  TANDEM_ASSIGN(std::vector<TokenId> ids, read_token_ids(value, "prompt", tokenizer.vocab_size()));
  if (ids.empty()) return value_error("prompt", "empty array. Expected at least one token id.", "empty_array");
  return Prompt(std::move(ids));
}

// A string, a list of strings, a list of token ids, or a list of such lists.
absl::StatusOr<std::vector<Prompt>> parse_prompts(const Fields& fields, const Tokenizer& tokenizer) {
  const Json* value = fields.find("prompt");
  if (value == nullptr)
    return request_error("Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter");
  std::vector<Prompt> prompts;
  const bool is_list = value->is_array() && !value->empty() && ((*value)[0].is_string() || (*value)[0].is_array());
  if (!is_list) {
    if (!value->is_string() && !value->is_array()) return type_error("prompt", "a string or an array", *value);
    TANDEM_ASSIGN(Prompt prompt, parse_one_prompt(*value, tokenizer));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (value->size() > kMaxChoices) {
    return value_error("prompt",
                       fmt::format("too many prompts. Expected at most {}, but got {}.", kMaxChoices, value->size()));
  }
  const bool strings = (*value)[0].is_string();
  for (const Json& item : *value) {
    if (item.is_string() != strings)
      return value_error("prompt", "the prompts of one request must be all strings or all token ids.");
    TANDEM_ASSIGN(Prompt prompt, parse_one_prompt(item, tokenizer));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

absl::Status parse_completion_logprobs(const Fields& fields, Request& request) {
  std::optional<std::int64_t> top;
  TANDEM_TRY(fields.read("logprobs", top, {.min = 0, .max = kMaxTop}));
  if (top) request.top_logprobs = static_cast<std::uint32_t>(*top);
  return absl::OkStatus();
}

absl::Status check_best_of(const Fields& fields, std::uint32_t num_choices) {
  std::optional<std::int64_t> best_of;
  TANDEM_TRY(fields.read("best_of", best_of, {.min = 1, .max = 128}));
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
  TANDEM_ASSIGN(prompt.messages, parse_messages(fields));
  std::optional<std::int64_t> max_tokens;
  std::optional<std::int64_t> max_completion_tokens;
  TANDEM_TRY(fields.read("max_tokens", max_tokens, {.min = 1, .max = kMaxUint32}));
  TANDEM_TRY(fields.read("max_completion_tokens", max_completion_tokens, {.min = 1, .max = kMaxUint32}));
  request.stopping.max_tokens = as_limit(max_completion_tokens ? max_completion_tokens : max_tokens);
  TANDEM_TRY(parse_common(fields, context, call, request));
  TANDEM_TRY(parse_chat_logprobs(fields, request));
  TANDEM_TRY(parse_template_options(fields, prompt));
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
  Request request;
  TANDEM_ASSIGN(std::vector<Prompt> prompts, parse_prompts(fields, context.tokenizer));
  TANDEM_TRY(fields.read("echo", call.echo));
  // Nothing but the prompt, with its log-probabilities, is what echo with 0 asks for.
  std::optional<std::int64_t> max_tokens;
  TANDEM_TRY(fields.read("max_tokens", max_tokens, {.min = call.echo ? 0 : 1, .max = kMaxUint32}));
  request.stopping.max_tokens = as_limit(max_tokens).value_or(kDefaultCompletionTokens);
  TANDEM_TRY(parse_common(fields, context, call, request));
  TANDEM_TRY(parse_completion_logprobs(fields, request));
  TANDEM_TRY(check_best_of(fields, call.num_choices));
  if (prompts.size() * call.num_choices > kMaxChoices) {
    return value_error("n", fmt::format("prompts x n must be at most {}, but got {} x {}.", kMaxChoices, prompts.size(),
                                        call.num_choices));
  }
  request.score_prompt = call.echo && request.top_logprobs.has_value();
  if (request.score_prompt && call.num_choices > 1) {
    // Every choice would repeat the whole prompt's entries: a small request must not ask for a reply without bound.
    return value_error("n", "must be 1 together with 'echo' and 'logprobs'.");
  }
  for (Prompt& prompt : prompts) {
    Request& one = call.requests.emplace_back(request);
    one.prompt = std::move(prompt);
  }
  return call;
}

}  // namespace tandem
