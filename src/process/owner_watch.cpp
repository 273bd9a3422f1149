#include "process/owner_watch.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kReconnectTimeout{2};
constexpr int kEndTimeoutMs = 1000;  // a process closes its connections shortly before it has ended

}  // namespace

OwnerWatch::OwnerWatch(ChildProcess process, OwnerClient client, std::string address, Gauge up)
    : process_(std::move(process)), client_(std::move(client)), address_(std::move(address)), up_(up) {
  up_.set(1);
}

int OwnerWatch::end_fd() const { return process_.running() ? process_.pidfd() : client_.fd(); }

std::optional<std::string> OwnerWatch::ended() {
  const bool closed = client_.closed();
  if (process_.running()) {
    const std::optional<ProcessEnd> end = process_.wait(closed ? kEndTimeoutMs : 0);
    return end ? std::optional(end->how) : std::nullopt;
  }
  if (closed) return "it closed the connection";
  return std::nullopt;
}

void OwnerWatch::poll() {
  const int pid = client_.peer_pid();
  const bool stopped = stop_.poll(pid);
  if (stopped && !stopped_us_) {
    stopped_us_ = steady_now_us();
    up_.set(0);
    TANDEM_LOG(kWarning,
               "the memory owner, pid {}, is stopped, by a signal or a debugger: requests go on, but no worker can be "
               "replaced; `kill -CONT {}` lets it go on",
               pid, pid);
  } else if (!stopped && stopped_us_) {
    const std::int64_t seconds = (steady_now_us() - *stopped_us_) / 1'000'000;
    TANDEM_LOG(kInfo, "the memory owner, pid {}, goes on after {} s", pid, seconds);
    stopped_us_.reset();
    up_.set(1);
  }
  drop_pending();
}

absl::Status OwnerWatch::check() const {
  const int pid = client_.peer_pid();
  if (!is_stopped(pid)) return absl::OkStatus();
  return absl::UnavailableError(fmt::format(
      "the memory owner, pid {}, is stopped and no worker can start; `kill -CONT {}` lets it go on", pid, pid));
}

bool OwnerWatch::may_pass(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return !check().ok();
  // The connection went with the call. One to an owner that does not answer is made by the kernel alone.
  absl::StatusOr<OwnerClient> client = OwnerClient::connect(address_, kReconnectTimeout);
  if (!client.ok()) return false;
  client_ = *std::move(client);
  return true;
}

void OwnerWatch::drop(std::string region) {
  to_drop_.push_back(std::move(region));
  drop_pending();
}

void OwnerWatch::drop_pending() {
  while (!to_drop_.empty() && check().ok()) {
    const absl::Status dropped = client_.drop(to_drop_.back());
    if (!dropped.ok() && may_pass(dropped)) return;
    if (!dropped.ok()) TANDEM_LOG(kDebug, "drop region {}: {}", to_drop_.back(), message(dropped));
    to_drop_.pop_back();
  }
}

}  // namespace tandem
