// Runs one request of an engine to its end on the caller's thread, for the commands without a server.
#pragma once

#include <functional>
#include <future>
#include <memory>

#include "tandem/engine.h"

namespace tandem {

// `handle` sees every event, on an engine thread. The future gives the DoneEvent. A request that was not accepted
// gives a DoneEvent with that status.
std::future<DoneEvent> start_request(Engine& engine, Request request, std::function<void(const Event&)> handle);

}  // namespace tandem
