// OpenAI's request bodies as tandem requests. A parser maps fields and checks types; what values are allowed is
// api/request_check.h's business, whose refusals in_openai_names() puts into OpenAI's words.
// Null reads as absent. Fields that are unknown, or that change nothing here (user, metadata, store, service_tier,
// safety_identifier, prompt_cache_key, reasoning_effort, verbosity, parallel_tool_calls, rid, request_id), are ignored
// whatever their value. Fields that would change the answer and are not supported are refused with 400 and their name,
// unless their value says "off". The model name may be absent or empty. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/api_keys.h"
#include "tandem/engine.h"
#include "tandem/request.h"
#include "tandem/tokenizer.h"

namespace tandem {

enum class ApiKind : std::uint8_t { kChat, kCompletion };

// What the client calls those fields of a Request that have several names in OpenAI's API.
struct FieldNames {
  std::string_view max_tokens = "max_tokens";
  std::string_view top_logprobs = "top_logprobs";
};

// One HTTP call: an engine request per prompt, `num_choices` choices each. Choice index = prompt * num_choices +
// choice.
struct ApiCall {
  ApiKind kind = ApiKind::kChat;
  bool stream = false;
  bool include_usage = false;  // a usage chunk at the end of a stream
  std::uint32_t num_choices = 1;
  std::vector<Request> requests;
  FieldNames names;
  std::optional<std::int32_t> lowered_priority;  // set: the caller asked for more
};

// What a parser needs besides the body. Borrowed parts outlive the call.
struct CallContext {
  const ModelInfo& model;
  const Tokenizer& tokenizer;
  std::string request_id;
  Caller caller;
  SloTargets slo;
};

absl::StatusOr<ApiCall> parse_chat_call(std::string_view body, const CallContext& context);
absl::StatusOr<ApiCall> parse_completion_call(std::string_view body, const CallContext& context);

// A refusal by the engine of one of a call's requests, with the field as the client calls it.
absl::Status in_openai_names(const absl::Status& status, const FieldNames& names);

}  // namespace tandem
