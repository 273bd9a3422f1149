#include "base/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::int64_t kTerminalIntervalUs = 100'000;
constexpr std::int64_t kLogIntervalUs = 2'000'000;

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

}  // namespace

Progress::Progress(std::string label)
    : label_(std::move(label)),
      terminal_(::isatty(STDERR_FILENO) == 1 && log_enabled(LogLevel::kInfo)),
      start_us_(steady_now_us()),
      next_report_us_(start_us_ + (terminal_ ? kTerminalIntervalUs : kLogIntervalUs)) {}

void Progress::update(std::size_t done, std::size_t total) {
  const std::int64_t now_us = steady_now_us();
  if (now_us < next_report_us_ || total == 0) return;
  const double percent = 100.0 * static_cast<double>(done) / static_cast<double>(total);
  if (terminal_) {
    next_report_us_ = now_us + kTerminalIntervalUs;
    std::fprintf(stderr, "\r%s: %3.0f %% of %.0f MiB\033[K", label_.c_str(), percent, mebibytes(total));
  } else {
    next_report_us_ = now_us + kLogIntervalUs;
    TANDEM_LOG(kInfo, "{}: {:.0f} % of {:.0f} MiB", label_, percent, mebibytes(total));
  }
}

void Progress::finish(std::size_t total) {
  if (terminal_) std::fputs("\r\033[K", stderr);
  const double seconds = static_cast<double>(steady_now_us() - start_us_) * 1e-6;
  TANDEM_LOG(kInfo, "{}: {:.0f} MiB in {:.2f} s", label_, mebibytes(total), seconds);
}

}  // namespace tandem
