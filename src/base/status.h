// How a failure of the outside world travels (absl::Status) and how a broken invariant ends the process.
// A request error also names the field of the request at fault. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// An error that the client caused. `field` names the part of the request at fault (empty: none).
absl::Status request_error(std::string_view message, std::string_view field = {},
                           absl::StatusCode status_code = absl::StatusCode::kInvalidArgument);
std::optional<std::string> error_field(const absl::Status& status);

// The status' text. (Debian builds Abseil with a string_view of its own, so texts are made with fmt::format and
// read through this.)
inline std::string_view message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// The same status with "context: " before its message; payloads are kept.
absl::Status annotate(const absl::Status& status, std::string_view context);

// The text of errno as a status: "<what>: <strerror>".
absl::Status errno_status(std::string_view what);

[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view sentence);

}  // namespace tandem

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` is not ok.
#define TANDEM_TRY(expr) \
  do { \
    if (absl::Status tandem_try_status = (expr); !tandem_try_status.ok()) return tandem_try_status; \
  } while (false)

// TANDEM_ASSIGN(auto x, make_x()): unwraps a StatusOr or returns its status.
#define TANDEM_ASSIGN(lhs, expr) TANDEM_ASSIGN_INNER(TANDEM_CONCAT(tandem_or_, __LINE__), lhs, expr)
#define TANDEM_ASSIGN_INNER(tmp, lhs, expr) \
  auto tmp = (expr); \
  if (!tmp.ok()) return tmp.status(); \
  lhs = *std::move(tmp)

// A broken invariant: on in release, ends the process with the sentence.
#define TANDEM_CHECK(cond, sentence) \
  do { \
    if (!(cond)) [[unlikely]] \
      ::tandem::check_failed(__FILE__, __LINE__, #cond, sentence); \
  } while (false)
