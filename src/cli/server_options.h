// The table of options of `tandem serve`: name, help text, range and field of each. The command line and the
// configuration file are both read through this table.
#pragma once

#include "absl/status/status.h"
#include "base/options.h"
#include "cli/server_config.h"

namespace tandem {

// The table over `config`, whose present values are the defaults shown; `config` outlives it.
OptionTable server_options(ServerConfig& config);

// What no single option can know: combinations, and the form of keys and origins. Call after file and flags.
absl::Status check_server_config(const ServerConfig& config);

}  // namespace tandem
