#include "process/supervisor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/process_state.h"
#include "base/status.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr int kStartingPollMs = 1;
constexpr int kIdlePollMs = StopDetector::kPollEveryUs / 1000;  // an end is told at once, a stop is polled for
constexpr std::int64_t kReplaceTimeoutUs = 30'000'000;

std::string owner_ended(std::string_view how) { return fmt::format("the memory owner ended ({})", how); }

absl::Status shutting_down() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, ProcessHost& host, ControlPage& control)
    : options_(std::move(options)),
      host_(host),
      control_(control),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Supervisor::~Supervisor() { stop(); }

std::int64_t Supervisor::now_us() const { return options_.now_us ? options_.now_us() : steady_now_us(); }

absl::Status Supervisor::launch(LaneListener& listener) {
  last_up_us_ = now_us();
  for (std::uint32_t index = 0; index < options_.num_lanes; ++index) {
    lanes_.push_back(
        std::make_unique<LaneProcesses>(LaneId{index}, host_, listener, control_.lanes[index].epoch, options_.timings));
    const absl::Status status = lanes_.back()->launch(now_us());
    if (status.ok()) continue;
    const std::optional<std::string> how = host_.owner_ended();
    return how ? absl::InternalError(owner_ended(*how)) : status;
  }
  publish();
  return absl::OkStatus();
}

absl::Status Supervisor::start() {
  const std::int64_t deadline_us = now_us() + options_.timings.first_start_us;
  while (!std::ranges::all_of(lanes_, [](const auto& lane) { return lane->up(); })) {
    wait(kStartingPollMs);
    turn();
    if (std::string why = trouble(); !why.empty()) return absl::InternalError(why);
    if (options_.keep_starting && !options_.keep_starting()) return absl::CancelledError("told to end while starting");
    // One that was killed is started again. One that ended by itself is not: what fails in the first start is the
    // configuration, and its message is in the log above; or the owner ended, which its own end may not show yet.
    for (std::size_t index = 0; index < lanes_.size(); ++index) {
      if (!lanes_[index]->first_start_rejected() && lanes_[index]->failed_starts() < kFailedStarts) continue;
      if (const auto how = host_.owner_ended()) return absl::InternalError(owner_ended(*how));
      return absl::InternalError(fmt::format("worker {} could not start ({})", index, lanes_[index]->last_failure()));
    }
    if (now_us() > deadline_us) return absl::DeadlineExceededError("the workers did not get ready in time");
  }
  thread_ = std::thread([this] { run(); });
  return absl::OkStatus();
}

void Supervisor::run() {
  while (!stopping_.load()) {
    bool quiet = !replacement_ && std::ranges::all_of(lanes_, [](const auto& lane) { return lane->settled(); });
    if (quiet) {
      const std::lock_guard lock(mutex_);
      quiet = replacements_.empty();
    }
    wait(quiet ? kIdlePollMs : kStartingPollMs);
    turn();
  }
}

void Supervisor::wait(int timeout_ms) {
  std::vector<int> fds{wake_event_.get()};
  if (trouble().empty()) fds.push_back(host_.owner_end_fd());
  for (const auto& lane : lanes_) lane->append_end_fds(fds);
  std::vector<pollfd> watched;
  for (const int fd : fds) watched.push_back({fd, POLLIN, 0});
  ::poll(watched.data(), watched.size(), timeout_ms);
  std::uint64_t wakes = 0;
  (void)!::read(wake_event_.get(), &wakes, sizeof(wakes));
}

void Supervisor::turn() {
  if (const std::string why = trouble(); !why.empty()) {
    if (replacement_) finish_replacement(absl::UnavailableError(why));
    return;
  }
  if (const auto how = host_.owner_ended()) return fail(owner_ended(*how));
  const std::int64_t now = now_us();
  handle_messages();
  if (now >= next_poll_us_) {
    next_poll_us_ = now + StopDetector::kPollEveryUs;
    host_.poll_owner();
    for (const auto& lane : lanes_) lane->poll_stopped();
  }
  for (const auto& lane : lanes_) lane->turn(now);
  check_lasting(now);
  advance_replacement(now);
  publish();
}

// A worker that cannot be started is no end while another lane serves, nor while the cause may pass: then it is tried
// again. Nobody served for long is.
void Supervisor::check_lasting(std::int64_t now) {
  const auto up = [](const auto& lane) { return lane->up(); };
  if (std::ranges::any_of(lanes_, up) || !host_.check_owner().ok()) {
    last_up_us_ = now;
    return;
  }
  if (now - last_up_us_ <= options_.give_up_us) return;
  for (const auto& lane : lanes_) {
    if (lane->failed_starts() < kFailedStarts) continue;
    return fail(fmt::format("no worker could be started for {} s, the last time: {}", options_.give_up_us / 1'000'000,
                            lane->last_failure()));
  }
}

void Supervisor::post(Message message) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(message);
  }
  wake();
}

void Supervisor::kill_worker(LaneId lane, std::uint64_t epoch) { post({Message::Kind::kKill, lane, epoch}); }
void Supervisor::lane_taken(LaneId lane, std::uint64_t epoch) { post({Message::Kind::kTaken, lane, epoch}); }

void Supervisor::handle_messages() {
  std::vector<Message> messages;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(inbox_);
  }
  for (const Message& message : messages) {
    LaneProcesses& lane = *lanes_[message.lane.value];
    if (message.kind == Message::Kind::kKill) {
      lane.kill(message.epoch);
    } else {
      lane.set_serving(message.epoch);
    }
  }
}

void Supervisor::replace(const std::vector<LaneId>& lanes, PlacementDone done) {
  {
    const std::lock_guard lock(mutex_);
    if (!lanes.empty() && !replacing_stopped_) {
      replacements_.push_back({{lanes.begin(), lanes.end()}, std::exchange(done, nullptr), {}, {}});
    }
  }
  if (done) return done(lanes.empty() ? absl::OkStatus() : shutting_down());
  wake();
}

void Supervisor::advance_replacement(std::int64_t now) {
  bool stopped = false;
  {
    const std::lock_guard lock(mutex_);
    stopped = replacing_stopped_;
    if (!replacement_ && !replacements_.empty()) {
      replacement_ = std::move(replacements_.front());
      replacements_.pop_front();
      replacement_->deadline_us = now + kReplaceTimeoutUs;
    }
  }
  if (!replacement_) return;
  if (stopped) return finish_replacement(shutting_down());
  while (!replacement_->lanes.empty()) {
    LaneProcesses& lane = *lanes_[replacement_->lanes.front().value];
    const absl::Status status = advance_lane(lane, *replacement_, now);
    if (!status.ok()) return finish_replacement(status);
    if (replacement_->target_epoch) return;  // on its way
    replacement_->lanes.pop_front();
  }
  finish_replacement(absl::OkStatus());
}

// Leaves no target epoch when the lane's new worker serves.
absl::Status Supervisor::advance_lane(LaneProcesses& lane, Replacement& replacement, std::int64_t now) {
  if (!replacement.target_epoch) {
    TANDEM_ASSIGN(replacement.target_epoch, lane.replace(now));
    return absl::OkStatus();
  }
  if (lane.serving_epoch() >= *replacement.target_epoch) {
    replacement.target_epoch.reset();
    return absl::OkStatus();
  }
  TANDEM_TRY(lane.outlook(*replacement.target_epoch));
  if (now <= *replacement.deadline_us) return absl::OkStatus();
  lane.abandon_replacement();
  const absl::Status owner = host_.check_owner();
  return absl::DeadlineExceededError(fmt::format("the worker of lane {} was not replaced within {} s{}",
                                                 replacement.lanes.front().value, kReplaceTimeoutUs / 1'000'000,
                                                 owner.ok() ? "" : fmt::format("; {}", message(owner))));
}

void Supervisor::finish_replacement(const absl::Status& status) {
  const PlacementDone done = std::move(replacement_->done);
  replacement_.reset();
  publish();  // who asked sees the new epochs
  done(status);
}

void Supervisor::stop_replacing() {
  std::deque<Replacement> dropped;
  {
    const std::lock_guard lock(mutex_);
    replacing_stopped_ = true;
    dropped.swap(replacements_);
  }
  for (const Replacement& each : dropped) each.done(shutting_down());
  wake();
}

void Supervisor::publish() {
  const char* const names[2] = {"prefill", "decode"};
  std::vector<LaneReport> reports(lanes_.size());
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    reports[index].name = lanes_.size() == 1 ? "fused" : names[index];
    lanes_[index]->fill_report(reports[index]);
    Gauge up = index < options_.lane_up.size() ? options_.lane_up[index] : Gauge();
    up.set(lanes_[index]->up() ? 1 : 0);
  }
  const std::lock_guard lock(mutex_);
  reports_ = std::move(reports);
}

std::vector<LaneReport> Supervisor::lanes() const {
  const std::lock_guard lock(mutex_);
  return reports_;
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
  if (replacement_) finish_replacement(shutting_down());
  // Dropping a process kills it: none of them has anything to save.
  for (const auto& lane : lanes_) lane->end();
  host_.end_owner();
}

}  // namespace tandem
