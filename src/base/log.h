// Log lines on stderr: time (UTC), level, process name, pid, text. One line per call whatever the text holds:
// control characters are escaped, so that a client's bytes cannot forge a line. Any thread, any process.
// Not for the step loop: after warm-up a step writes no line.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/words.h"

namespace tandem {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat : std::uint8_t { kText, kJson };

// As --log-level and --log-format take them.
inline constexpr Word<LogLevel> kLogLevelWords[] = {{"trace", LogLevel::kTrace}, {"debug", LogLevel::kDebug},
                                                    {"info", LogLevel::kInfo},   {"warning", LogLevel::kWarning},
                                                    {"error", LogLevel::kError}, {"off", LogLevel::kOff}};
inline constexpr Word<LogFormat> kLogFormatWords[] = {{"text", LogFormat::kText}, {"json", LogFormat::kJson}};

// Called once, from main, before other threads start. Lines logged before it go to stderr as they are.
void init_logging(LogLevel level, LogFormat format, std::string_view process_name);

bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view message);

}  // namespace tandem

// TANDEM_LOG(kInfo, "loaded {} tensors", n): formats only when the level is on. The user includes "fmt/core.h".
#define TANDEM_LOG(level, ...) \
  do { \
    if (::tandem::log_enabled(::tandem::LogLevel::level)) { \
      ::tandem::log(::tandem::LogLevel::level, ::fmt::format(__VA_ARGS__)); \
    } \
  } while (false)
