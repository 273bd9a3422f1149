// What a client asks for, independent of the protocol. The front ends (OpenAI JSON, gRPC) map their fields to a
// Request; the engine checks it once for all of them. Plain values with OpenAI's defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tandem/types.h"

namespace tandem {

// What of a message the engine reads itself, and all of it for the model's template.
struct ChatMessage {
  std::string role;     // system, user, assistant, tool, developer, function
  std::string content;  // text parts joined; null reads as empty
  // A JSON object: every field of the message as the client sent it and in the client's order. For `role` and `content`
  // the two above count. Empty: the message has no other fields.
  std::string fields_json;
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  std::string tools_json;  // JSON array, empty: none
  std::string template_kwargs_json;  // JSON object of extra template variables, empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// Raw text, token ids, or a conversation for the model's template.
using Prompt = std::variant<std::string, std::vector<TokenId>, ChatPrompt>;

// Defaults are OpenAI's.
struct SamplingParams {
  float temperature = 1.0F;
  float top_p = 1.0F;
  std::int32_t top_k = 0;  // 0: off
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::optional<std::uint64_t> seed;  // absent: a fresh one for each request
  std::vector<std::pair<TokenId, float>> logit_bias;
};

struct StopParams {
  std::optional<std::uint32_t> max_tokens;  // absent: until the context is full; 0: the prompt alone
  std::uint32_t min_tokens = 0;  // no stop of any kind ends the text before a later token
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_text = false;
};

struct SloTargets {
  std::optional<std::uint32_t> ttft_ms;
  std::optional<std::uint32_t> tpot_ms;
};

struct Request {
  std::string id;  // for logs; unique ids are the engine's business
  Prompt prompt;
  SamplingParams sampling;
  StopParams stopping;
  std::uint32_t num_choices = 1;  // n; choice j draws from (seed, j)
  std::optional<std::uint32_t> top_logprobs;  // set: log-probabilities, with that many alternatives
  bool echo = false;  // the front end repeats the prompt: max_tokens may then be 0
  bool score_prompt = false;  // echo with logprobs; `tandem score`
  bool return_last_logits = false;  // of the last prompt token; `tandem score`
  bool show_control_tokens = false;  // skip_special_tokens = false
  SloTargets slo;
  std::int32_t priority = 0;  // larger first
  std::string tenant;  // who is asking, by API key; empty: anybody
  bool use_prefix_cache = true;  // false: reads nothing from it and leaves nothing there
  std::string cache_salt;  // prefixes are shared by requests of equal salts only
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled };

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;  // sum over the choices
  std::uint32_t cached_tokens = 0;
};

}  // namespace tandem
