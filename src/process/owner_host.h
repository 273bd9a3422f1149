// The processes of a real instance: workers of this binary over channels in the owner's memory, and the owner itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/metrics.h"
#include "ipc/channel.h"
#include "memory/owner_client.h"
#include "process/child_process.h"
#include "process/owner_watch.h"
#include "process/process_host.h"

namespace tandem {

struct OwnerHostOptions {
  ChannelSizes channel;
  // Arguments that start the worker of a lane's epoch: {"worker", "--lane", ...}.
  std::function<std::vector<std::string>(LaneId, std::uint64_t epoch)> worker_arguments;
  std::string owner_address;
  Gauge owner_up;  // 0 while the owner is stopped
};

class OwnerHost final : public ProcessHost {
 public:
  // `owner` is the running owner process, or none when the instance attached to one of somebody else's; `client` is
  // this object's connection to it.
  OwnerHost(OwnerHostOptions options, ChildProcess owner, OwnerClient client);

  absl::StatusOr<StartedWorker> start_worker(LaneId lane, std::uint64_t epoch) override;
  void forget_worker(LaneId lane, std::uint64_t epoch) override;
  std::optional<std::string> owner_ended() override { return owner_.ended(); }
  int owner_end_fd() const override { return owner_.end_fd(); }
  void poll_owner() override { owner_.poll(); }
  absl::Status check_owner() const override { return owner_.check(); }
  bool owner_may_answer_later(const absl::Status& status) override { return owner_.may_pass(status); }
  void end_owner() override { owner_.end(); }

 private:
  const OwnerHostOptions options_;
  OwnerWatch owner_;
};

}  // namespace tandem
