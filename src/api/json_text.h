// JSON text by hand, for the token path: a chunk is a few string appends, no tree. Any input gives valid JSON in valid
// UTF-8. Plain functions, any thread; reading JSON is api/json_fields.h's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// `text` as a quoted JSON string on one line; ill-formed UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);

void append_json_number(std::string& out, std::uint64_t value);

// A log-probability within [-9999, 0]; NaN reads as -9999, so that the reply stays valid JSON.
void append_json_logprob(std::string& out, float logprob);

}  // namespace tandem
