#include "process/lane_processes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {

LaneProcesses::LaneProcesses(LaneId lane, ProcessHost& host, LaneListener& listener, std::atomic<std::uint64_t>& epoch,
                             LaneTimings timings)
    : lane_(lane), host_(host), listener_(listener), epoch_(epoch), timings_(timings) {}

absl::Status LaneProcesses::launch(std::int64_t now_us) { return start(now_us); }

absl::Status LaneProcesses::start(std::int64_t now_us) {
  TANDEM_TRY(host_.check_owner());
  Worker worker;
  worker.epoch = epoch_.load() + 1;
  epoch_.store(worker.epoch);  // first: no later server gives the number to another process
  TANDEM_ASSIGN(worker.started, host_.start_worker(lane_, worker.epoch));
  worker.started_us = now_us;
  workers_.push_back(std::move(worker));
  return absl::OkStatus();
}

void LaneProcesses::turn(std::int64_t now_us) {
  now_us_ = now_us;
  if (workers_.empty() && now_us >= retry_at_us_) restart(now_us);
  for (std::size_t index = 0; index < workers_.size();) {
    Worker& worker = workers_[index];
    if (!worker.ready) check_ready(worker, now_us);
    check_time(worker, now_us);
    const std::optional<ProcessEnd> end = worker.started.process->reap();
    if (!end) {
      ++index;
      continue;
    }
    Worker ended = std::move(worker);
    workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(index));
    handle_end(std::move(ended), *end, now_us);
  }
}

void LaneProcesses::restart(std::int64_t now_us) {
  const absl::Status status = start(now_us);
  if (status.ok()) {
    owner_silent_ = false;
  } else if (host_.owner_may_answer_later(status)) {
    if (!std::exchange(owner_silent_, true)) {
      TANDEM_LOG(kWarning, "worker {} cannot be replaced yet: {}", lane_.value, message(status));
    }
    retry_at_us_ = now_us + timings_.owner_retry_us;
  } else {
    count_failure(std::string(message(status)), now_us);
  }
}

// What failed may pass: a missing process or descriptor, a machine out of memory. The pauses grow, so that a lasting
// shortage costs little and a log line is rare.
void LaneProcesses::count_failure(std::string why, std::int64_t now_us) {
  const std::int64_t doubled = timings_.first_retry_us << std::min(failed_starts_, 20U);
  const std::int64_t pause_us = std::min(doubled, timings_.longest_retry_us);
  ++failed_starts_;
  last_failure_ = std::move(why);
  retry_at_us_ = now_us + pause_us;
  TANDEM_LOG(kError, "worker {} could not be started ({}); the next try is in {} ms", lane_.value, last_failure_,
             pause_us / 1000);
}

void LaneProcesses::check_ready(Worker& worker, std::int64_t now_us) {
  Result hello;
  const absl::StatusOr<bool> polled = worker.started.port->poll(hello);
  if (!polled.ok() || !*polled) return;  // a failed poll: the exit tells more
  worker.ready = true;
  failed_starts_ = 0;
  if (serving_epoch_ != 0) {
    const char* const what = workers_.size() > 1 ? "is replaced, as asked," : "is back";
    TANDEM_LOG(kInfo, "worker {} {} after {} ms", lane_.value, what, (now_us - worker.started_us) / 1000);
  }
  listener_.lane_up(lane_, worker.epoch, std::move(worker.started.port));
}

void LaneProcesses::check_time(Worker& worker, std::int64_t now_us) {
  const std::int64_t start_limit_us = serving_epoch_ == 0 ? timings_.first_start_us : timings_.restart_us;
  if (!worker.ready && !worker.killed_us && now_us - worker.started_us > start_limit_us) {
    TANDEM_LOG(kError, "worker {}, pid {}, did not get ready within {} s; it is killed", lane_.value,
               worker.started.process->pid(), start_limit_us / 1'000'000);
    kill(worker);
  }
  // The listener has left it for a later one: it has nothing to do any more.
  if (worker.ready && worker.epoch < serving_epoch_) {
    if (!worker.superseded_us) {
      worker.superseded_us = now_us;
      worker.started.close_channel();
    } else if (!worker.killed_us && now_us - *worker.superseded_us > timings_.end_grace_us) {
      kill(worker);
    }
  }
  if (worker.killed_us && !worker.stuck && now_us - *worker.killed_us > timings_.reap_us) {
    worker.stuck = true;
    TANDEM_LOG(
        kError,
        "worker {}, pid {}, was killed and does not end: the kernel holds it; its requests are ended, its memory "
        "is not reused, and the lane gets no other worker until it has ended",
        lane_.value, worker.started.process->pid());
    if (worker.ready && !worker.superseded_us) listener_.lane_stuck(lane_, worker.epoch);
  }
}

void LaneProcesses::handle_end(Worker worker, const ProcessEnd& end, std::int64_t now_us) {
  worker.started.close_channel();
  if (worker.ready && !worker.superseded_us) listener_.lane_down(lane_, worker.epoch);  // first: requests wait for it
  host_.forget_worker(lane_, worker.epoch);
  if (worker.superseded_us) return;
  const bool replaced = !workers_.empty();  // another worker of the lane serves, or is about to
  if (worker.epoch > serving_epoch_) {
    failed_epoch_ = worker.epoch;
    if (replaced) last_failure_ = end.how;
  }
  if (worker.ready) {
    ++restarts_;
    TANDEM_LOG(kWarning, "worker {} ended ({}); {}", lane_.value, end.how,
               replaced ? "another one takes over" : "starting a new one");
    retry_at_us_ = now_us;
    return;
  }
  if (replaced) {
    TANDEM_LOG(kError, "worker {} ended before it was ready ({})", lane_.value, end.how);
    return;
  }
  if (!host_.check_owner().ok()) {  // without the owner no worker gets ready: that is not the worker's failure
    retry_at_us_ = now_us + timings_.owner_retry_us;
    return;
  }
  first_start_rejected_ = serving_epoch_ == 0 && end.cause == ProcessEnd::Cause::kExit;
  count_failure(fmt::format("it ended before it was ready: {}", end.how), now_us);
}

void LaneProcesses::poll_stopped() {
  for (Worker& worker : workers_) {
    if (worker.killed_us || !worker.started.process->poll_stopped()) continue;
    TANDEM_LOG(kWarning, "worker {}, pid {}, is stopped; it is killed and replaced", lane_.value,
               worker.started.process->pid());
    kill(worker);
  }
}

void LaneProcesses::set_serving(std::uint64_t epoch) { serving_epoch_ = std::max(serving_epoch_, epoch); }

void LaneProcesses::kill(std::uint64_t epoch) {
  const auto worker = std::ranges::find(workers_, epoch, &Worker::epoch);
  if (worker != workers_.end()) kill(*worker);
}

void LaneProcesses::kill(Worker& worker) {
  if (!worker.killed_us) worker.killed_us = now_us_;
  worker.started.process->kill();
}

absl::StatusOr<std::uint64_t> LaneProcesses::replace(std::int64_t now_us) {
  if (!up()) {  // a lane without a serving worker gets a new one anyway
    TANDEM_TRY(host_.check_owner());
    return workers_.empty() ? epoch_.load() + 1 : workers_.back().epoch;
  }
  const absl::Status started = start(now_us);
  if (!started.ok()) {
    (void)host_.owner_may_answer_later(started);  // connects again
    return started;
  }
  return workers_.back().epoch;
}

void LaneProcesses::abandon_replacement() {
  if (workers_.size() < 2) return;
  for (Worker& worker : workers_) {
    if (!worker.ready) kill(worker);
  }
}

absl::Status LaneProcesses::outlook(std::uint64_t epoch) const {
  if (epoch > failed_epoch_ || serving_epoch_ >= epoch) return absl::OkStatus();
  const absl::Status owner = host_.check_owner();
  return absl::InternalError(fmt::format("the new worker of lane {} ended before it took over ({}){}{}", lane_.value,
                                         last_failure_, up() ? "; the old one serves on" : "",
                                         owner.ok() ? "" : fmt::format("; {}", message(owner))));
}

bool LaneProcesses::up() const {
  return std::ranges::any_of(workers_, [](const Worker& w) { return w.ready && !w.superseded_us && !w.killed_us; });
}

bool LaneProcesses::settled() const { return workers_.size() == 1 && workers_.front().ready && !workers_[0].killed_us; }

void LaneProcesses::fill_report(LaneReport& report) const {
  report.up = std::ranges::any_of(workers_, [this](const Worker& w) { return w.epoch == serving_epoch_; });
  report.epoch = serving_epoch_;
  report.restarts = restarts_;
}

void LaneProcesses::append_end_fds(std::vector<int>& fds) const {
  for (const Worker& worker : workers_) fds.push_back(worker.started.process->end_fd());
}

}  // namespace tandem
