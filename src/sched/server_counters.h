// Writes what the server shows of itself to the control page, for `tandem inspect`. Functions without state; the
// scheduler's thread alone calls them, at constant cost.
#pragma once

#include <cstddef>

#include "ipc/control_page.h"
#include "memory/kv_usage.h"
#include "sched/running_sequences.h"
#include "sched/sequence.h"

namespace tandem {

void publish_counters(ServerCounters& counters, const RunningSequences& running, std::size_t num_waiting,
                      const KvPoolUsage& usage);

// Of a sequence that was just admitted.
void count_prefix(ServerCounters& counters, const Sequence& sequence);

}  // namespace tandem
