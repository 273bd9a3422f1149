// What an HTTP request means, before its body is read: route, authorization, CORS, identity, and the form of a reply.
// Pure functions over header texts; knows no sockets. GET /health, /ready, /readyz and /metrics need no key, OPTIONS
// neither; every other route does once keys are configured.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

enum class Route : std::uint8_t {
  kUnknown,
  kChat,
  kCompletion,
  kModels,
  kModel,
  kHealth,
  kReady,
  kMetrics,
  kTokenize,
  kDetokenize,
  kVersion,
  kFlushCache,
  kPlacement,
};

// Which key a route asks for, when the server has any. kAdmin: the administrator's, or any if there is none of that
// kind.
enum class KeyNeed : std::uint8_t { kNone, kAny, kAdmin };

struct RouteMatch {
  Route route = Route::kUnknown;
  std::string_view allow;  // the methods of the route, for the Allow header
  bool method_allowed = false;
  KeyNeed key = KeyNeed::kAny;
  std::string model_id;  // kModel, percent-decoded
};

// `target` as in the request line: origin or absolute form, with or without a query.
RouteMatch match_route(std::string_view method, std::string_view target);

struct HttpReply {
  int status = 200;
  std::string_view content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string_view, std::string>> headers;
};

// The reply to a failed call: OpenAI's error object, with Retry-After where trying again helps.
HttpReply error_reply(const absl::Status& status);
HttpReply error_reply(int http_status, std::string_view message, std::string_view code = {});
std::string_view reason_phrase(int http_status);
// Each status that a reply can have.
std::vector<int> every_status();

// Keys are kept and compared as digests, in time that depends on neither the key nor the guess.
class ApiKeys final {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);
  bool required() const { return !digests_.empty(); }
  // The index of the key in an Authorization header of scheme Bearer (any case); nullopt: none or a wrong one.
  std::optional<std::size_t> match(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  std::vector<Digest> digests_;
};

// A client's X-Request-Id when it is 1 to 128 visible ASCII characters, otherwise a new one.
std::string request_id(std::string_view header);

struct CorsRequest {
  std::string_view origin;
  std::string_view requested_headers;  // of a preflight
};

// Appends the headers that let a browser page of an allowed origin read the reply. Nothing without configured origins.
// Credentials (cookies) are never allowed; an API key in Authorization needs none.
void add_cors_headers(const std::vector<std::string>& allowed, const CorsRequest& request, HttpReply& reply);
void add_preflight_headers(const std::vector<std::string>& allowed, const CorsRequest& request, HttpReply& reply);

bool is_json_content_type(std::string_view content_type);

}  // namespace tandem
