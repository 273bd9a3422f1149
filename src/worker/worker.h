// The worker process: maps the owner's regions, builds the model over them and hosts one lane until it is told to stop
// or the scheduler is gone. Whatever goes wrong with the device ends the worker, never anybody else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "ipc/channel.h"
#include "tandem/backend.h"
#include "tandem/types.h"

namespace tandem {

struct WorkerOptions {
  std::string owner_address;
  std::string model;  // path; read for the layout of the weights, and to fill them if nobody has
  LaneId lane;
  std::uint64_t epoch = 0;  // which life of the lane this is
  DType kv_dtype = DType::kF16;
  std::uint32_t block_tokens = 16;
  std::uint32_t num_blocks = 0;
  std::uint32_t max_rows = 0;  // tokens in one step
  ChannelSizes channel;
};

// Announces itself with a result of step 0 once it can take plans.
absl::Status run_worker(const WorkerOptions& options, Backend& backend, const std::function<bool()>& keep_going);

}  // namespace tandem
