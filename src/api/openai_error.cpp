#include "api/openai_error.h"

#include <optional>
#include <string_view>

#include "api/json_text.h"
#include "api/request_error.h"
#include "fmt/core.h"

namespace tandem {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string_view error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string_view default_code(int status) {
  switch (status) {
    case 401: return "invalid_api_key";
    case 404: return "not_found";
    case 405: return "method_not_allowed";
    case 408: return "request_timeout";
    case 413: return "request_too_large";
    case 415: return "unsupported_media_type";
    case 417: return "expectation_failed";
    case 429: return "rate_limit_exceeded";
    case 431: return "headers_too_large";
    case 500: return "internal_error";
    case 503: return "service_unavailable";
    case 504: return "deadline_exceeded";
    default: return {};
  }
}

}  // namespace

int http_status(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return 400;
    case absl::StatusCode::kUnauthenticated: return 401;
    case absl::StatusCode::kPermissionDenied: return 403;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kUnavailable: return 503;
    case absl::StatusCode::kDeadlineExceeded: return 504;
    default: return 500;
  }
}

std::string error_json(int http_status, const absl::Status& status) {
  const std::optional<std::string> param = error_field(status);
  const std::optional<std::string> code = error_code(status);
  const std::string_view fallback = default_code(http_status);
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}})", quoted(message(status)),
                     error_type(http_status), param ? quoted(*param) : "null",
                     code               ? quoted(*code)
                     : fallback.empty() ? "null"
                                        : quoted(fallback));
}

}  // namespace tandem
