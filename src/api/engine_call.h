// The engine's side of one HTTP call: submits its requests, collects their events for the connection's thread, cancels
// what is left. shared_ptr owners: the connection, the job that parses a large body, and the sinks of the engine's
// running requests. A sink may fire long after the connection is gone: it then finds the call closed and drops the
// event. Any thread may push; a mutex guards the queue, as in any queue. `wake` runs under it and only while the call
// is open, so what it posts to is alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "api/openai.h"
#include "tandem/engine.h"

namespace tandem {

class EngineCall final : public std::enable_shared_from_this<EngineCall> {
 public:
  struct PromptItem {
    std::size_t prompt_idx = 0;
    Event event;
  };
  struct BodyItem {
    std::string json;  // a finished reply that is no request's
  };
  // The parsed call comes before any event of its requests; a Status says that parsing or submitting failed.
  using Item = std::variant<ApiCall, PromptItem, BodyItem, absl::Status>;

  EngineCall(Engine& engine, std::function<void()> wake) : engine_(engine), wake_(std::move(wake)) {}

  // Submits every request of the call, in order; the first failure ends it. Any thread, once.
  void submit(ApiCall call);
  // Changes the placement as the body says; the reply comes when that is in effect. Any thread, once.
  void set_placement(std::string_view body);
  void push(Item item);
  // Moves out what has come since the last take. Connection's thread.
  std::vector<Item> take();
  // Cancels the requests that still run and drops whatever comes later. Any thread, any number of times.
  void close();
  bool closed() const;

 private:
  struct Running {
    std::size_t prompt_idx = 0;
    RequestId id;
  };

  // False: the call was closed meanwhile and the caller has to cancel the request itself.
  bool add_running(std::size_t prompt_idx, RequestId id);

  Engine& engine_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<Item> items_;
  std::vector<Running> running_;
  std::vector<bool> ended_;  // by prompt: its DoneEvent has come, perhaps before submit() returned its id
  bool wake_pending_ = false;
  bool closed_ = false;
};

}  // namespace tandem
