// One step loop with a share of the compute: receives plans, runs the model, samples, answers. It decides nothing and
// knows no request; all it keeps from one step to the next are the tokens it drew, for plans that were sent ahead, and
// buffers. Owned and used by the worker's main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "ipc/control_page.h"
#include "model/decoder.h"
#include "tandem/backend.h"
#include "tandem/transport.h"
#include "worker/sampled_tokens.h"

namespace tandem {

class Lane final {
 public:
  // All references outlive the lane. `num_blocks` bounds the block ids a plan may name.
  // `counters` tell the pool which steps are over, and the scheduler that the lane lives: it beats with every layer.
  Lane(Decoder& decoder, Backend& backend, Stream& stream, KvView kv, std::uint32_t num_blocks, LaneCounters& counters);

  // Runs one plan into `result`. A plan that names what does not exist gives a result with an error.
  void step(const Plan& plan, Result& result);

  // Receives and answers until the port fails, or `keep_going` is false when no plan has come for a while: it may cost
  // a system call, and who sends plans is alive. Unavailable (the scheduler is gone) is an ordinary end.
  absl::Status run(WorkerPort& port, const std::function<bool()>& keep_going);

 private:
  // A row of the batch whose logits are wanted, and what for.
  struct LogitRow {
    std::uint32_t item = 0;
    std::int32_t score = -1;  // index into result.scores, or -1: the item's sample
    Run counts;  // in counts_, of a sample
  };

  void beat() { counters_.heartbeat.fetch_add(1, std::memory_order_relaxed); }
  absl::Status check(const Plan& plan) const;
  absl::Status check_item(const Plan& plan, const PlanItem& item) const;
  static void drop_large_answers(Result& result);
  void build_batch(const Plan& plan, Result& result);
  void add_rows(const Plan& plan, const PlanItem& item);
  Run add_counts(const Plan& plan, const PlanItem& item);
  void run_batch(const Plan& plan, Result& result);
  void sample_slice(const Plan& plan, std::size_t begin, std::size_t count, Result& result);

  Decoder& decoder_;
  Backend& backend_;
  Stream& stream_;
  KvView kv_;
  std::uint32_t num_blocks_;
  LaneCounters& counters_;
  SampledTokens tails_;

  // Reused from step to step.
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<LogitRow> logit_uses_;
  std::vector<SampleRow> sample_rows_;
  std::vector<TokenCount> counts_;
  std::vector<Sampled> sampled_;
};

}  // namespace tandem
