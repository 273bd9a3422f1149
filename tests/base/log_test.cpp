#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "fmt/core.h"

namespace tandem {
namespace {

// What `body` writes to stderr.
template <class Body>
std::string captured(const Body& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, a_line_has_time_level_process_and_pid) {
  init_logging(LogLevel::kInfo, LogFormat::kText, "serve");
  const std::string text = captured([] { log(LogLevel::kWarning, "pool is 90% full {}"); });
  std::string shape = text.substr(0, 24);
  std::replace_if(shape.begin(), shape.end(), [](char c) { return c >= '0' && c <= '9'; }, 'd');
  EXPECT_EQ(shape, "dddd-dd-ddTdd:dd:dd.dddZ");
  EXPECT_EQ(text.substr(24), fmt::format(" warning serve[{}] pool is 90% full {{}}\n", ::getpid()));
}

TEST(Log, lines_below_the_level_are_dropped) {
  init_logging(LogLevel::kWarning, LogFormat::kText, "serve");
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  EXPECT_FALSE(log_enabled(LogLevel::kOff));
  int formatted = 0;
  const std::string text = captured([&] {
    log(LogLevel::kInfo, "dropped");
    TANDEM_LOG(kInfo, "dropped {}", ++formatted);
    TANDEM_LOG(kError, "kept {}", 42);
  });
  EXPECT_EQ(formatted, 0);
  EXPECT_EQ(text.find("dropped"), std::string::npos);
  EXPECT_NE(text.find("kept 42\n"), std::string::npos);
  init_logging(LogLevel::kOff, LogFormat::kText, "serve");
  EXPECT_EQ(captured([] { log(LogLevel::kError, "dropped"); }), "");
}

TEST(Log, text_cannot_forge_a_line_or_drive_a_terminal) {
  init_logging(LogLevel::kInfo, LogFormat::kText, "serve");
  const std::string text = captured([] {
    log(LogLevel::kInfo,
        "a\n2026-01-01 error forged\r\x1B[31m\x7F"
        "é \"q\" \\");
  });
  EXPECT_NE(text.find("a\\n2026-01-01 error forged\\u000d\\u001b[31m\\u007fé \"q\" \\\n"), std::string::npos) << text;
}

TEST(Log, json_lines_stay_json_whatever_the_bytes) {
  init_logging(LogLevel::kInfo, LogFormat::kJson, "worker \"0\"");
  const auto line_of = [](std::string_view message) {
    const std::string text = captured([&] { log(LogLevel::kInfo, message); });
    return text.substr(text.find("\"level\""));
  };
  const auto expected = [](std::string_view message) {
    return fmt::format("\"level\":\"info\",\"process\":\"worker \\\"0\\\"\",\"pid\":{},\"message\":\"{}\"}}\n",
                       ::getpid(), message);
  };
  EXPECT_EQ(line_of("say \"hi\" \\ \n\t"), expected(R"(say \"hi\" \\ \n\u0009)"));
  EXPECT_EQ(line_of("ok é € 😀"), expected("ok é € 😀"));
  EXPECT_EQ(line_of(std::string_view("\0x", 2)), expected("\\u0000x"));
  // Truncated, overlong, surrogate, beyond U+10FFFF, stray continuation: one U+FFFD for each maximal part.
  EXPECT_EQ(line_of("\xE2\x82"), expected("\uFFFD"));
  EXPECT_EQ(line_of("\xC0\xAF"), expected("\uFFFD\uFFFD"));
  EXPECT_EQ(line_of("\xED\xA0\x80"), expected("\uFFFD\uFFFD\uFFFD"));
  EXPECT_EQ(line_of("\xF4\x90\x80\x80"), expected("\uFFFD\uFFFD\uFFFD\uFFFD"));
  EXPECT_EQ(line_of("\x80"
                    "a"),
            expected("\uFFFDa"));
}

TEST(Log, lines_of_many_threads_do_not_mix) {
  init_logging(LogLevel::kInfo, LogFormat::kText, "serve");
  const std::string text = captured([] {
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) log(LogLevel::kInfo, std::string(200, 'x'));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::size_t lines = 0;
  const std::string tail = "] " + std::string(200, 'x') + "\n";
  for (std::size_t at = text.find(tail); at != std::string::npos; at = text.find(tail, at + 1)) ++lines;
  EXPECT_EQ(lines, 400U);
}

}  // namespace
}  // namespace tandem
