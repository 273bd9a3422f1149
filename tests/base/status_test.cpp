#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

namespace tandem {
namespace {

TEST(Status, a_request_error_names_its_field) {
  const absl::Status status = request_error("top_p must be in (0, 1]", "top_p");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(message(status), "top_p must be in (0, 1]");
  EXPECT_EQ(error_field(status), "top_p");
}

TEST(Status, an_absent_field_stays_absent) {
  const absl::Status status = request_error("queue is full", {}, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error_field(status), std::nullopt);
}

TEST(Status, annotation_keeps_code_and_payloads) {
  const absl::Status status = annotate(request_error("too long", "prompt"), "choice 2");
  EXPECT_EQ(message(status), "choice 2: too long");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error_field(status), "prompt");
  EXPECT_TRUE(annotate(absl::OkStatus(), "choice 2").ok());
}

TEST(Status, errno_becomes_code_and_text) {
  errno = ENOENT;
  const absl::Status status = errno_status("open x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(message(status), "open x: No such file or directory");
}

TEST(Status, try_returns_the_first_failure) {
  int steps = 0;
  const auto run = [&](const absl::Status& first) -> absl::Status {
    TANDEM_TRY(first);
    ++steps;
    return absl::OkStatus();
  };
  EXPECT_FALSE(run(absl::InternalError("x")).ok());
  EXPECT_EQ(steps, 0);
  EXPECT_TRUE(run(absl::OkStatus()).ok());
  EXPECT_EQ(steps, 1);
}

TEST(Status, assign_unwraps_move_only_values_or_returns) {
  const auto twice = [](absl::StatusOr<std::unique_ptr<int>> source) -> absl::StatusOr<int> {
    TANDEM_ASSIGN(const auto value, std::move(source));
    return 2 * *value;
  };
  EXPECT_EQ(*twice(std::make_unique<int>(21)), 42);
  EXPECT_EQ(twice(absl::NotFoundError("gone")).status(), absl::NotFoundError("gone"));
}

TEST(StatusDeathTest, a_broken_invariant_ends_the_process_with_its_sentence) {
  const int blocks = -1;
  TANDEM_CHECK(blocks < 0, "never said");
  EXPECT_DEATH(TANDEM_CHECK(blocks >= 0, "a pool has blocks"), "status_test.cpp:.*a pool has blocks \\(blocks >= 0\\)");
}

}  // namespace
}  // namespace tandem
