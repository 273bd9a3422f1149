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

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments_json;
};

struct ChatMessage {
  std::string role;     // system, user, assistant, tool, developer
  std::string content;  // text parts joined; null reads as empty
  std::optional<std::string> name;
  std::optional<std::string> reasoning_content;
  std::optional<std::string> tool_call_id;
  std::vector<ToolCall> tool_calls;
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  std::string tools_json;            // JSON array, empty: none
  std::string template_kwargs_json;  // JSON object of extra template variables, empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// Raw text, token ids, or a conversation for the model's template.
using Prompt = std::variant<std::string, std::vector<TokenId>, ChatPrompt>;

// Every step's plan carries them.
inline constexpr std::size_t kMaxBiases = 1024;
inline constexpr std::size_t kMaxStopTokens = 1024;

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
  std::optional<std::uint32_t> max_tokens;  // absent: until the context is full
  std::uint32_t min_tokens = 0;
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
  std::uint32_t num_choices = 1;               // n; choice j draws from (seed, j)
  std::optional<std::uint32_t> top_logprobs;   // set: log-probabilities, with that many alternatives
  bool score_prompt = false;                   // echo with logprobs; `tandem score`
  bool return_last_logits = false;             // of the last prompt token; `tandem score`
  bool show_control_tokens = false;            // skip_special_tokens = false
  SloTargets slo;
  std::int32_t priority = 0;  // larger first
  std::string tenant;
  bool use_prefix_cache = true;  // false: reads nothing from it and leaves nothing there
  std::string cache_salt;        // prefixes are shared by requests of equal salts only
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled };

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;  // sum over the choices
  std::uint32_t cached_tokens = 0;
};

}  // namespace tandem
