#include "api/engine_call.h"

#include <utility>

#include "api/placement.h"

namespace tandem {

void EngineCall::submit(ApiCall call) {
  std::vector<Request> requests = call.requests;
  const FieldNames names = call.names;
  {
    const std::lock_guard lock(mutex_);
    ended_.assign(requests.size(), false);
  }
  push(std::move(call));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (closed()) return;
    auto id = engine_.submit(std::move(requests[i]), [self = shared_from_this(), i](Event event) {
      self->push(PromptItem{.prompt_idx = i, .event = std::move(event)});
    });
    if (!id.ok()) {
      push(in_openai_names(id.status(), names));
      return;
    }
    if (!add_running(i, *id)) {
      engine_.cancel(*id);
      return;
    }
  }
}

void EngineCall::set_placement(std::string_view body) {
  const absl::StatusOr<PlacementChange> change = parse_placement_change(body, engine_.placement());
  if (!change.ok()) return push(change.status());
  engine_.set_placement(*change, [self = shared_from_this()](const absl::Status& status) {
    if (!status.ok()) return self->push(status);
    self->push(BodyItem{.json = placement_json(self->engine_.placement())});
  });
}

void EngineCall::push(Item item) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (const auto* event = std::get_if<PromptItem>(&item);
      event != nullptr && std::holds_alternative<DoneEvent>(event->event)) {
    ended_[event->prompt_idx] = true;
    std::erase_if(running_, [event](const Running& running) { return running.prompt_idx == event->prompt_idx; });
  }
  items_.push_back(std::move(item));
  // One wake-up for all that comes before the connection looks: that is what coalesces writes.
  if (!std::exchange(wake_pending_, true)) wake_();
}

std::vector<EngineCall::Item> EngineCall::take() {
  const std::lock_guard lock(mutex_);
  wake_pending_ = false;
  return std::exchange(items_, {});
}

bool EngineCall::add_running(std::size_t prompt_idx, RequestId id) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (!ended_[prompt_idx]) running_.push_back({.prompt_idx = prompt_idx, .id = id});
  return true;
}

void EngineCall::close() {
  std::vector<Running> left;
  std::vector<Item> dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_ = nullptr;
    left.swap(running_);
    dropped.swap(items_);
  }
  // Outside the lock: the engine may answer a cancellation with events at once.
  for (const Running& running : left) engine_.cancel(running.id);
}

bool EngineCall::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace tandem
