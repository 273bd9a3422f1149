// OpenAI's request bodies as tandem requests: every check of type, range and support, before the engine sees anything.
// Null reads as absent. Fields that are unknown, or that change nothing here (user, metadata, store, service_tier,
// safety_identifier, prompt_cache_key, reasoning_effort, verbosity, parallel_tool_calls, rid, request_id), are ignored
// whatever their value; fields that would change the answer and are not supported yet are refused with 400 and their
// name. Limits: n <= 128, prompts x n <= 1024, 16 stop strings of 8 KiB, 1024 logit_bias entries, 20 alternatives, 4096
// messages. top_p 0 means greedy. The model name may be absent or empty. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/engine.h"
#include "tandem/request.h"
#include "tandem/tokenizer.h"

namespace tandem {

enum class ApiKind : std::uint8_t { kChat, kCompletion };

// One HTTP call: an engine request per prompt, `num_choices` choices each. Choice index = prompt * num_choices +
// choice.
struct ApiCall {
  ApiKind kind = ApiKind::kChat;
  bool stream = false;
  bool include_usage = false;  // a usage chunk at the end of a stream
  bool echo = false;
  std::uint32_t num_choices = 1;
  std::vector<Request> requests;
};

// What a parser needs besides the body. Borrowed parts outlive the call.
struct CallContext {
  const ModelInfo& model;
  const Tokenizer& tokenizer;
  std::string request_id;
  std::string tenant;
  SloTargets slo;
};

absl::StatusOr<ApiCall> parse_chat_call(std::string_view body, const CallContext& context);
absl::StatusOr<ApiCall> parse_completion_call(std::string_view body, const CallContext& context);

// The reply bodies of /tokenize {prompt | content, add_special_tokens = true, return_token_strs = false} and
// /detokenize {tokens}. Detokenizing writes control tokens as their literal text, so that a round trip is exact.
absl::StatusOr<std::string> tokenize(std::string_view body, const CallContext& context);
absl::StatusOr<std::string> detokenize(std::string_view body, const CallContext& context);

// A header's milliseconds (x-slo-ttft-ms): 1 to one day.
absl::StatusOr<std::uint32_t> parse_milliseconds(std::string_view value, std::string_view header);

}  // namespace tandem
