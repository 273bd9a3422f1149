// A request as a future, for the commands without a server.
#pragma once

#include <functional>
#include <future>

#include "tandem/engine.h"

namespace tandem {

// Submits the request and returns. `handle` sees every event, on an engine thread. The future gives the DoneEvent; of a
// request that the engine refused, a DoneEvent with that status.
std::future<DoneEvent> start_request(Engine& engine, Request request, std::function<void(const Event&)> handle);

}  // namespace tandem
