// Decides which sequences each lane computes next. A turn drains the inbox, applies the lanes' results, admits waiting
// sequences as far as the KV pool has room, asks the policies, and sends plans. One thread owns every sequence and runs
// the turns; other threads post messages. It moves ids and numbers: no text, no tensors, no sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "ipc/control_page.h"
#include "memory/kv_pool.h"
#include "sched/lane_state.h"
#include "sched/plan_builder.h"
#include "sched/prefill_speed.h"
#include "sched/running_sequences.h"
#include "sched/scheduler_message.h"
#include "sched/scheduler_metrics.h"
#include "sched/scheduler_options.h"
#include "sched/sequence.h"
#include "sched/suspects.h"
#include "sched/waiting_queue.h"
#include "tandem/transport.h"

namespace tandem {

class Scheduler final {
 public:
  // All references outlive the scheduler. `give_up_lane` is told of a lane's epoch that is damaged or hangs: its
  // process is to be ended, and lane_down() called when it has.
  Scheduler(SchedulerOptions options, KvPool& pool, ControlPage& control, SequenceListener& listener,
            MetricRegistry& metrics, std::function<void(LaneId, std::uint64_t epoch)> give_up_lane);
  ~Scheduler();
  // Runs turns on a thread of its own until stop().
  void start();
  // One turn, on the calling thread, for whoever drives the scheduler without start(). False: nothing happened, and
  // nothing will before a message, a result or a heartbeat's time limit.
  bool turn();
  // Ends every sequence with `status` and joins the thread.
  void stop(const absl::Status& status);

  // Any thread. What takes time in proportion to a prompt happens here, on the calling thread. With a salt, sequences
  // whose prompts have the same salt share blocks; without, they share none.
  std::shared_ptr<const PromptFacts> prepare(std::vector<TokenId> prompt, const SampleRow& sampling,
                                             std::optional<std::string_view> salt) const;
  // Any thread. ResourceExhausted when the queue is full, Unavailable after stop().
  absl::Status submit(std::vector<SequenceRequest> sequences);
  void cancel(SequenceId id);
  void flush_cache();  // of prefixes
  // The worker of the lane's epoch is ready and serves from the next step on; `taken` is called on the
  // scheduler's thread when the one before, if any, is not used any more.
  void lane_up(LaneId lane, std::unique_ptr<LanePort> port, std::uint64_t epoch = 0, std::function<void()> taken = {});
  void lane_down(LaneId lane, std::uint64_t epoch = 0);  // the process of that epoch has ended
  // The process of that epoch was killed and does not end: its requests are ended with an error. What they hold is not
  // reused before lane_down().
  void lane_stuck(LaneId lane, std::uint64_t epoch);
  void set_decode_units(std::uint16_t units) { decode_units_.store(units); }  // from each lane's next step on
  std::uint16_t decode_units() const { return decode_units_.load(); }
  SchedulerLoad load() const;

 private:
  void post(SchedulerMessage message);
  void run();
  void end();
  bool drain_inbox();
  bool poll_lanes();
  bool send_plans();
  bool make_plan(LaneId id, LaneState& lane, const PlacementView& view);
  void send_plan(LaneId id, LaneState& lane);
  bool hangs(std::uint32_t id, LaneState& lane) const;
  void fail_step(LaneStep& step, const std::string& error);
  void compose(LaneId id, LaneState& lane, const LaneDuty& duty);
  void enqueue(std::unique_ptr<Sequence> sequence);
  absl::StatusOr<bool> read_result(LaneId id, LaneState& lane);
  void note_completed(LaneId id);
  void apply(LaneState& lane);
  void apply_item(Sequence& sequence, std::uint32_t num_tokens, const Result& result, const ResultItem& item);
  void fail_item(Sequence& sequence, ItemStatus status);
  bool accept_token(Sequence& sequence, const Sampled& sampled);
  void lose_lane(LaneId id, std::string_view why);
  void handle_lane_down(LaneId id, std::uint64_t epoch);
  void handle_lane_stuck(LaneId id, std::uint64_t epoch);
  PlacementView placement_view() const;
  Urgency urgency(const Sequence& sequence) const;
  void collect_idle(Phase phase, std::optional<std::uint32_t> group);
  void sort_by_urgency();
  bool a_lane_can_begin_prompts() const;
  void admit_waiting();
  bool admit(Sequence& sequence);
  void add_decodes(LaneId id, LaneState& lane);
  void add_decodes_ahead(LaneId id, LaneState& lane);
  void add_prefills(LaneId id, LaneState& lane);
  bool has_room(const Plan& plan, const Sequence& sequence, std::uint32_t num_tokens) const;
  void add_item(LaneId id, LaneState& lane, Sequence& sequence, std::uint32_t num_tokens);
  absl::Status cover(Sequence& sequence, std::uint32_t num_tokens);
  bool reserve_for(Sequence& sequence, std::uint32_t num_tokens);
  bool preempt_for(const Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, const absl::Status& status);
  void publish_load();

  const SchedulerOptions options_;
  KvPool& pool_;
  ControlPage& control_;
  SequenceListener& listener_;
  const std::function<void(LaneId, std::uint64_t)> give_up_lane_;
  PlanBuilder builder_;

  std::mutex inbox_mutex_;
  std::vector<SchedulerMessage> inbox_;
  bool stopping_ = false;  // guarded by inbox_mutex_
  absl::Status stop_status_;  // guarded by inbox_mutex_
  std::vector<SchedulerMessage> drained_;
  bool ended_ = false;

  std::vector<LaneState> lanes_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
  RunningSequences running_;
  std::vector<Sequence*> candidates_;  // looked at for one plan; kept for its memory
  PrefillSpeed prefill_speed_;
  Suspects suspects_;
  std::uint32_t group_ = 0;  // of the plan that is made (suspects.h)

  std::atomic<std::uint16_t> decode_units_;
  std::atomic<std::uint32_t> queued_{0};  // submitted and not yet admitted
  std::atomic<std::uint32_t> load_running_{0}, load_used_{0}, load_total_{0}, load_lanes_{0};

  SchedulerMetrics metrics_;
  std::thread thread_;
};

}  // namespace tandem
