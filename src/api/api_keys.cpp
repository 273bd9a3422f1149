#include "api/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"
#include "fmt/format.h"

namespace tandem {
namespace {

// Tenants name cached blocks, which outlive a server: the name must not depend on the order of the list of keys. It is
// short enough for logs, and nobody makes another key of the same name.
constexpr std::size_t kTenantBytes = 16;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<ApiKey>& keys, std::optional<std::int32_t> max_priority)
    : anybody_{.tenant = {}, .max_priority = max_priority} {
  for (const ApiKey& key : keys) {
    Entry& entry = entries_.emplace_back();
    SHA256(reinterpret_cast<const unsigned char*>(key.key.data()), key.key.size(), entry.digest.data());
    const auto name = std::span(entry.digest).first<kTenantBytes>();
    entry.caller = {.tenant = fmt::format("key-{:02x}", fmt::join(name, "")), .max_priority = key.max_priority};
  }
}

std::optional<Caller> ApiKeys::caller(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer";
  if (!required()) return anybody_;
  authorization = trimmed(authorization);
  const auto blank = authorization.find_first_of(" \t");
  if (blank == std::string_view::npos || !equal_ignoring_case(authorization.substr(0, blank), kScheme))
    return std::nullopt;
  const std::string_view key = trimmed(authorization.substr(blank));
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(digest.data(), entry.digest.data(), digest.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->caller;
}

std::optional<std::int32_t> attribute(const Caller& caller, Request& request) {
  request.tenant = caller.tenant;
  if (!caller.max_priority || request.priority <= *caller.max_priority) return std::nullopt;
  TANDEM_LOG(kDebug, "request {} asked for priority {} and gets {}, the most its caller may ask for", request.id,
             request.priority, *caller.max_priority);
  request.priority = *caller.max_priority;
  return request.priority;
}

}  // namespace tandem
