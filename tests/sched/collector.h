// A scheduler's listener that remembers what became of each sequence. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fmt/core.h"
#include "gtest/gtest.h"
#include "sched/sequence.h"

namespace tandem::test {

class Collector final : public SequenceListener {
 public:
  struct Outcome {
    std::vector<TokenId> tokens;
    std::vector<float> scores;
    std::optional<std::uint32_t> cached;
    bool finished = false;
    std::uint64_t started_at = 0;  // in the order of starts, from 1 on; 0: not yet
    FinishReason reason = FinishReason::kStop;
    absl::Status status;
  };

  void on_start(SequenceId id, std::uint32_t cached_tokens) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(outcomes_[id.value].cached) << "sequence " << id.value << " started twice";
    outcomes_[id.value].cached = cached_tokens;
    outcomes_[id.value].started_at = ++starts_;
  }
  void on_scores(SequenceId id, std::span<const Sampled> scores, std::span<const float>) override {
    const std::lock_guard lock(mutex_);
    for (const Sampled& score : scores) outcomes_[id.value].scores.push_back(score.logprob);
  }
  void on_token(SequenceId id, const Sampled& sampled) override {
    const std::lock_guard lock(mutex_);
    outcomes_[id.value].tokens.push_back(sampled.token);
    changed_.notify_all();
  }
  void on_finish(SequenceId id, FinishReason reason, const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    Outcome& outcome = outcomes_[id.value];
    EXPECT_FALSE(outcome.finished) << "sequence " << id.value << " finished twice";
    outcome.finished = true;
    outcome.reason = reason;
    outcome.status = status;
    changed_.notify_all();
  }

  // Waits until the predicate holds over the outcomes. If it does not, the test fails here and names what is missing.
  bool wait(const std::function<bool(std::map<std::uint64_t, Outcome>&)>& predicate) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kPatience, [&] { return predicate(outcomes_); })) return true;
    std::string open;
    for (const auto& [id, outcome] : outcomes_) {
      if (!outcome.finished) open += fmt::format(" {} ({} tokens)", id, outcome.tokens.size());
    }
    ADD_FAILURE() << "after " << kPatience.count()
                  << " s these sequences have begun and not ended:" << (open.empty() ? " none" : open) << "; "
                  << outcomes_.size() << " are known";
    return false;
  }
  bool wait_finished(std::size_t count) {
    return wait([count](auto& outcomes) {
      return static_cast<std::size_t>(std::ranges::count_if(outcomes, [](auto& o) { return o.second.finished; })) >=
             count;
    });
  }
  Outcome outcome(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    return outcomes_[id];
  }

 private:
  static constexpr std::chrono::seconds kPatience{20};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Outcome> outcomes_;
  std::uint64_t starts_ = 0;
};

}  // namespace tandem::test
