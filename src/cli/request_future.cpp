#include "cli/request_future.h"

#include <memory>
#include <utility>

namespace tandem {

std::future<DoneEvent> start_request(Engine& engine, Request request, std::function<void(const Event&)> handle) {
  // Shared by the sink, which the engine copies, and this call, which answers for a refused request: the engine sends
  // no event for one, so that the promise is kept once.
  auto promise = std::make_shared<std::promise<DoneEvent>>();
  std::future<DoneEvent> done = promise->get_future();
  const auto id = engine.submit(std::move(request), [promise, handle = std::move(handle)](const Event& event) {
    handle(event);
    if (const auto* end = std::get_if<DoneEvent>(&event)) promise->set_value(*end);
  });
  if (!id.ok()) promise->set_value({id.status(), {}});
  return done;
}

}  // namespace tandem
