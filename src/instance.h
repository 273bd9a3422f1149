// One running instance, put together: model text side, owner, workers, pool, scheduler, engine. `serve`, `generate` and
// `score` differ only in what they do with its engine. Part of the composition root.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/local_engine.h"
#include "api/output.h"
#include "base/handles.h"
#include "base/metrics.h"
#include "cli/server_config.h"
#include "instance_memory.h"
#include "memory/kv_pool.h"
#include "process/child_process.h"
#include "process/owner_host.h"
#include "process/supervisor.h"
#include "sched/scheduler.h"
#include "tandem/model.h"
#include "text/chat_template.h"

namespace tandem {

// A model path as given, or the default model's; NotFound says how to get it.
absl::StatusOr<std::string> resolve_model_path(const std::string& model);

// The KV type that is used when none is asked for: as precise as the weights, since half precision would be the largest
// error of an unquantised model.
DType default_kv_dtype(const ModelFile& model);

// What of the options and the pool a worker process has to know, as its command line.
std::vector<std::string> worker_arguments(const ServerConfig& config, const std::string& owner_address,
                                          const PoolRecord& pool, LaneId lane, std::uint64_t epoch);

class Instance final {
 public:
  // Returns when every worker is ready. `on_fatal` may be called later, from another thread, when the instance cannot
  // go on.
  static absl::StatusOr<std::unique_ptr<Instance>> start(const ServerConfig& config, std::function<void()> on_fatal);
  ~Instance();

  LocalEngine& engine() { return *engine_; }
  MetricRegistry& metrics() { return metrics_; }  // that engine().metrics() scrapes
  std::string trouble() const { return supervisor_->trouble(); }
  // One line: placement, units, pool size.
  const std::string& summary() const { return summary_; }

 private:
  class SchedulerLanes;
  Instance();
  // Leaves the tokenizer in the making.
  absl::Status load_model(const std::string& path);
  absl::Status start_processes(ServerConfig config, const std::string& address, ChildProcess owner_process,
                               std::function<void()> on_fatal);

  std::string model_path_;
  ModelSpec spec_;
  DType default_kv_dtype_ = DType::kF16;
  std::string identity_;  // of the model
  std::future<absl::StatusOr<std::unique_ptr<Tokenizer>>> new_tokenizer_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  MetricRegistry metrics_;
  std::optional<OwnerClient> server_lock_;  // given up after all that writes to the regions is gone
  Mapping control_memory_;
  Mapping ledger_memory_;
  Mapping prefix_memory_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<OutputPipeline> output_;
  std::unique_ptr<OwnerHost> host_;
  std::unique_ptr<SchedulerLanes> lanes_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<LocalEngine> engine_;
  std::string summary_;
};

}  // namespace tandem
