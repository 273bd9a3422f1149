// Workers that lie, fail or die: nothing of a wrong answer reaches a listener, one bad request ends alone, and everyone
// else gets the output that it would get alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "sched/collector.h"
#include "sched/scheduler_rig.h"
#include "support/inline_lane.h"

namespace tandem {
namespace {

using test::Collector;
using test::InlineLanes;
using test::kFakeVocab;
using test::Rig;

// A scheduler over lanes that answer inline.
class Bench : public test::HeapInstance {
 public:
  Bench(Placement placement, InlineLanes::Tamper tamper, std::uint32_t look_ahead_steps = 1)
      : HeapInstance(400, test::kBlockTokens, placement == Placement::kSemi ? 2 : 1), lanes_(*this, std::move(tamper)) {
    SchedulerOptions options;
    options.placement = placement;
    options.num_units = 2;
    options.max_running_sequences = 32;
    options.max_queued_sequences = 200;
    options.plan = {test::kBlockTokens, 32, 32, std::size_t{1} << 20, std::size_t{1} << 19, kFakeVocab};
    options.look_ahead_steps = look_ahead_steps;
    scheduler = std::make_unique<Scheduler>(options, *pool, *control, collector, metrics,
                                            [this](LaneId lane, std::uint64_t epoch) { lanes_.give_up(lane, epoch); });
    lanes_.start(*scheduler, placement == Placement::kSemi ? 2 : 1);
    scheduler->start();
  }
  ~Bench() {
    lanes_.stop();
    scheduler->stop(absl::UnavailableError("test over"));
  }

  void submit(const std::vector<SequenceRequest>& requests) {
    std::vector<SequenceRequest> copy = requests;
    ASSERT_TRUE(scheduler->submit(std::move(copy)).ok());
  }
  bool wait_finished(SequenceId id) {
    return collector.wait([id](auto& outcomes) { return outcomes[id.value].finished; });
  }
  absl::Status status(SequenceId id) { return collector.outcome(id.value).status; }
  std::vector<TokenId> tokens(SequenceId id) { return collector.outcome(id.value).tokens; }
  int given_up() const { return lanes_.given_up; }
  int deaths() const { return lanes_.deaths; }

  Collector collector;
  std::unique_ptr<Scheduler> scheduler;

 private:
  InlineLanes lanes_;
};

bool names(const Plan& plan, const std::set<std::uint64_t>& ids) {
  return std::ranges::any_of(plan.items, [&](const PlanItem& item) { return ids.contains(item.sequence.value); });
}

class UntrustedLane : public testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Placements, UntrustedLane, testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

TEST_P(UntrustedLane, every_wrong_answer_loses_the_lane_and_changes_nothing) {
  struct Lie {
    const char* name;
    std::function<void(Result&)> tell;
  };
  const Lie lies[] = {
      {"another step", [](Result& r) { ++r.step; }},
      {"an earlier step", [](Result& r) { --r.step; }},
      {"an item too many", [](Result& r) { r.items.push_back(r.items.back()); }},
      {"an item too few", [](Result& r) { r.items.pop_back(); }},
      {"another sequence", [](Result& r) { r.items[0].sequence = SequenceId{999}; }},
      {"swapped answers", [](Result& r) { std::swap(r.items.front(), r.items.back()); }},
      {"a negative token", [](Result& r) { r.items[0].sampled.token = -7; }},
      {"a token past the vocabulary", [](Result& r) { r.items[0].sampled.token = kFakeVocab; }},
      {"no token", [](Result& r) { r.items[0].has_token = 0; }},
      {"scores that nobody asked for",
       [](Result& r) {
         r.scores.resize(64);
         r.items[0].scores = {0, 64};
       }},
      {"logits that nobody asked for",
       [](Result& r) {
         r.logits.resize(kFakeVocab);
         r.items[0].logits = {0, static_cast<std::uint32_t>(kFakeVocab)};
       }},
      {"alternatives that nobody asked for", [](Result& r) { r.items[0].sampled.num_top = 3; }},
      {"a probability that is no number",
       [](Result& r) { r.items[0].sampled.logprob = std::numeric_limits<float>::quiet_NaN(); }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    std::atomic<int> told{0};
    Bench bench(GetParam(), [&](const Plan& plan, Result& result) {
      // Once, in a step that has two items, each with a token.
      const bool full = plan.items.size() == 2 && plan.items[0].wants_sample != 0 && plan.items[1].wants_sample != 0;
      if (full && told.exchange(1) == 0) lie.tell(result);
      return true;
    });
    const std::vector<SequenceRequest> requests{Rig::request(1, 6, 12), Rig::request(2, 6, 12)};
    bench.submit(requests);
    for (const SequenceRequest& request : requests) {
      ASSERT_TRUE(bench.wait_finished(request.id));
      EXPECT_TRUE(bench.status(request.id).ok()) << bench.status(request.id);
      EXPECT_EQ(bench.tokens(request.id), Rig::expected(request));
    }
    EXPECT_EQ(told, 1);
    EXPECT_EQ(bench.given_up(), 1);
  }
}

TEST_P(UntrustedLane, scores_and_logits_are_checked_against_what_was_asked) {
  struct Lie {
    const char* name;
    std::function<void(Result&)> tell;
  };
  const Lie lies[] = {
      {"a score too few", [](Result& r) { --r.items[0].scores.count; }},
      {"a score too many",
       [](Result& r) {
         r.scores.resize(r.scores.size() + 1);
         ++r.items[0].scores.count;
       }},
      {"a score of a token that is none", [](Result& r) { r.scores[2].token = kFakeVocab; }},
      {"a score that is no number", [](Result& r) { r.scores[2].logprob = std::numeric_limits<float>::quiet_NaN(); }},
      {"an alternative that is none",
       [](Result& r) {
         r.scores[2].num_top = 1;
         r.scores[2].top[0] = {-1, 0.0F};
       }},
      {"fewer logits", [](Result& r) { --r.items[0].logits.count; }},
      {"no logits", [](Result& r) { r.items[0].logits.count = 0; }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    std::atomic<int> told{0};
    Bench bench(GetParam(), [&](const Plan&, Result& result) {
      if (told.exchange(1) == 0) lie.tell(result);
      return true;
    });
    SequenceRequest request = Rig::request(1, 6, 3);
    request.score_prompt = true;
    request.wants_logits = true;
    request.sampling.wants_logprob = true;
    request.sampling.num_top_logprobs = 2;
    bench.submit({request});
    ASSERT_TRUE(bench.wait_finished(request.id));
    EXPECT_TRUE(bench.status(request.id).ok()) << bench.status(request.id);
    EXPECT_EQ(bench.tokens(request.id), Rig::expected(request));
    EXPECT_EQ(bench.given_up(), 1);
  }
}

// Any change of any byte that the front end reads: the lane is lost or the output is right.
TEST_P(UntrustedLane, random_lies_never_change_an_output_that_is_delivered_whole) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::atomic<int> lies{0};
  Bench bench(GetParam(), [&](const Plan&, Result& result) {
    if (random() % 8 != 0 || result.items.empty()) return true;
    ++lies;
    ResultItem& item = result.items[random() % result.items.size()];
    switch (random() % 8) {
      case 0: result.step = random(); break;
      case 1: item.sequence.value ^= std::uint64_t{1} << random() % 64; break;
      case 2: item.has_token ^= 1; break;
      case 3: item.sampled.token = kFakeVocab + static_cast<TokenId>(random() % 1000); break;
      case 4:
        item.scores.count += 1 + random() % 5;
        result.scores.resize(item.scores.begin + item.scores.count);
        break;
      case 5:
        item.logits.count += 1;
        result.logits.resize(item.logits.begin + item.logits.count);
        break;
      case 6: item.sampled.num_top = 1 + static_cast<std::int32_t>(random() % kMaxTopLogprobs); break;
      default: return false;  // or it dies
    }
    return true;
  });
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 12; ++id) requests.push_back(Rig::request(id, 3 + id, 20));
  bench.submit(requests);
  for (const SequenceRequest& request : requests) {
    ASSERT_TRUE(bench.wait_finished(request.id)) << "it does not go on";
    // One that ran alone in three lost steps in a row may have been taken for guilty.
    if (!bench.status(request.id).ok()) continue;
    EXPECT_EQ(bench.tokens(request.id), Rig::expected(request));
  }
  EXPECT_GT(lies, 0);
}

class Blame : public testing::TestWithParam<std::tuple<Placement, int>> {};
INSTANTIATE_TEST_SUITE_P(Placements, Blame,
                         testing::Combine(testing::Values(Placement::kSemi, Placement::kFused),
                                          testing::Values(0, 1, 4)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param) == Placement::kSemi ? "semi" : "fused") +
                                  "_ahead_" + std::to_string(std::get<1>(each.param));
                         });

void expect_only_guilty_fail(Bench& bench, const std::vector<SequenceRequest>& requests,
                             const std::set<std::uint64_t>& guilty) {
  for (const SequenceRequest& request : requests) {
    ASSERT_TRUE(bench.wait_finished(request.id)) << "sequence " << request.id.value << " does not go on";
    if (guilty.contains(request.id.value)) {
      EXPECT_TRUE(absl::IsInternal(bench.status(request.id))) << request.id.value;
    } else {
      EXPECT_TRUE(bench.status(request.id).ok()) << request.id.value << ": " << bench.status(request.id);
      EXPECT_EQ(bench.tokens(request.id), Rig::expected(request)) << request.id.value;
    }
  }
}

TEST_P(Blame, a_request_that_kills_its_worker_ends_alone) {
  for (const std::set<std::uint64_t>& guilty : {std::set<std::uint64_t>{3}, std::set<std::uint64_t>{1, 8}}) {
    Bench bench(
        std::get<0>(GetParam()), [&](const Plan& plan, Result&) { return !names(plan, guilty); },
        static_cast<std::uint32_t>(std::get<1>(GetParam())));
    std::vector<SequenceRequest> requests;
    for (std::uint64_t id = 1; id <= 8; ++id) requests.push_back(Rig::request(id, 4, 30));
    bench.submit(requests);
    expect_only_guilty_fail(bench, requests, guilty);
    // Halving the suspects: each guilty one costs log2(8) halvings and its three lone losses, at most.
    EXPECT_LE(bench.deaths(), static_cast<int>(guilty.size()) * (3 + 3));
  }
}

// It reads well and kills when it decodes.
TEST_P(Blame, a_request_that_kills_late_ends_alone) {
  Bench bench(
      std::get<0>(GetParam()),
      [&](const Plan& plan, Result&) {
        return std::ranges::none_of(
            plan.items, [](const PlanItem& item) { return item.sequence.value == 5 && item.position >= 12; });
      },
      static_cast<std::uint32_t>(std::get<1>(GetParam())));
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) requests.push_back(Rig::request(id, 4, 30));
  bench.submit(requests);
  expect_only_guilty_fail(bench, requests, {5});
  const std::vector<TokenId> whole = Rig::expected(requests[4]);
  const std::vector<TokenId> got = bench.tokens(SequenceId{5});
  EXPECT_EQ(got, std::vector<TokenId>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(got.size())));
}

TEST_P(Blame, a_request_whose_step_fails_as_a_whole_ends_alone_and_no_worker_dies) {
  Bench bench(
      std::get<0>(GetParam()),
      [&](const Plan& plan, Result& result) {
        if (!names(plan, {4})) return true;
        result.items.clear();
        result.scores.clear();
        result.logits.clear();
        result.error = "the device ran out of something";
        return true;
      },
      static_cast<std::uint32_t>(std::get<1>(GetParam())));
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) requests.push_back(Rig::request(id, 4, 30));
  bench.submit(requests);
  expect_only_guilty_fail(bench, requests, {4});
  EXPECT_EQ(bench.deaths(), 0);
  EXPECT_NE(bench.status(SequenceId{4}).message().find("ran out of something"), std::string::npos);
}

TEST_P(Blame, an_item_that_fails_ends_its_request_alone) {
  for (const ItemStatus status : {ItemStatus::kRefused, ItemStatus::kNumeric, ItemStatus::kTooLarge}) {
    Bench bench(
        std::get<0>(GetParam()),
        [&](const Plan& plan, Result& result) {
          for (std::size_t i = 0; i < plan.items.size(); ++i) {
            if (plan.items[i].sequence.value != 2 || plan.items[i].position < 8) continue;
            result.items[i].status = status;
            result.items[i].has_token = 0;
          }
          return true;
        },
        static_cast<std::uint32_t>(std::get<1>(GetParam())));
    std::vector<SequenceRequest> requests;
    for (std::uint64_t id = 1; id <= 4; ++id) requests.push_back(Rig::request(id, 4, 30));
    bench.submit(requests);
    expect_only_guilty_fail(bench, requests, {2});
    EXPECT_EQ(bench.deaths(), 0);
  }
}

TEST_P(Blame, accidents_blame_nobody) {
  std::mt19937 random(7);
  Bench bench(
      std::get<0>(GetParam()), [&](const Plan& plan, Result&) { return plan.items.size() < 2 || random() % 6 != 0; },
      static_cast<std::uint32_t>(std::get<1>(GetParam())));
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) requests.push_back(Rig::request(id, 4, 40));
  bench.submit(requests);
  expect_only_guilty_fail(bench, requests, {});
}

// What arrives while suspects run apart is served too.
TEST_P(Blame, others_are_served_while_suspects_run_apart) {
  Bench bench(
      std::get<0>(GetParam()), [&](const Plan& plan, Result&) { return !names(plan, {1}); },
      static_cast<std::uint32_t>(std::get<1>(GetParam())));
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 30; ++id) {
    requests.push_back(Rig::request(id, 4, 10));
    bench.submit({requests.back()});
  }
  expect_only_guilty_fail(bench, requests, {1});
}

}  // namespace
}  // namespace tandem
