// The bodies of /tokenize and /detokenize, from request to reply. They need the tokenizer alone, not the engine. Pure
// functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/openai.h"

namespace tandem {

// {prompt | content, add_special_tokens = true, return_token_strs = false} gives {count, max_model_len, tokens}.
absl::StatusOr<std::string> tokenize(std::string_view body, const CallContext& context);
// {tokens} gives {prompt, text}. Control tokens are written as their literal text, so that a round trip is exact.
absl::StatusOr<std::string> detokenize(std::string_view body, const CallContext& context);

}  // namespace tandem
