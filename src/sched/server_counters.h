// Writes the control page's line about the server. The scheduler's thread alone.
#pragma once

#include <cstddef>
#include <span>

#include "ipc/control_page.h"
#include "memory/kv_usage.h"
#include "sched/sequence.h"

namespace tandem {

void publish_counters(ServerCounters& counters, std::span<Sequence* const> running, std::size_t num_waiting,
                      const KvPoolUsage& usage);

// Of a sequence that was just admitted.
void count_prefix(ServerCounters& counters, const Sequence& sequence);

}  // namespace tandem
