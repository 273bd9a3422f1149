#include "base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/cord.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr char kParamUrl[] = "tandem/param";
constexpr char kCodeUrl[] = "tandem/code";

std::optional<std::string> payload(const absl::Status& status, const char* url) {
  const auto cord = status.GetPayload(url);
  if (!cord) return std::nullopt;
  return std::string(*cord);
}

}  // namespace

absl::Status request_error(std::string_view message, std::string_view param, std::string_view code,
                           absl::StatusCode status_code) {
  absl::Status status(status_code, std::string(message));
  if (!param.empty()) status.SetPayload(kParamUrl, absl::Cord(std::string(param)));
  if (!code.empty()) status.SetPayload(kCodeUrl, absl::Cord(std::string(code)));
  return status;
}

std::optional<std::string> error_param(const absl::Status& status) { return payload(status, kParamUrl); }
std::optional<std::string> error_code(const absl::Status& status) { return payload(status, kCodeUrl); }

absl::Status annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), fmt::format("{}: {}", context, message(status)));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) { annotated.SetPayload(url, value); });
  return annotated;
}

absl::Status errno_status(std::string_view what) { return absl::ErrnoToStatus(errno, std::string(what)); }

void check_failed(const char* file, int line, const char* condition, std::string_view sentence) {
  std::fprintf(stderr, "%s:%d: broken invariant: %.*s (%s)\n", file, line, static_cast<int>(sentence.size()),
               sentence.data(), condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace tandem
