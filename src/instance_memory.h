// The memory side of an instance: its connections to the owner, the right to be the owner's one server, and the
// regions, made by the first server of an owner and taken up by each later one. Part of the composition root.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/handles.h"
#include "cli/server_config.h"
#include "ipc/control_page.h"
#include "memory/owner_client.h"
#include "memory/pool_record.h"
#include "tandem/model.h"

namespace tandem {

// Longest prompt and output together.
std::uint32_t context_tokens(const ServerConfig& config, const ModelSpec& spec);

struct InstanceMemory {
  OwnerClient lock;  // no other server uses the owner while this is open
  OwnerClient owner;
  PoolRecord pool;
  Mapping control;
  Mapping ledger;
  Mapping prefix_table;  // none without the prefix cache
};

struct ModelFingerprint {
  const ModelSpec& spec;
  DType default_kv_dtype = DType::kF16;  // of a new pool when none is asked for
  PrefixKey hash;
};

// Waits for the owner as long as `owner_lives`, and until the workers of an earlier server are gone: from then on
// nobody else writes to the pool. FailedPrecondition: the memory that is there is not what `config` asks for, or
// another server uses it.
absl::StatusOr<InstanceMemory> open_instance_memory(const ServerConfig& config, const std::string& address,
                                                    const ModelFingerprint& model,
                                                    const std::function<bool()>& owner_lives);

}  // namespace tandem
