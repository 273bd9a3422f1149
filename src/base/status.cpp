#include "base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/cord.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr char kFieldUrl[] = "tandem/field";

}  // namespace

absl::Status request_error(std::string_view message, std::string_view field, absl::StatusCode status_code) {
  absl::Status status(status_code, std::string(message));
  if (!field.empty()) status.SetPayload(kFieldUrl, absl::Cord(std::string(field)));
  return status;
}

std::optional<std::string> error_field(const absl::Status& status) {
  const auto cord = status.GetPayload(kFieldUrl);
  if (!cord) return std::nullopt;
  return std::string(*cord);
}

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
