// The table of options of `tandem serve`: name, help text, range and field of each. The command line and the
// configuration file are both read through this table.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/api_keys.h"
#include "base/options.h"
#include "cli/server_config.h"

namespace tandem {

// The table over `config`, whose present values are the defaults shown; `config` outlives it.
OptionTable server_options(ServerConfig& config);

// What no single option can know: combinations, and the form of keys and origins. Call after file and flags.
absl::Status check_server_config(const ServerConfig& config);

// The keys of the configuration, each with its bound. Fails naming the item at fault, never showing a key.
absl::StatusOr<std::vector<ApiKey>> api_keys(const ServerConfig& config);
// The bound of callers without a key, and of keys that bring none; absent: no bound.
std::optional<std::int32_t> max_priority(const ServerConfig& config);

}  // namespace tandem
