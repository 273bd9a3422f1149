#include "api/grpc_request.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/json_text.h"
#include "api/request_error.h"
#include "api/request_id.h"
#include "fmt/core.h"
#include "tandem/v1/inference.pb.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 8> kSamplingFields = {
    "temperature",       "top_p",     "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias"};

SamplingParams read_sampling(const v1::SamplingParams& from) {
  SamplingParams to;
  if (from.has_temperature()) to.temperature = from.temperature();
  if (from.has_top_p()) to.top_p = from.top_p();
  if (from.has_top_k()) to.top_k = from.top_k();
  if (from.has_min_p()) to.min_p = from.min_p();
  if (from.has_repetition_penalty()) to.repetition_penalty = from.repetition_penalty();
  if (from.has_presence_penalty()) to.presence_penalty = from.presence_penalty();
  if (from.has_frequency_penalty()) to.frequency_penalty = from.frequency_penalty();
  if (from.has_seed()) to.seed = from.seed();
  for (const auto& [token, bias] : from.logit_bias()) to.logit_bias.emplace_back(token, bias);
  return to;
}

// The template sees the fields in the order of the message's numbers.
ChatMessage read_message(const v1::ChatMessage& from) {
  ChatMessage to;
  to.role = from.role();
  to.content = from.content();
  if (!from.has_name() && !from.has_tool_call_id()) return to;
  to.fields_json = R"({"role":)";
  append_json_string(to.fields_json, from.role());
  to.fields_json += R"(,"content":)";
  append_json_string(to.fields_json, from.content());
  if (from.has_name()) {
    to.fields_json += R"(,"name":)";
    append_json_string(to.fields_json, from.name());
  }
  if (from.has_tool_call_id()) {
    to.fields_json += R"(,"tool_call_id":)";
    append_json_string(to.fields_json, from.tool_call_id());
  }
  to.fields_json += '}';
  return to;
}

absl::StatusOr<Prompt> read_prompt(const v1::GenerateRequest& from) {
  switch (from.prompt_case()) {
    case v1::GenerateRequest::kText: return Prompt(from.text());
    case v1::GenerateRequest::kTokenIds:
      return Prompt(std::vector<TokenId>(from.token_ids().ids().begin(), from.token_ids().ids().end()));
    case v1::GenerateRequest::kChat: break;
    default: return field_error("prompt", "one of text, token_ids and chat is needed.", "missing_required_parameter");
  }
  ChatPrompt chat;
  for (const v1::ChatMessage& message : from.chat().messages()) chat.messages.push_back(read_message(message));
  return Prompt(std::move(chat));
}

}  // namespace

absl::StatusOr<Request> read_request(const v1::GenerateRequest& from, const ModelInfo& model) {
  if (!from.model().empty() && from.model() != model.id) {
    return absl::NotFoundError(fmt::format("this server has the model {}", model.id));
  }
  Request request;
  request.id = request_id(from.request_id());
  TANDEM_ASSIGN(request.prompt, read_prompt(from));
  request.sampling = read_sampling(from.sampling());
  if (from.has_max_tokens()) request.stopping.max_tokens = from.max_tokens();
  request.stopping.min_tokens = from.min_tokens();
  request.stopping.stop.assign(from.stop().begin(), from.stop().end());
  request.stopping.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
  request.stopping.ignore_eos = from.ignore_eos();
  if (from.has_num_choices()) request.num_choices = from.num_choices();
  if (from.has_top_logprobs()) request.top_logprobs = from.top_logprobs();
  if (from.has_ttft_ms()) request.slo.ttft_ms = from.ttft_ms();
  if (from.has_tpot_ms()) request.slo.tpot_ms = from.tpot_ms();
  request.priority = from.priority();
  request.cache_salt = from.cache_salt();
  request.use_prefix_cache = !from.skip_prefix_cache();
  return request;
}

absl::Status in_grpc_names(const absl::Status& status, const v1::GenerateRequest& from) {
  const std::string field = error_field(status).value_or("");
  if (std::ranges::find(kSamplingFields, field) != kSamplingFields.end()) {
    return rename_field(status, "sampling." + field);
  }
  if (field.starts_with("messages")) return rename_field(status, "chat." + field);
  if (field != "prompt") return status;
  switch (from.prompt_case()) {
    case v1::GenerateRequest::kText: return rename_field(status, "text");
    case v1::GenerateRequest::kTokenIds: return rename_field(status, "token_ids.ids");
    default: return status;
  }
}

}  // namespace tandem
