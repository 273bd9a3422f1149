// Chat messages from JSON. Part of the request parser (api/openai.h); pure functions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "api/json_fields.h"
#include "tandem/request.h"

namespace tandem {

// Roles system, user, assistant, tool, developer, function. Content is a string or an array of text parts, which are
// joined with a newline; for an assistant also null or absent, read as empty. Errors name messages[i].<field>.
absl::StatusOr<std::vector<ChatMessage>> parse_messages(const Fields& fields);

}  // namespace tandem
