// How a failure looks to an OpenAI client: its HTTP status and its error object. Pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tandem {

// InvalidArgument 400, NotFound 404, ResourceExhausted 429, Unavailable 503, DeadlineExceeded 504, ...; else 500.
int http_status(const absl::Status& status);

// {"error":{"message","type","param","code"}}, all four keys, for a failure that is answered with `http_status`.
std::string error_json(int http_status, const absl::Status& status);

}  // namespace tandem
