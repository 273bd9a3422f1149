#include "sched/supervisor.h"

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
constexpr int kStartingPollMs = 1;
constexpr int kIdlePollMs = 500;

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, ChildProcess owner, OwnerClient client, ControlPage& control)
    : options_(std::move(options)),
      owner_(std::move(owner)),
      client_(std::move(client)),
      control_(control),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      workers_(options_.num_lanes) {}

Supervisor::~Supervisor() { stop(); }

absl::Status Supervisor::launch() {
  for (std::uint32_t lane = 0; lane < workers_.size(); ++lane) TANDEM_TRY(start_worker(LaneId{lane}));
  return absl::OkStatus();
}

absl::Status Supervisor::start(Scheduler& scheduler) {
  scheduler_ = &scheduler;
  const std::int64_t deadline_us =
      steady_now_us() + std::chrono::duration_cast<std::chrono::microseconds>(options_.start_timeout).count();
  const auto all_ready = [this] { return std::ranges::all_of(workers_, [](const Worker& w) { return w.ready; }); };
  while (!all_ready()) {
    watch_once(kStartingPollMs);
    if (std::string why = trouble(); !why.empty()) return absl::InternalError(why);
    // The first start is not retried: what fails now is the configuration, and its message is in the log above.
    for (std::uint32_t lane = 0; lane < workers_.size(); ++lane) {
      if (workers_[lane].failures > 0) return absl::InternalError(fmt::format("worker {} could not start", lane));
    }
    if (steady_now_us() > deadline_us) return absl::DeadlineExceededError("the workers did not get ready in time");
  }
  thread_ = std::thread([this] { run(); });
  return absl::OkStatus();
}

absl::Status Supervisor::start_worker(LaneId lane) {
  Worker& worker = workers_[lane.value];
  std::atomic<std::uint64_t>& epoch = control_.lanes[lane.value].epoch;
  worker.epoch = epoch.load() + 1;
  const std::string name = channel_region(lane, worker.epoch);
  TANDEM_ASSIGN(const AttachedRegion region, client_.attach(name, channel_bytes(options_.channel), kAttachTimeout));
  TANDEM_ASSIGN(worker.channel, Mapping::map(region.fd, channel_bytes(options_.channel), Access::kReadWrite));
  TANDEM_TRY(init_channel(worker.channel.bytes(), options_.channel));
  TANDEM_TRY(client_.publish(name, Seal::kNone));
  TANDEM_ASSIGN(worker.port, make_lane_port(worker.channel.bytes()));
  epoch.store(worker.epoch);
  TANDEM_ASSIGN(ChildProcess process, ChildProcess::spawn(options_.worker_arguments(lane, worker.epoch)));
  worker.started_us = steady_now_us();
  worker.ready = false;
  const std::lock_guard lock(mutex_);
  worker.process = std::move(process);
  return absl::OkStatus();
}

void Supervisor::run() {
  for (;;) {
    const bool starting = std::ranges::any_of(workers_, [](const Worker& w) { return !w.ready; });
    pollfd stop{stop_event_.get(), POLLIN, 0};
    if (::poll(&stop, 1, 0) > 0) return;
    watch_once(starting ? kStartingPollMs : kIdlePollMs);
  }
}

void Supervisor::watch_once(int timeout_ms) {
  std::vector<pollfd> watched{{stop_event_.get(), POLLIN, 0}};
  const bool attached = !owner_.running() && trouble().empty();
  if (owner_.running()) watched.push_back({owner_.pidfd(), POLLIN, 0});
  if (attached) watched.push_back({client_.fd(), POLLIN, 0});
  for (const Worker& worker : workers_) {
    if (worker.process.running()) watched.push_back({worker.process.pidfd(), POLLIN, 0});
  }
  ::poll(watched.data(), watched.size(), timeout_ms);

  std::string how;
  if (owner_.running() && owner_.wait(0, &how)) fail(fmt::format("the memory owner ended ({})", how));
  if (attached && client_.closed()) fail("the memory owner ended (it closed the connection)");
  for (std::uint32_t index = 0; index < workers_.size() && trouble().empty(); ++index) {
    const LaneId lane{index};
    Worker& worker = workers_[index];
    if (worker.process.running()) {
      if (!worker.ready) check_ready(lane);
      std::unique_lock lock(mutex_);
      const bool ended = worker.process.wait(0, &how);
      lock.unlock();
      if (ended) handle_exit(lane, how);
    } else if (steady_now_us() >= worker.retry_at_us) {
      if (const absl::Status status = start_worker(lane); !status.ok()) {
        fail(fmt::format("worker {} cannot be replaced: {}", index, message(status)));
      }
    }
  }
}

void Supervisor::check_ready(LaneId lane) {
  Worker& worker = workers_[lane.value];
  Result hello;
  const absl::StatusOr<bool> polled = worker.port->poll(hello);
  if (!polled.ok() || !*polled) return;  // a failed poll: the exit tells more
  worker.ready = true;
  worker.failures = 0;
  if (worker.again) {
    TANDEM_LOG(kInfo, "worker {} is back after {} ms", lane.value, (steady_now_us() - worker.started_us) / 1000);
  }
  scheduler_->lane_up(lane, std::move(worker.port));
}

void Supervisor::handle_exit(LaneId lane, const std::string& how) {
  Worker& worker = workers_[lane.value];
  (void)mark_closed(worker.channel.bytes());
  const absl::Status dropped = client_.drop(channel_region(lane, worker.epoch));
  if (!dropped.ok()) TANDEM_LOG(kDebug, "drop the channel of worker {}: {}", lane.value, message(dropped));
  if (worker.ready) {
    TANDEM_LOG(kWarning, "worker {} ended ({}); starting a new one", lane.value, how);
    scheduler_->lane_down(lane);
  } else {
    TANDEM_LOG(kError, "worker {} ended before it was ready ({})", lane.value, how);
    if (++worker.failures >= kMaxFailures) {
      return fail(fmt::format("worker {} failed to start {} times in a row", lane.value, kMaxFailures));
    }
  }
  worker.ready = false;
  worker.again = true;
  worker.retry_at_us = steady_now_us() + kRetryDelayUs * worker.failures;
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
  workers_[lane.value].process.signal(SIGKILL);
}

std::string Supervisor::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Supervisor::stop() {
  const std::uint64_t one = 1;
  if (::write(stop_event_.get(), &one, sizeof(one)) < 0) TANDEM_LOG(kError, "cannot wake the supervisor");
  if (thread_.joinable()) thread_.join();
  // Dropping a process kills it: none of them has anything to save.
  for (Worker& worker : workers_) worker.process = ChildProcess();
  owner_ = ChildProcess();
}

}  // namespace tandem
