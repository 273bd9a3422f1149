#include "base/log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <memory>
#include <string>

#include "base/utf8.h"
#include "fmt/core.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace tandem {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return spdlog::level::trace;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::off;
}

std::string_view level_name(spdlog::level::level_enum level) {
  const spdlog::string_view_t name = spdlog::level::to_string_view(level);
  return {name.data(), name.size()};
}

void append_escaped(std::string_view text, LogFormat format, spdlog::memory_buf_t& out) {
  const auto append = [&](std::string_view piece) { out.append(piece.data(), piece.data() + piece.size()); };
  while (!text.empty()) {
    const Utf8Unit unit = decode_utf8(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (unit.state != Utf8State::kValid) {
      append(kReplacementUtf8);
    } else if (byte == '\n') {
      append("\\n");
    } else if (byte < 0x20 || byte == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    } else if (format == LogFormat::kJson && (byte == '"' || byte == '\\')) {
      append("\\");
      append(text.substr(0, 1));
    } else {
      append(text.substr(0, unit.length));
    }
    text.remove_prefix(unit.length);
  }
}

class LineFormatter final : public spdlog::formatter {
 public:
  LineFormatter(LogFormat format, std::string_view process_name) : format_(format) {
    spdlog::memory_buf_t escaped;
    append_escaped(process_name, format, escaped);
    process_name_.assign(escaped.data(), escaped.size());
  }

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    using std::chrono::duration_cast, std::chrono::milliseconds;
    const std::time_t seconds = spdlog::log_clock::to_time_t(message.time);
    const auto ms = duration_cast<milliseconds>(message.time.time_since_epoch()).count() % 1000;
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    const std::string time =
        fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                    parts.tm_hour, parts.tm_min, parts.tm_sec, ms);
    const auto end = std::back_inserter(out);
    if (format_ == LogFormat::kJson) {
      fmt::format_to(end, R"({{"time":"{}","level":"{}","process":"{}","pid":{},"message":")", time,
                     level_name(message.level), process_name_, ::getpid());
    } else {
      fmt::format_to(end, "{} {:<7} {}[{}] ", time, level_name(message.level), process_name_, ::getpid());
    }
    append_escaped({message.payload.data(), message.payload.size()}, format_, out);
    fmt::format_to(end, "{}", format_ == LogFormat::kJson ? "\"}\n" : "\n");
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(*this); }

 private:
  LogFormat format_;
  std::string process_name_;
};

constexpr char kLoggerName[] = "tandem";

// spdlog's own default logger writes to stdout, where a subcommand's result goes.
bool initialised(const spdlog::logger& logger) { return logger.name() == kLoggerName; }

}  // namespace

void init_logging(LogLevel level, LogFormat format, std::string_view process_name) {
  // Shared between spdlog's registry and whoever logs while it is replaced.
  auto logger = std::make_shared<spdlog::logger>(kLoggerName, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<LineFormatter>(format, process_name));
  logger->set_level(spdlog_level(level));
  spdlog::set_default_logger(std::move(logger));
}

bool log_enabled(LogLevel level) {
  const spdlog::logger& logger = *spdlog::default_logger_raw();
  return level != LogLevel::kOff && logger.should_log(spdlog_level(level));
}

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  spdlog::logger& logger = *spdlog::default_logger_raw();
  if (initialised(logger)) {
    logger.log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
  } else {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
  }
}

}  // namespace tandem
