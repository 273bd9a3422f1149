#include "api/http_routes.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

#include "api/openai_error.h"
#include "api/openai_response.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::string_view kGet = "GET, HEAD, OPTIONS";
constexpr std::string_view kPost = "POST, OPTIONS";
constexpr std::string_view kGetAndPost = "GET, HEAD, POST, OPTIONS";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr std::size_t kMaxRequestedHeadersBytes = 4096;

struct RouteEntry {
  std::string_view path;
  Route route;
  std::string_view allow;
  KeyNeed key;
};

constexpr auto kRoutes = std::to_array<RouteEntry>({
    {"/v1/chat/completions", Route::kChat, kPost, KeyNeed::kAny},
    {"/v1/completions", Route::kCompletion, kPost, KeyNeed::kAny},
    {"/v1/models", Route::kModels, kGet, KeyNeed::kAny},
    {"/health", Route::kHealth, kGet, KeyNeed::kNone},
    {"/ready", Route::kReady, kGet, KeyNeed::kNone},
    {"/readyz", Route::kReady, kGet, KeyNeed::kNone},
    {"/metrics", Route::kMetrics, kGet, KeyNeed::kNone},
    {"/tokenize", Route::kTokenize, kPost, KeyNeed::kAny},
    {"/v1/tokenize", Route::kTokenize, kPost, KeyNeed::kAny},
    {"/detokenize", Route::kDetokenize, kPost, KeyNeed::kAny},
    {"/v1/detokenize", Route::kDetokenize, kPost, KeyNeed::kAny},
    {"/version", Route::kVersion, kGet, KeyNeed::kAny},
    {"/flush_cache", Route::kFlushCache, kPost, KeyNeed::kAdmin},
    {"/reset_prefix_cache", Route::kFlushCache, kPost, KeyNeed::kAdmin},
    {"/v1/admin/placement", Route::kPlacement, kGetAndPost, KeyNeed::kAdmin},
});

struct Phrase {
  int status;
  std::string_view text;
};

constexpr auto kPhrases = std::to_array<Phrase>({
    {200, "OK"},
    {204, "No Content"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
});

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low >= 0) {
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string_view path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const auto slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find_first_of("?#"));
}

bool allows_method(std::string_view allow, std::string_view method) {
  while (!allow.empty()) {
    const auto comma = std::min(allow.find(", "), allow.size());
    if (allow.substr(0, comma) == method) return true;
    allow.remove_prefix(std::min(comma + 2, allow.size()));
  }
  return false;
}

// The value of Access-Control-Allow-Origin; empty: not allowed. "null" stands for any sandboxed page and is never
// echoed.
std::string_view allowed_origin(const std::vector<std::string>& allowed, std::string_view origin) {
  if (std::ranges::find(allowed, "*") != allowed.end()) return "*";
  if (origin.empty() || origin == "null" || std::ranges::find(allowed, origin) == allowed.end()) return {};
  return origin;
}

bool is_header_list(std::string_view text) {
  return !text.empty() && text.size() <= kMaxRequestedHeadersBytes && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
  });
}

HttpReply reply_of(int status_code, const absl::Status& status) {
  HttpReply reply;
  reply.status = status_code;
  reply.body = error_json(status_code, status);
  if (status_code == 429 || status_code == 503) reply.headers.emplace_back("Retry-After", "1");
  if (status_code == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

}  // namespace

RouteMatch match_route(std::string_view method, std::string_view target) {
  std::string_view path = path_of(target);
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  RouteMatch match;
  if (const auto* entry = std::ranges::find(kRoutes, path, &RouteEntry::path); entry != kRoutes.end()) {
    match.route = entry->route;
    match.allow = entry->allow;
    match.key = entry->key;
  } else if (path.starts_with(kModelPrefix)) {
    match.route = Route::kModel;
    match.allow = kGet;
    match.model_id = percent_decoded(path.substr(kModelPrefix.size()));
  }
  match.method_allowed = allows_method(match.allow, method);
  return match;
}

HttpReply error_reply(const absl::Status& status) { return reply_of(http_status(status), status); }

HttpReply error_reply(int http_status, std::string_view message, std::string_view code) {
  return reply_of(http_status, request_error(message, {}, code));
}

std::string_view reason_phrase(int http_status) {
  const auto* found = std::ranges::find(kPhrases, http_status, &Phrase::status);
  return found == kPhrases.end() ? "Internal Server Error" : found->text;
}

std::vector<int> every_status() {
  std::vector<int> all;
  for (const Phrase& phrase : kPhrases) all.push_back(phrase.status);
  return all;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    Digest& digest = digests_.emplace_back();
    SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  }
}

std::optional<std::size_t> ApiKeys::match(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer";
  authorization = trimmed(authorization);
  const auto blank = authorization.find_first_of(" \t");
  if (blank == std::string_view::npos || !equal_ignoring_case(authorization.substr(0, blank), kScheme))
    return std::nullopt;
  const std::string_view key = trimmed(authorization.substr(blank));
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    if (CRYPTO_memcmp(digest.data(), digests_[i].data(), digest.size()) == 0) found = i;
  }
  return found;
}

std::string request_id(std::string_view header) {
  const bool good = !header.empty() && header.size() <= kMaxRequestIdBytes &&
                    std::ranges::all_of(header, [](char c) { return c > ' ' && c <= '~'; });
  return good ? std::string(header) : "req-" + random_hex128();
}

void add_cors_headers(const std::vector<std::string>& allowed, const CorsRequest& request, HttpReply& reply) {
  if (allowed.empty()) return;
  const std::string_view origin = allowed_origin(allowed, request.origin);
  // Without "*" the answer depends on who asks, also when the origin is refused.
  if (origin != "*") reply.headers.emplace_back("Vary", "Origin");
  if (origin.empty()) return;
  reply.headers.emplace_back("Access-Control-Allow-Origin", origin);
  reply.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

void add_preflight_headers(const std::vector<std::string>& allowed, const CorsRequest& request, HttpReply& reply) {
  if (allowed.empty() || allowed_origin(allowed, request.origin).empty()) return;
  reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  const bool echo = is_header_list(request.requested_headers);
  reply.headers.emplace_back("Access-Control-Allow-Headers", echo ? std::string(request.requested_headers)
                                                                  : "Authorization, Content-Type, X-Request-Id");
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
}

bool is_json_content_type(std::string_view content_type) {
  const std::string_view type = trimmed(content_type.substr(0, content_type.find(';')));
  // Absent is taken as JSON: nothing else is read here.
  if (type.empty() || equal_ignoring_case(type, "application/json")) return true;
  constexpr std::string_view kSuffix = "+json";
  return type.size() > kSuffix.size() && equal_ignoring_case(type.substr(type.size() - kSuffix.size()), kSuffix);
}

}  // namespace tandem
