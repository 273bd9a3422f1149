// The memory owner as the supervisor sees it: its process when this server started it, the connection, and whether it
// is stopped (SIGSTOP, a debugger). Requests go on without the owner; only the start of a worker needs it. Of an owner
// in another pid namespace nothing is known but whether it answers. The supervisor's thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "base/process_state.h"
#include "memory/owner_client.h"
#include "process/child_process.h"

namespace tandem {

class OwnerWatch final {
 public:
  // `process` does not run when the owner is somebody else's. `up` is 0 while the owner is stopped, else 1.
  OwnerWatch(ChildProcess process, OwnerClient client, std::string address, Gauge up);

  int end_fd() const;  // readable once it has ended
  // How it ended, if it has.
  std::optional<std::string> ended();
  // To be called every StopDetector::kPollEveryUs: says in the log and the metric when the owner stops and goes on.
  void poll();
  // Unavailable while it is stopped; the message names its pid and the remedy.
  absl::Status check() const;
  OwnerClient& client() { return client_; }
  // Whether what a call or check() has failed with may pass: the owner lives and does not answer for now.
  bool may_pass(const absl::Status& status);
  // Drops a region, when the owner answers again at the latest.
  void drop(std::string region);
  // Ends an owner that this server started.
  void end() { process_ = ChildProcess(); }

 private:
  void drop_pending();

  ChildProcess process_;
  OwnerClient client_;
  const std::string address_;
  Gauge up_;
  StopDetector stop_;
  std::optional<std::int64_t> stopped_us_;  // since when the log says so
  std::vector<std::string> to_drop_;
};

}  // namespace tandem
