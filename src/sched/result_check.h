// Whether a lane's answer answers what it was asked. A worker runs the model over other people's text with kernels that
// may be wrong, so the front end believes none of its numbers: every item is checked before any of them is used.
// Pure functions; scheduler thread.
#pragma once

#include "absl/status/status.h"
#include "sched/lane_state.h"
#include "tandem/transport.h"

namespace tandem {

// What the answer to `item` must look like. Set when the step is planned.
LaneStep::Item asked_of(const PlanItem& item, Sequence& sequence, std::uint32_t num_tokens);

// DataLoss with the item and the field at fault: nothing of `result` is to be used. `vocab_size` bounds every token id.
// A result with an error of its own has no items to check.
absl::Status check_result(const LaneStep& step, const Result& result, TokenId vocab_size);

}  // namespace tandem
