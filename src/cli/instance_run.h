// A running instance and what may end its work: a signal, or a failure that it does not survive. `serve`, `generate`
// and `score` run on one. Main thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "cli/server_config.h"
#include "cli/stop_signals.h"
#include "instance.h"

namespace tandem {

class InstanceRun final {
 public:
  enum class End : std::uint8_t { kSignal, kFailure };

  // Returns when the instance is ready. Until loaded() is called a signal ends the process at once, with
  // `loading_status`, or exit_status_of(signal) where that is absent.
  static absl::StatusOr<std::unique_ptr<InstanceRun>> start(const ServerConfig& config,
                                                            std::optional<int> loading_status = {});
  void loaded() { guard_.reset(); }
  // The same until the process has ended, with `status`.
  void begin_stop(int status) { guard_.emplace(signals_, "stopping", status); }
  ~InstanceRun();  // begin_stop(exit_status()), unless it was called

  Instance& instance() { return *instance_; }
  LocalEngine& engine() { return instance_->engine(); }
  // Waits for a signal or a failure; nullopt: neither has come within `timeout`. Takes the signal, so that a later call
  // waits for the next one. A failure stays.
  std::optional<End> wait(std::optional<std::chrono::milliseconds> timeout);
  // The end of a request. What ends the run before that ends all requests.
  DoneEvent await(std::future<DoneEvent> done);
  // What await() has met.
  std::optional<End> ended() const { return ended_; }
  // Of a command whose run has ended too early.
  int exit_status() const { return ended_ == End::kSignal ? exit_status_of(signal_) : 1; }

 private:
  explicit InstanceRun(StopSignals signals) : signals_(std::move(signals)) {}

  const StopSignals signals_;
  std::optional<EndOnSignal> guard_;
  FileDescriptor failed_;  // readable once the instance has failed
  std::unique_ptr<Instance> instance_;
  std::optional<End> ended_;
  int signal_ = 0;
};

}  // namespace tandem
