#include "cli/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {

absl::StatusOr<StopSignals> StopSignals::create() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  FileDescriptor fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return errno_status("receive SIGTERM and SIGINT");
  return StopSignals(std::move(fd));
}

std::optional<int> StopSignals::take() const {
  signalfd_siginfo taken = {};
  if (::read(fd_.get(), &taken, sizeof(taken)) != sizeof(taken)) return std::nullopt;
  return static_cast<int>(taken.ssi_signo);
}

EndOnSignal::EndOnSignal(const StopSignals& signals, std::string what, std::optional<int> exit_status)
    : over_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([fd = signals.fd(), over = over_.get(), &signals, what = std::move(what), exit_status] {
    pollfd events[2] = {{over, POLLIN, 0}, {fd, POLLIN, 0}};
    for (;;) {
      if (::poll(events, 2, -1) < 0) continue;
      if (events[0].revents != 0) return;  // what came at the same time is left to the main thread
      const std::optional<int> signal = signals.take();
      if (!signal) continue;
      TANDEM_LOG(kInfo, "{} while {}: ends", *signal == SIGTERM ? "SIGTERM" : "SIGINT", what);
      ::_exit(exit_status.value_or(exit_status_of(*signal)));
    }
  });
}

EndOnSignal::~EndOnSignal() {
  const std::uint64_t one = 1;
  if (::write(over_.get(), &one, sizeof(one)) < 0) TANDEM_LOG(kError, "cannot end the watch for signals");
  thread_.join();
}

}  // namespace tandem
