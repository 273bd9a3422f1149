// Chat messages from JSON. Part of the request parser (api/openai.h); pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/json_fields.h"
#include "tandem/request.h"

namespace tandem {

// Content is a string or an array of text parts, which are joined with a newline; for an assistant also null or absent,
// read as empty. Errors name messages[i].<field>. The types of the fields that OpenAI defines are checked; what else a
// message has goes to the template as it is. `body` is the text that `fields` were parsed from.
absl::StatusOr<std::vector<ChatMessage>> parse_messages(const Fields& fields, std::string_view body);

}  // namespace tandem
