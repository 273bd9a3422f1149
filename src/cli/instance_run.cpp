#include "cli/instance_run.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<InstanceRun>> InstanceRun::start(const ServerConfig& config,
                                                                std::optional<int> loading_status) {
  TANDEM_ASSIGN(StopSignals signals, StopSignals::create());
  std::unique_ptr<InstanceRun> run(new InstanceRun(std::move(signals)));
  run->guard_.emplace(run->signals_, "loading the model", loading_status);
  run->failed_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!run->failed_.valid()) return errno_status("make an event descriptor");
  TANDEM_ASSIGN(run->instance_, Instance::start(config, [failed = run->failed_.get()] {
                  const std::uint64_t one = 1;
                  if (::write(failed, &one, sizeof(one)) < 0) TANDEM_LOG(kError, "cannot wake the main thread");
                }));
  return run;
}

InstanceRun::~InstanceRun() {
  if (!guard_) begin_stop(exit_status());
}

std::optional<InstanceRun::End> InstanceRun::wait(std::optional<std::chrono::milliseconds> timeout) {
  pollfd events[2] = {{signals_.fd(), POLLIN, 0}, {failed_.get(), POLLIN, 0}};
  for (;;) {
    const int ready = ::poll(events, 2, timeout ? static_cast<int>(timeout->count()) : -1);
    if (ready > 0 && events[1].revents != 0) return End::kFailure;
    if (const std::optional<int> signal = ready > 0 ? signals_.take() : std::nullopt) {
      signal_ = *signal;
      return End::kSignal;
    }
    if (timeout) return std::nullopt;
  }
}

DoneEvent InstanceRun::await(std::future<DoneEvent> done) {
  constexpr std::chrono::milliseconds kEvery{20};
  while (done.wait_for(kEvery) != std::future_status::ready) {
    if (ended_) continue;
    ended_ = wait(std::chrono::milliseconds(0));
    if (ended_) engine().drain(std::chrono::milliseconds(0));
  }
  return done.get();
}

}  // namespace tandem
