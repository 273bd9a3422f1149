#include "api/request_check.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/utf8.h"
#include "fmt/format.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system", "user", "assistant", "tool", "developer", "function"};

absl::Status check_text(std::string_view field, std::string_view text) {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return absl::OkStatus();
  return field_error(field, fmt::format("not valid UTF-8 at byte {}.", valid), "invalid_encoding");
}

absl::Status check_count(std::string_view field, std::size_t count, std::size_t most) {
  if (count <= most) return absl::OkStatus();
  return field_error(field,
                     fmt::format("array too long. Expected at most {} entries, but got {} instead.", most, count),
                     "array_above_max_length");
}

absl::Status check_tokens(std::string_view field, const std::vector<TokenId>& tokens, const Tokenizer& tokenizer) {
  for (const TokenId token : tokens) TANDEM_TRY(check_token(field, token, tokenizer));
  return absl::OkStatus();
}

absl::Status check_message(const ChatMessage& message, std::size_t index) {
  const auto field = [index](std::string_view name) { return fmt::format("messages[{}].{}", index, name); };
  if (std::ranges::find(kRoles, message.role) == kRoles.end()) {
    return field_error(field("role"), fmt::format("not a known role. Expected one of {}.", fmt::join(kRoles, ", ")));
  }
  TANDEM_TRY(check_text(field("content"), message.content));
  const std::size_t valid = valid_utf8_prefix(message.fields_json);
  if (valid == message.fields_json.size()) return absl::OkStatus();
  return field_error(fmt::format("messages[{}]", index), "a field is not valid UTF-8.", "invalid_encoding");
}

absl::Status check_chat(const ChatPrompt& chat) {
  if (chat.messages.empty()) {
    return field_error("messages", "empty array. Expected at least one message.", "empty_array");
  }
  TANDEM_TRY(check_count("messages", chat.messages.size(), limits::kMessages));
  for (std::size_t i = 0; i < chat.messages.size(); ++i) TANDEM_TRY(check_message(chat.messages[i], i));
  TANDEM_TRY(check_text("tools", chat.tools_json));
  TANDEM_TRY(check_text("chat_template_kwargs", chat.template_kwargs_json));
  if (chat.continue_final_message && chat.add_generation_prompt) {
    return field_error("continue_final_message", "cannot be combined with 'add_generation_prompt': true.");
  }
  return absl::OkStatus();
}

absl::Status check_prompt(const Prompt& prompt, const Tokenizer& tokenizer) {
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) return check_chat(*chat);
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) {
    if (tokens->empty()) {
      return field_error("prompt", "empty array. Expected at least one token id.", "empty_array");
    }
    return check_tokens("prompt", *tokens, tokenizer);
  }
  const auto& text = std::get<std::string>(prompt);
  if (text.empty() && !tokenizer.spec().add_bos) {
    return field_error("prompt",
                       "empty string. This model has no begin token, so a prompt needs at least one character.",
                       "empty_string");
  }
  return check_text("prompt", text);
}

absl::Status check_sampling(const SamplingParams& sampling, const Tokenizer& tokenizer) {
  TANDEM_TRY(check_number("temperature", sampling.temperature, limits::kTemperature));
  TANDEM_TRY(check_number("top_p", sampling.top_p, limits::kTopP));
  TANDEM_TRY(check_integer("top_k", sampling.top_k, limits::kTopK));
  TANDEM_TRY(check_number("min_p", sampling.min_p, limits::kMinP));
  TANDEM_TRY(check_number("repetition_penalty", sampling.repetition_penalty, limits::kRepetitionPenalty));
  TANDEM_TRY(check_number("presence_penalty", sampling.presence_penalty, limits::kPresencePenalty));
  TANDEM_TRY(check_number("frequency_penalty", sampling.frequency_penalty, limits::kFrequencyPenalty));
  TANDEM_TRY(check_count("logit_bias", sampling.logit_bias.size(), limits::kBiases));
  for (const auto& [token, bias] : sampling.logit_bias) {
    TANDEM_TRY(check_token("logit_bias", token, tokenizer));
    TANDEM_TRY(check_number("logit_bias", bias, limits::kLogitBias));
  }
  return absl::OkStatus();
}

absl::Status check_stop(const std::string& stop) {
  if (stop.empty()) {
    return field_error("stop", "empty string. Expected at least one character; leave 'stop' out for none.",
                       "empty_string");
  }
  if (stop.size() > limits::kStopBytes) {
    return field_error("stop", fmt::format("string too long. Expected at most {} bytes.", limits::kStopBytes),
                       "string_above_max_length");
  }
  return check_text("stop", stop);
}

absl::Status check_stopping(const Request& request, const Tokenizer& tokenizer) {
  const StopParams& stopping = request.stopping;
  if (stopping.max_tokens) {
    const bool may_be_none = request.echo || request.score_prompt || request.return_last_logits;
    if (*stopping.max_tokens > 0 || !may_be_none) {
      TANDEM_TRY(check_integer("max_tokens", *stopping.max_tokens, limits::kMaxTokens));
    }
    if (stopping.min_tokens > *stopping.max_tokens) {
      return field_error("min_tokens", fmt::format("expected at most max_tokens ({}), but got {}.",
                                                   *stopping.max_tokens, stopping.min_tokens));
    }
  }
  TANDEM_TRY(check_count("stop", stopping.stop.size(), limits::kStops));
  for (const std::string& stop : stopping.stop) TANDEM_TRY(check_stop(stop));
  TANDEM_TRY(check_count("stop_token_ids", stopping.stop_token_ids.size(), limits::kStopTokens));
  return check_tokens("stop_token_ids", stopping.stop_token_ids, tokenizer);
}

}  // namespace

absl::Status check_request(const Request& request, const Tokenizer& tokenizer) {
  TANDEM_TRY(check_prompt(request.prompt, tokenizer));
  TANDEM_TRY(check_sampling(request.sampling, tokenizer));
  TANDEM_TRY(check_stopping(request, tokenizer));
  TANDEM_TRY(check_integer("num_choices", request.num_choices, limits::kNumChoices));
  if (request.score_prompt && request.num_choices > 1) {
    // Every choice would repeat the whole prompt's entries: a small request must not ask for a reply without bound.
    return field_error("num_choices", "must be 1 when the prompt's log-probabilities are asked for.");
  }
  if (request.top_logprobs) TANDEM_TRY(check_integer("top_logprobs", *request.top_logprobs, limits::kTopLogprobs));
  if (request.slo.ttft_ms) TANDEM_TRY(check_integer("ttft_ms", *request.slo.ttft_ms, limits::kTargetMs));
  if (request.slo.tpot_ms) TANDEM_TRY(check_integer("tpot_ms", *request.slo.tpot_ms, limits::kTargetMs));
  if (request.cache_salt.size() > limits::kCacheSaltBytes) {
    return field_error("cache_salt",
                       fmt::format("string too long. Expected at most {} bytes.", limits::kCacheSaltBytes),
                       "string_above_max_length");
  }
  return check_text("cache_salt", request.cache_salt);
}

absl::Status check_token(std::string_view field, TokenId token, const Tokenizer& tokenizer) {
  if (token >= 0 && token < tokenizer.vocab_size()) return absl::OkStatus();
  return field_error(field, fmt::format("{} is not a token id of this model. Expected a whole number from 0 to {}.",
                                        token, tokenizer.vocab_size() - 1));
}

}  // namespace tandem
