// Progress is a property of every turn: as long as a sequence is admitted or can be, a turn leaves a plan at a lane.
// Random operations over a scheduler that is driven turn by turn, and the known ways to break the property one by one.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "sched/turn_rig.h"

namespace tandem {
namespace {

using test::kBlockTokens;
using test::make_request;
using test::TurnRig;
using test::TurnRigOptions;

class BothPlacements : public ::testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Progress, BothPlacements, ::testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

void expect_output(TurnRig& rig, const std::vector<SequenceRequest>& requests) {
  for (const SequenceRequest& request : requests) {
    EXPECT_EQ(rig.collector.outcome(request.id.value).tokens, test::expected_output(request))
        << "sequence " << request.id.value;
  }
}

// Each fits the pool alone, together they do not, and nothing else runs. The later one is shorter, so it is the more
// urgent one; or the other way round; or its priority makes it so.
TEST_P(BothPlacements, two_prompts_that_do_not_fit_together_are_computed_one_after_the_other) {
  struct Case {
    std::size_t first, second;
    std::int32_t priority;  // of the second
  };
  for (const Case& each : {Case{120, 60, 0}, Case{60, 120, 0}, Case{120, 60, 1}, Case{60, 120, 1}, Case{60, 120, -1}}) {
    SCOPED_TRACE(testing::Message() << each.first << " then " << each.second << " of priority " << each.priority);
    TurnRig rig({.num_blocks = 40, .placement = GetParam()});
    std::vector<SequenceRequest> requests{make_request(1, each.first, 4), make_request(2, each.second, 4)};
    requests[1].priority = each.priority;
    rig.submit_now(requests[0]);
    rig.step(0);
    rig.submit_now(requests[1]);
    EXPECT_TRUE(rig.finish_all());
    expect_output(rig, requests);
  }
}

// Three: the third shares the first one's blocks and waits for them, the second fits only when the first has ended.
TEST_P(BothPlacements, a_prompt_that_does_not_fit_stops_nobody_who_computes_what_others_await) {
  TurnRig rig({.num_blocks = 40, .placement = GetParam(), .prefix_identity = "model"});
  std::vector<SequenceRequest> requests{make_request(1, 100, 4), make_request(2, 80, 4), make_request(1, 100, 4)};
  requests[2].id = SequenceId{3};
  requests[1].priority = 1;
  requests[2].priority = 2;
  rig.submit_now(requests[0]);
  rig.step(0);
  rig.submit_now(requests[2]);
  rig.submit_now(requests[1]);
  EXPECT_TRUE(rig.finish_all());
  expect_output(rig, requests);
  EXPECT_EQ(rig.collector.outcome(3).cached, 96U);
}

// An urgent prompt waits for a less urgent one that computes the same blocks. A third one of an urgency between them
// must not be served before the one that the urgent prompt waits for.
TEST_P(BothPlacements, who_computes_blocks_for_an_urgent_prompt_is_as_urgent) {
  TurnRig rig({.placement = GetParam(), .prefix_identity = "model"});
  std::vector<SequenceRequest> requests{make_request(1, 64, 2), make_request(2, 64, 2), make_request(1, 64, 2)};
  requests[2].id = SequenceId{3};
  requests[1].priority = 1;
  requests[2].priority = 2;
  rig.submit_now(requests[0]);
  rig.submit_now(requests[2]);
  rig.submit_now(requests[1]);
  while (rig.collector.outcome(3).tokens.empty()) {
    ASSERT_FALSE(rig.prefill_lane().idle());
    EXPECT_NE(rig.prefill_lane().plans().front().items.front().sequence, SequenceId{2});
    rig.step(0);
  }
  EXPECT_EQ(rig.collector.outcome(3).cached, 60U);
  EXPECT_TRUE(rig.finish_all());
  expect_output(rig, requests);
}

// The leader of others goes: cancelled, preempted, or its lane dies. Those who followed do it themselves.
TEST_P(BothPlacements, who_waits_for_blocks_does_not_wait_for_one_that_is_gone) {
  for (const bool cancel : {true, false}) {
    TurnRig rig({.placement = GetParam(), .prefix_identity = "model"});
    std::vector<SequenceRequest> requests;
    for (std::uint64_t id = 1; id <= 3; ++id) {
      requests.push_back(make_request(1, 64, 2));
      requests.back().id = SequenceId{id};
      rig.submit_now(requests.back());
    }
    rig.step(0);
    if (cancel) {
      rig.scheduler->cancel(SequenceId{1});
      requests.erase(requests.begin());
    } else {
      rig.lose(0);
      rig.scheduler->turn();
      rig.raise(0);
    }
    rig.scheduler->turn();
    EXPECT_TRUE(rig.finish_all());
    expect_output(rig, requests);
  }
}

// Decodes whose items fill the plan, in one lane with prompts: both get on.
TEST(FusedPlan, decodes_that_fill_the_plan_leave_prompts_their_turn) {
  TurnRig rig({.num_blocks = 400, .placement = Placement::kFused, .ring_bytes = 16'000});
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    requests.push_back(make_request(id, 6, 200));
    requests.back().bias.assign(500, TokenLogprob{1, 0.0F});  // 4,000 bytes of each plan
    rig.submit_now(requests.back());
  }
  std::size_t steps = 0;
  for (; rig.collector.outcome(6).tokens.empty(); ++steps) {
    ASSERT_LT(steps, 60U) << "a prompt waits for decodes that have no end";
    rig.step(0);
  }
  // A prompt's step is followed by one for the decodes, so that they do not wait for prompts either.
  EXPECT_GE(rig.collector.outcome(1).tokens.size() + 3, steps / 2);
  EXPECT_TRUE(rig.finish_all());
  expect_output(rig, requests);
}

// ---- random operations ------------------------------------------------------------------------------------------

using Config = std::tuple<Placement, std::string, std::uint32_t>;  // and prefix identity, look-ahead

class RandomOperations : public ::testing::TestWithParam<Config> {
 protected:
  Placement placement() const { return std::get<0>(GetParam()); }
  const std::string& identity() const { return std::get<1>(GetParam()); }
  std::uint32_t look_ahead() const { return std::get<2>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Progress, RandomOperations,
                         ::testing::Combine(::testing::Values(Placement::kSemi, Placement::kFused),
                                            ::testing::Values("", "model"), ::testing::Values(0U, 2U)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param) == Placement::kSemi ? "semi" : "fused") +
                                  (std::get<1>(each.param).empty() ? "_plain_" : "_cached_") +
                                  std::to_string(std::get<2>(each.param));
                         });

// A scheduler, what was asked of it, and the property.
class World {
 public:
  World(unsigned seed, Placement placement, const std::string& identity, std::uint32_t look_ahead)
      : random_(seed),
        num_blocks_(between(6, 40)),
        max_running_(between(2, 6)),
        rig_({.num_blocks = num_blocks_,
              .placement = placement,
              .max_running = max_running_,
              .prefix_identity = identity,
              .look_ahead_steps = look_ahead}) {}

  void operate() {
    const std::uint32_t lane = between(0, rig_.num_lanes() - 1);
    switch (between(0, 19)) {
      case 0:
      case 1:
      case 2:
      case 3: return submit();
      case 4: return cancel();
      case 5: return rig_.up(lane) ? lose(lane) : rig_.raise(lane);
      case 6: return rig_.up(lane) ? void() : rig_.raise(lane);
      default: return rig_.up(lane) && !rig_.lane(lane).idle() ? rig_.lane(lane).answer() : void();
    }
  }
  void turn() { rig_.scheduler->turn(); }

  // After one turn. Nothing of this looks into the scheduler: what runs and waits is what it says of itself.
  void expect_progress() {
    const SchedulerLoad load = rig_.scheduler->load();
    std::uint32_t prompt_lane = 0;  // in semi placement the other lane takes its work while it is down
    if (!rig_.up(0)) prompt_lane = rig_.num_lanes() - 1;
    if (!rig_.up(prompt_lane)) return;
    bool idle = true;
    for (std::uint32_t id = 0; id < rig_.num_lanes(); ++id) idle &= !rig_.up(id) || rig_.lane(id).idle();
    ASSERT_FALSE(idle && load.running + load.waiting > 0)
        << load.running << " running and " << load.waiting << " waiting, and every lane is idle";
    if (!rig_.lane(prompt_lane).idle()) return;
    ASSERT_LE(rig_.control->server.prefill_sequences, prefills_in_flight())
        << "admitted prompts, and their lane is idle";
    if (load.waiting == 0 || load.running >= max_running_ || prefills_in_flight() > 0) return;
    ASSERT_LT(rig_.pool->usage().free, most_blocks() + 1) << "there is room for whoever waits";
  }

  void finish() {
    for (std::uint32_t id = 0; id < rig_.num_lanes(); ++id) {
      if (!rig_.up(id)) rig_.raise(id);
    }
    turn();
    ASSERT_TRUE(rig_.finish_all(20'000)) << "it goes on without end";
    for (const SequenceRequest& request : requests_) {
      const auto outcome = rig_.collector.outcome(request.id.value);
      ASSERT_TRUE(outcome.finished) << "sequence " << request.id.value;
      std::vector<TokenId> expected = test::expected_output(request);
      if (cancelled_.contains(request.id.value) || !outcome.status.ok()) expected.resize(outcome.tokens.size());
      EXPECT_EQ(outcome.tokens, expected) << "sequence " << request.id.value;
    }
    const KvPoolUsage usage = rig_.ledger_usage();
    EXPECT_EQ(usage.held + usage.retiring, 0U);
  }

 private:
  std::uint32_t between(std::uint32_t least, std::uint32_t most) {
    return least + static_cast<std::uint32_t>(random_() % (most - least + 1));
  }
  // Long prompts are as likely as short ones, and some fill the pool; three beginnings are shared.
  void submit() {
    const std::uint32_t room = (num_blocks_ - 1) * kBlockTokens;
    const std::uint32_t max_tokens = between(1, 12);
    const std::uint32_t prompt_tokens = between(1, room - max_tokens);
    std::vector<TokenId> prompt = make_request(between(1, 3), between(0, prompt_tokens), 1).prompt->tokens;
    while (prompt.size() < prompt_tokens) prompt.push_back(static_cast<TokenId>(between(0, test::kFakeVocab - 1)));
    SequenceRequest request;
    request.id = SequenceId{requests_.size() + 1};
    test::set_prompt(request, std::move(prompt));
    request.max_tokens = max_tokens;
    request.priority = static_cast<std::int32_t>(between(0, 2));
    request.arrival_us = between(0, 1'000'000);
    requests_.push_back(request);
    ASSERT_TRUE(rig_.submit({request}).ok());
  }
  void cancel() {
    if (requests_.empty()) return;
    const std::uint64_t id = between(1, static_cast<std::uint32_t>(requests_.size()));
    cancelled_.insert(id);
    rig_.scheduler->cancel(SequenceId{id});
  }
  // Its oldest step may have been computed without an answer.
  void lose(std::uint32_t lane) { rig_.lose(lane); }
  // Sequences that a lane prefills now: in semi placement the decode lane may still be at work for a lane that was
  // down.
  std::uint32_t prefills_in_flight() {
    std::set<std::uint64_t> sequences;
    for (std::uint32_t id = 0; id < rig_.num_lanes(); ++id) {
      if (!rig_.up(id)) continue;
      for (const Plan& plan : rig_.lane(id).plans()) {
        for (const PlanItem& item : plan.items) {
          const auto outcome = rig_.collector.outcome(item.sequence.value);
          if (outcome.finished) continue;
          const std::size_t generated = outcome.tokens.size();
          const std::size_t known = requests_[item.sequence.value - 1].prompt->tokens.size() + generated;
          const bool decodes = generated > 0 && item.position == known - 1 + item.unknown_tokens;
          if (!decodes) sequences.insert(item.sequence.value);
        }
      }
    }
    return static_cast<std::uint32_t>(sequences.size());
  }
  // That any sequence which is not over can need.
  std::uint32_t most_blocks() {
    std::uint32_t most = 0;
    for (const SequenceRequest& request : requests_) {
      const auto outcome = rig_.collector.outcome(request.id.value);
      if (outcome.finished) continue;
      const auto tokens = static_cast<std::uint32_t>(request.prompt->tokens.size() + outcome.tokens.size());
      most = std::max(most, (tokens + kBlockTokens - 1) / kBlockTokens);
    }
    return most;
  }

  std::mt19937 random_;
  const std::uint32_t num_blocks_, max_running_;
  TurnRig rig_;
  std::vector<SequenceRequest> requests_;
  std::set<std::uint64_t> cancelled_;
};

TEST_P(RandomOperations, a_turn_leaves_no_lane_idle_that_has_work) {
  constexpr unsigned kSeeds = 200;
  constexpr int kOperations = 150;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World run(seed, placement(), identity(), look_ahead());
    for (int i = 0; i < kOperations; ++i) {
      run.operate();
      run.turn();
      run.expect_progress();
      if (HasFatalFailure()) return;
    }
    run.finish();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem
