// A lane as the scheduler sees it: its port while its worker lives, and the steps it has. Scheduler thread only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "sched/scheduler_message.h"
#include "sched/sequence.h"
#include "tandem/transport.h"

namespace tandem {

// A plan that was sent and whose result is not read yet.
struct LaneStep {
  // What was asked; the answer is checked against it.
  struct Item {
    Sequence* sequence = nullptr;  // null: it has ended meanwhile
    std::uint32_t num_tokens = 0;
    bool void_answer = false;  // an earlier step of the sequence failed: this one's answer is not used
    SequenceId id;
    std::uint32_t num_scores = 0;
    bool wants_token = false;
    bool wants_logits = false;
    std::int32_t most_alternatives = 0;  // of the token and of each score
  };
  std::uint64_t number = 0;
  std::vector<Item> items;
  bool decodes = false;
  std::uint32_t prefill_tokens = 0;  // of prompts, or of text that is computed again
  std::uint32_t num_tokens = 0;      // in all
  bool continues_decode =
      false;  // some sequence also decoded in the step before: the lane's waiting time then counts as a stall
  std::int64_t sent_us = 0;
  std::size_t bytes = 0;         // of the plan's message
  std::size_t answer_bytes = 0;  // of the result's, at most
};

struct LaneState {
  std::unique_ptr<LanePort> port;  // null: down
  bool suspects_last = false;      // its last plan was of suspects
  std::uint64_t epoch = 0;         // whose port it is, or was
  std::optional<LaneUpMessage> next;  // takes over between two steps
  std::list<LaneStep> in_flight;   // oldest first; empty: idle
  std::list<LaneStep> spare;       // over; kept for their memory
  Plan plan;
  LaneStep planned;  // what the plan is made of
  bool prompts_first = false;  // the last plan was full before the first prompt: the next one takes prompts first
  Result result;
  std::int64_t ended_us = 0;  // when the result of its last step was read
  std::uint64_t heartbeat = 0;  // last seen
  std::int64_t heartbeat_read_us = 0;   // when `heartbeat` was read
  std::int64_t heartbeat_silent_us = 0;   // time without a new heartbeat while a step was under way
};

}  // namespace tandem
