#include "process/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/core.h"
#include "memory/region_names.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kAttachTimeout{10};
constexpr std::uint32_t kMaxFailures = 5;
constexpr std::int64_t kRetryDelayUs = 200'000;  // times the failures in a row
constexpr std::int64_t kOwnerRetryUs = 50'000;  // while the owner is stopped
constexpr int kStartingPollMs = 1;
constexpr int kIdlePollMs = StopDetector::kPollEveryUs / 1000;  // what ends is told at once, what stops is looked for
constexpr std::int64_t kReplaceTimeoutUs = 30'000'000;
constexpr std::int64_t kEndGraceUs = 1'000'000;  // for a worker that was replaced

// A channel's port together with its memory: the scheduler may still poll it when the supervisor has let go of it.
class MappedLanePort final : public LanePort {
 public:
  MappedLanePort(std::shared_ptr<const Mapping> channel, std::unique_ptr<LanePort> port)
      : channel_(std::move(channel)), port_(std::move(port)) {}
  absl::Status send(const Plan& plan) override { return port_->send(plan); }
  absl::StatusOr<bool> poll(Result& result) override { return port_->poll(result); }

 private:
  std::shared_ptr<const Mapping> channel_;  // the other owner is the supervisor's Life
  std::unique_ptr<LanePort> port_;
};

// What a failure may come from, for the end of its message.
std::string cause(const absl::Status& owner) { return owner.ok() ? "" : fmt::format("; {}", message(owner)); }

std::string owner_ended(std::string_view how) { return fmt::format("the memory owner ended ({})", how); }

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, ChildProcess owner, OwnerClient client, ControlPage& control)
    : options_(std::move(options)),
      owner_(std::move(owner), std::move(client), options_.owner_address, options_.owner_up),
      control_(control),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      workers_(options_.num_lanes) {}

Supervisor::~Supervisor() { stop(); }

absl::Status Supervisor::launch() {
  for (std::uint32_t lane = 0; lane < workers_.size(); ++lane) {
    const absl::Status status = start_worker(LaneId{lane});
    if (status.ok()) continue;
    const std::optional<std::string> how = owner_.ended();
    return how ? absl::InternalError(owner_ended(*how)) : status;
  }
  return absl::OkStatus();
}

absl::Status Supervisor::start(Scheduler& scheduler) {
  scheduler_ = &scheduler;
  const std::int64_t deadline_us =
      steady_now_us() + std::chrono::duration_cast<std::chrono::microseconds>(options_.start_timeout).count();
  const auto all_ready = [this] {
    return std::ranges::all_of(workers_,
                               [](const WorkerState& w) { return !w.lives.empty() && w.lives.front().ready; });
  };
  while (!all_ready()) {
    watch_once(kStartingPollMs);
    if (std::string why = trouble(); !why.empty()) return absl::InternalError(why);
    // One that was killed is started again. One that ended by itself is not: what fails in the first start is the
    // configuration, and its message is in the log above; or the owner ended, which its own end may not show yet.
    for (std::uint32_t lane = 0; lane < workers_.size(); ++lane) {
      if (!workers_[lane].start_rejected) continue;
      if (const auto how = owner_.ended()) return absl::InternalError(owner_ended(*how));
      return absl::InternalError(fmt::format("worker {} could not start", lane));
    }
    if (steady_now_us() > deadline_us) return absl::DeadlineExceededError("the workers did not get ready in time");
  }
  thread_ = std::thread([this] { run(); });
  return absl::OkStatus();
}

absl::Status Supervisor::start_worker(LaneId lane) {
  TANDEM_TRY(owner_.check());
  std::atomic<std::uint64_t>& epoch = control_.lanes[lane.value].epoch;
  WorkerLife life;
  life.epoch = epoch.load() + 1;
  const std::string name = channel_region(lane, life.epoch);
  TANDEM_ASSIGN(const AttachedRegion region,
                owner_.client().attach(name, channel_bytes(options_.channel), kAttachTimeout));
  TANDEM_ASSIGN(Mapping channel, Mapping::map(region.fd, channel_bytes(options_.channel), Access::kReadWrite));
  life.channel = std::make_shared<Mapping>(std::move(channel));
  TANDEM_TRY(init_channel(life.channel->bytes(), options_.channel));
  // It may be there from an attempt whose answer came too late.
  if (region.must_fill) TANDEM_TRY(owner_.client().publish(name, Seal::kNone));
  TANDEM_ASSIGN(std::unique_ptr<LanePort> port, make_lane_port(life.channel->bytes()));
  life.port = std::make_unique<MappedLanePort>(life.channel, std::move(port));
  epoch.store(life.epoch);
  TANDEM_ASSIGN(life.process, ChildProcess::spawn(options_.worker_arguments(lane, life.epoch)));
  life.started_us = steady_now_us();
  const std::lock_guard lock(mutex_);
  workers_[lane.value].lives.push_back(std::move(life));
  return absl::OkStatus();
}

void Supervisor::run() {
  const auto steady = [](const WorkerState& worker) { return worker.lives.size() == 1 && worker.lives.front().ready; };
  while (!stopping_.load()) {
    bool quiet = std::ranges::all_of(workers_, steady);
    if (quiet) {
      const std::lock_guard lock(mutex_);
      quiet = replacements_.empty();
    }
    watch_once(quiet ? kIdlePollMs : kStartingPollMs);
    if (trouble().empty()) advance_replacement();
  }
}

void Supervisor::watch_once(int timeout_ms) {
  std::vector<pollfd> watched{{wake_event_.get(), POLLIN, 0}};
  if (trouble().empty()) watched.push_back({owner_.end_fd(), POLLIN, 0});
  for (const WorkerState& worker : workers_) {
    for (const WorkerLife& life : worker.lives) watched.push_back({life.process.pidfd(), POLLIN, 0});
  }
  ::poll(watched.data(), watched.size(), timeout_ms);
  std::uint64_t wakes = 0;
  (void)!::read(wake_event_.get(), &wakes, sizeof(wakes));

  if (!trouble().empty()) return;
  if (const auto how = owner_.ended()) return fail(owner_ended(*how));
  poll_for_stopped();
  for (std::uint32_t lane = 0; lane < workers_.size() && trouble().empty(); ++lane) watch_lane(LaneId{lane});
}

// A worker that somebody stopped is one that hangs, and known to long before its heartbeat is missed. When it has ended
// its sequences go on elsewhere. One that a debugger holds is left to the heartbeat: who looks at it would lose it.
void Supervisor::poll_for_stopped() {
  if (steady_now_us() < next_poll_us_) return;
  next_poll_us_ = steady_now_us() + StopDetector::kPollEveryUs;
  owner_.poll();
  for (std::uint32_t lane = 0; lane < workers_.size(); ++lane) {
    for (WorkerLife& life : workers_[lane].lives) {
      const int pid = life.process.pid();
      if (!life.stop.poll(pid) || is_traced(pid)) continue;
      TANDEM_LOG(kWarning, "worker {}, pid {}, is stopped; it is killed and replaced", lane, pid);
      const std::lock_guard lock(mutex_);
      life.process.signal(SIGKILL);
    }
  }
}

void Supervisor::watch_lane(LaneId lane) {
  WorkerState& worker = workers_[lane.value];
  if (worker.lives.empty() && steady_now_us() >= worker.retry_at_us) restart(lane);
  for (WorkerLife& life : worker.lives) {
    if (!life.ready) check_ready(lane, life);
  }
  end_superseded(worker);
  for (std::size_t index = 0; index < worker.lives.size();) {
    std::unique_lock lock(mutex_);
    const std::optional<ProcessEnd> end = worker.lives[index].process.wait(0);
    if (!end) {
      ++index;
      continue;
    }
    WorkerLife ended = std::move(worker.lives[index]);
    worker.lives.erase(worker.lives.begin() + static_cast<std::ptrdiff_t>(index));
    lock.unlock();
    handle_exit(lane, std::move(ended), *end);
  }
}

void Supervisor::restart(LaneId lane) {
  WorkerState& worker = workers_[lane.value];
  const absl::Status status = start_worker(lane);
  if (status.ok()) {
    worker.awaits_owner = false;
  } else if (owner_.may_pass(status)) {
    if (!std::exchange(worker.awaits_owner, true)) {
      TANDEM_LOG(kWarning, "worker {} cannot be replaced yet: {}", lane.value, message(status));
    }
    worker.retry_at_us = steady_now_us() + kOwnerRetryUs;
  } else {
    fail(fmt::format("worker {} cannot be replaced: {}", lane.value, message(status)));
  }
}

void Supervisor::check_ready(LaneId lane, WorkerLife& life) {
  Result hello;
  const absl::StatusOr<bool> polled = life.port->poll(hello);
  if (!polled.ok() || !*polled) return;  // a failed poll: the exit tells more
  const WorkerState& worker = workers_[lane.value];
  {
    const std::lock_guard lock(mutex_);
    life.ready = true;
  }
  workers_[lane.value].failures = 0;
  if (worker.serving_epoch != 0) {
    const char* const what = worker.lives.size() > 1 ? "is replaced, as asked," : "is back";
    TANDEM_LOG(kInfo, "worker {} {} after {} ms", lane.value, what, (steady_now_us() - life.started_us) / 1000);
  }
  scheduler_->lane_up(lane, std::move(life.port), life.epoch, [this, lane, epoch = life.epoch] {
    const std::lock_guard lock(mutex_);
    workers_[lane.value].serving_epoch = epoch;
  });
}

// Lives that the scheduler has left for a later one have nothing to do any more.
void Supervisor::end_superseded(WorkerState& worker) {
  const std::lock_guard lock(mutex_);
  for (WorkerLife& life : worker.lives) {
    if (!life.ready || life.epoch >= worker.serving_epoch) continue;
    if (!life.superseded_us) {
      life.superseded_us = steady_now_us();
      (void)mark_closed(life.channel->bytes());
    } else if (steady_now_us() - *life.superseded_us > kEndGraceUs) {
      life.process.signal(SIGKILL);
    }
  }
}

void Supervisor::handle_exit(LaneId lane, WorkerLife life, const ProcessEnd& end) {
  const std::string& how = end.how;
  WorkerState& worker = workers_[lane.value];
  (void)mark_closed(life.channel->bytes());
  if (life.ready && !life.superseded_us) scheduler_->lane_down(lane, life.epoch);  // first: requests wait for it
  owner_.drop(channel_region(lane, life.epoch));
  if (life.superseded_us) return;
  const bool replaces = !worker.lives.empty();  // another life of the lane serves, or is about to
  if (life.ready) {
    TANDEM_LOG(kWarning, "worker {} ended ({}); {}", lane.value, how,
               replaces ? "another one takes over" : "starting a new one");
    const std::lock_guard lock(mutex_);
    ++worker.restarts;
  } else {
    TANDEM_LOG(kError, "worker {} ended before it was ready ({})", lane.value, how);
    const bool counts = !replaces && owner_.check().ok();
    worker.start_rejected = counts && end.cause == ProcessEnd::Cause::kExit;
    if (counts && ++worker.failures >= kMaxFailures) {
      return fail(fmt::format("worker {} failed to start {} times in a row, the last time with {}", lane.value,
                              kMaxFailures, how));
    }
  }
  worker.retry_at_us = steady_now_us() + kRetryDelayUs * worker.failures;
  bool was_target = false;
  {
    const std::lock_guard lock(mutex_);
    was_target = !replacements_.empty() && replacements_.front().target_epoch == life.epoch &&
                 replacements_.front().lanes.front() == lane && worker.serving_epoch < life.epoch;
  }
  if (was_target) {
    finish_replacement(
        absl::InternalError(fmt::format("the new worker of lane {} ended before it took over ({}){}{}", lane.value, how,
                                        replaces ? "; the old one serves on" : "", cause(owner_.check()))));
  }
}

void Supervisor::replace(const std::vector<LaneId>& lanes, PlacementDone done) {
  {
    const std::lock_guard lock(mutex_);
    if (!lanes.empty() && !replacing_stopped_) {
      replacements_.push_back({{lanes.begin(), lanes.end()}, done, {}, {}});
      done = nullptr;
    }
  }
  if (done) return done(lanes.empty() ? absl::OkStatus() : absl::UnavailableError("the server is shutting down"));
  wake();
}

void Supervisor::advance_replacement() {
  std::unique_lock lock(mutex_);
  if (replacements_.empty()) return;
  Replacement& front = replacements_.front();
  if (front.lanes.empty()) {
    lock.unlock();
    return finish_replacement(absl::OkStatus());
  }
  if (!front.deadline_us) front.deadline_us = steady_now_us() + kReplaceTimeoutUs;  // not while others were first
  const LaneId lane = front.lanes.front();
  WorkerState& worker = workers_[lane.value];
  if (front.target_epoch && worker.serving_epoch >= *front.target_epoch) {
    front.lanes.pop_front();
    front.target_epoch.reset();
  } else if (!front.target_epoch) {
    // A lane that is without a serving worker gets a new one anyway.
    const bool serves =
        std::ranges::any_of(worker.lives, [](const WorkerLife& l) { return l.ready && !l.superseded_us; });
    const std::uint64_t newest = control_.lanes[lane.value].epoch.load();
    front.target_epoch = serves || worker.lives.empty() ? newest + 1 : newest;
    lock.unlock();
    const absl::Status status = serves ? start_worker(lane) : owner_.check();
    if (status.ok()) return;
    (void)owner_.may_pass(status);  // makes the connection anew
    finish_replacement(status);
  } else if (steady_now_us() > *front.deadline_us) {
    for (WorkerLife& life : worker.lives) {
      if (!life.ready && worker.lives.size() > 1) life.process.signal(SIGKILL);
    }
    lock.unlock();
    finish_replacement(
        absl::DeadlineExceededError(fmt::format("the worker of lane {} was not replaced within {} s{}", lane.value,
                                                kReplaceTimeoutUs / 1'000'000, cause(owner_.check()))));
  }
}

void Supervisor::finish_replacement(const absl::Status& status) {
  PlacementDone done;
  {
    const std::lock_guard lock(mutex_);
    if (replacements_.empty()) return;  // stop_replacing() came first
    done = std::move(replacements_.front().done);
    replacements_.pop_front();
  }
  done(status);
}

void Supervisor::stop_replacing() {
  std::deque<Replacement> dropped;
  {
    const std::lock_guard lock(mutex_);
    replacing_stopped_ = true;
    dropped.swap(replacements_);
  }
  for (const Replacement& each : dropped) each.done(absl::UnavailableError("the server is shutting down"));
}

std::vector<LaneReport> Supervisor::lanes() const {
  const char* const names[2] = {"prefill", "decode"};
  std::vector<LaneReport> reports;
  const std::lock_guard lock(mutex_);
  for (std::size_t lane = 0; lane < workers_.size(); ++lane) {
    const WorkerState& worker = workers_[lane];
    LaneReport& report = reports.emplace_back();
    report.name = workers_.size() == 1 ? "fused" : names[lane];
    report.up = std::ranges::any_of(worker.lives, [&](const WorkerLife& l) { return l.epoch == worker.serving_epoch; });
    report.epoch = worker.serving_epoch;
    report.restarts = worker.restarts;
  }
  return reports;
}

void Supervisor::fail(std::string why) {
  TANDEM_LOG(kError, "{}", why);
  {
    const std::lock_guard lock(mutex_);
    if (!trouble_.empty()) return;
    trouble_ = std::move(why);
  }
  options_.on_fatal();
}

void Supervisor::kill_lane(LaneId lane) {
  const std::lock_guard lock(mutex_);
  for (const WorkerLife& life : workers_[lane.value].lives) {
    if (life.ready) life.process.signal(SIGKILL);
  }
}

std::string Supervisor::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Supervisor::wake() {
  const std::uint64_t one = 1;
  if (::write(wake_event_.get(), &one, sizeof(one)) < 0) TANDEM_LOG(kError, "cannot wake the supervisor");
}

void Supervisor::stop() {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
  stop_replacing();
  // Dropping a process kills it: none of them has anything to save.
  for (WorkerState& worker : workers_) worker.lives.clear();
  owner_.end();
}

}  // namespace tandem
