#include "process/owner_host.h"

#include <signal.h>

#include <chrono>
#include <memory>
#include <utility>

#include "base/handles.h"
#include "base/process_state.h"
#include "base/status.h"
#include "memory/region_names.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kAttachTimeout{10};

// A channel's port together with its memory: the scheduler may still poll it when the supervisor has let go of it.
class MappedLanePort final : public LanePort {
 public:
  MappedLanePort(std::shared_ptr<const Mapping> channel, std::unique_ptr<LanePort> port)
      : channel_(std::move(channel)), port_(std::move(port)) {}
  absl::Status send(const Plan& plan) override { return port_->send(plan); }
  absl::StatusOr<bool> poll(Result& result) override { return port_->poll(result); }

 private:
  std::shared_ptr<const Mapping> channel_;  // the other owner is StartedWorker::close_channel
  std::unique_ptr<LanePort> port_;
};

class ChildWorker final : public WorkerProcess {
 public:
  explicit ChildWorker(ChildProcess process) : process_(std::move(process)) {}
  int pid() const override { return process_.pid(); }
  int end_fd() const override { return process_.pidfd(); }
  void kill() override { process_.signal(SIGKILL); }
  std::optional<ProcessEnd> reap() override { return process_.wait(0); }
  // One that a debugger holds is left alone: who looks at it would lose it.
  bool poll_stopped() override { return stop_.poll(process_.pid()) && !is_traced(process_.pid()); }

 private:
  ChildProcess process_;
  StopDetector stop_;
};

}  // namespace

OwnerHost::OwnerHost(OwnerHostOptions options, ChildProcess owner, OwnerClient client)
    : options_(std::move(options)),
      owner_(std::move(owner), std::move(client), options_.owner_address, options_.owner_up) {}

absl::StatusOr<StartedWorker> OwnerHost::start_worker(LaneId lane, std::uint64_t epoch) {
  const std::string name = channel_region(lane, epoch);
  const std::size_t bytes = channel_bytes(options_.channel);
  TANDEM_ASSIGN(const AttachedRegion region, owner_.client().attach(name, bytes, kAttachTimeout));
  TANDEM_ASSIGN(Mapping mapping, Mapping::map(region.fd, bytes, Access::kReadWrite));
  // Shared by the port, which the scheduler keeps, and by close_channel, which the supervisor keeps.
  auto channel = std::make_shared<Mapping>(std::move(mapping));
  TANDEM_TRY(init_channel(channel->bytes(), options_.channel));
  // It may be there from an attempt whose answer came too late.
  if (region.must_fill) TANDEM_TRY(owner_.client().publish(name, Seal::kNone));
  TANDEM_ASSIGN(std::unique_ptr<LanePort> port, make_lane_port(channel->bytes()));
  absl::StatusOr<ChildProcess> process = ChildProcess::spawn(options_.worker_arguments(lane, epoch));
  if (!process.ok()) {
    owner_.drop(name);
    return process.status();
  }
  StartedWorker started;
  started.process = std::make_unique<ChildWorker>(*std::move(process));
  started.port = std::make_unique<MappedLanePort>(channel, std::move(port));
  started.close_channel = [channel] { (void)mark_closed(channel->bytes()); };
  return started;
}

void OwnerHost::forget_worker(LaneId lane, std::uint64_t epoch) { owner_.drop(channel_region(lane, epoch)); }

}  // namespace tandem
