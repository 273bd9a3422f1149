// More sequences at once than the pool holds: streams of mixed lengths over the real scheduler and pool, which at their
// full lengths need 110 % or 400 % of it. The fake lanes' memory finds blocks with two users and wrong recomputation.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::drained;
using test::kBlockTokens;
using test::Rig;

constexpr std::uint32_t kStreams = 16;
constexpr std::size_t kRequests = 240;
constexpr std::int64_t kArrivalUs = 20'000;  // between two requests, by the clock that deadlines are reckoned in

// Uniform in [least, most].
std::uint32_t draw(std::mt19937& random, std::uint32_t least, std::uint32_t most) {
  return least + static_cast<std::uint32_t>(random() % (most - least + 1));
}

std::uint32_t blocks_of(const SequenceRequest& request) {
  return static_cast<std::uint32_t>(request.prompt->tokens.size() + request.max_tokens + kBlockTokens - 1) /
         kBlockTokens;
}

std::uint64_t preemptions(Rig& rig) {
  const std::string text = rig.metrics.scrape();
  const std::string name = "\ntandem_num_preemptions_total ";
  const auto at = text.find(name);
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
}

struct Case {
  SequenceRequest request;
  bool shares = false;  // its prompt's beginning with others
  std::optional<std::size_t> cancel_after;  // tokens; 0: at once
};

// Mostly short ones and some long ones, a third with one of three beginnings, a few of other priorities, a tenth
// cancelled.
std::vector<Case> mixed_cases(std::mt19937& random) {
  std::vector<Case> cases(kRequests);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Case& each = cases[i];
    SequenceRequest& request = each.request;
    each.shares = draw(random, 0, 2) == 0;
    if (each.shares) request = Rig::request(draw(random, 0, 2), draw(random, 8, 32), 1);
    std::vector<TokenId> prompt;
    if (each.shares) prompt = request.prompt->tokens;
    const std::uint32_t own = draw(random, 0, 3) == 0 ? draw(random, 30, 60) : draw(random, 1, 16);
    for (std::uint32_t n = 0; n < own; ++n) {
      prompt.push_back(static_cast<TokenId>(draw(random, 0, test::kFakeVocab - 1)));
    }
    test::set_prompt(request, std::move(prompt));
    request.id = SequenceId{i + 1};
    request.max_tokens = draw(random, 0, 3) == 0 ? draw(random, 40, 80) : draw(random, 1, 30);
    request.arrival_us = static_cast<std::int64_t>(i) * kArrivalUs;
    if (draw(random, 0, 9) == 0) request.priority = static_cast<std::int32_t>(draw(random, 0, 2)) - 1;
    if (draw(random, 0, 9) == 0) each.cancel_after = draw(random, 0, request.max_tokens - 1);
  }
  return cases;
}

std::uint32_t pool_for(const std::vector<Case>& cases, std::uint32_t percent) {
  std::uint64_t total = 0;
  for (const Case& each : cases) total += blocks_of(each.request);
  return static_cast<std::uint32_t>(total * kStreams * 100 / cases.size() / percent);
}

// Each stream sends its next request when the one before has ended. False: nothing got on for long.
bool run_streams(Rig& rig, const std::vector<Case>& cases) {
  std::size_t next = 0;
  std::map<std::uint64_t, std::optional<std::size_t>> active;  // and when to cancel it, if that is to come
  while (next < cases.size() || !active.empty()) {
    for (; active.size() < kStreams && next < cases.size(); ++next) {
      EXPECT_TRUE(rig.submit({cases[next].request}).ok());
      active.emplace(cases[next].request.id.value, cases[next].cancel_after);
    }
    std::vector<std::uint64_t> ended, cancelled;
    const bool progress = rig.collector.wait([&](auto& outcomes) {
      for (const auto& [id, cancel_after] : active) {
        if (outcomes[id].finished) {
          ended.push_back(id);
        } else if (cancel_after && outcomes[id].tokens.size() >= *cancel_after) {
          cancelled.push_back(id);
        }
      }
      return !ended.empty() || !cancelled.empty();
    });
    if (!progress) return false;
    for (const std::uint64_t id : ended) active.erase(id);
    for (const std::uint64_t id : cancelled) {
      rig.scheduler->cancel(SequenceId{id});
      active[id].reset();
    }
  }
  return true;
}

class Exhaustion : public ::testing::TestWithParam<std::tuple<Placement, std::string, std::uint32_t>> {
 protected:
  Placement placement() const { return std::get<0>(GetParam()); }
  const std::string& identity() const { return std::get<1>(GetParam()); }  // of the prefix cache; empty: none
  std::uint32_t percent() const { return std::get<2>(GetParam()); }

  static void expect_output_as_alone(Rig& rig, const std::vector<Case>& cases) {
    for (const Case& each : cases) {
      const auto outcome = rig.collector.outcome(each.request.id.value);
      std::vector<TokenId> expected = Rig::expected(each.request);
      if (each.cancel_after) {
        ASSERT_LE(outcome.tokens.size(), expected.size());
        expected.resize(outcome.tokens.size());
      }
      EXPECT_EQ(outcome.tokens, expected) << "sequence " << each.request.id.value;
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    }
  }

  // What the policy promises of two sequences of equal priority: a later one is begun first only when it is shorter, so
  // nobody waits for ever. (How long it may pass depends on the measured prefill speed; see policy_test.) A sequence
  // that shares its beginning may let others pass while that is computed.
  void expect_nobody_is_passed(Rig& rig, const std::vector<Case>& cases) const {
    for (const Case& early : cases) {
      const std::uint64_t begun = rig.collector.outcome(early.request.id.value).started_at;
      if (begun == 0 || (early.shares && !identity().empty())) continue;
      for (const Case& late : cases) {
        const SequenceRequest& a = early.request;
        const SequenceRequest& b = late.request;
        if (a.id.value >= b.id.value || a.priority != b.priority) continue;
        if (b.prompt->tokens.size() < a.prompt->tokens.size()) continue;
        const std::uint64_t other = rig.collector.outcome(b.id.value).started_at;
        EXPECT_TRUE(other == 0 || begun < other) << b.id.value << " was begun before " << a.id.value;
      }
    }
  }

  // A preempted sequence comes back when its whole text fits again, after others have ended, so on the average each
  // end brings back less than one. Measured: 1.27 times the useful work and half a preemption for each sequence at
  // most, and 3.7 times its own useful work for any single one.
  static void expect_no_thrashing(Rig& rig, const std::vector<Case>& cases) {
    std::uint64_t useful = 0, work = 0;
    for (const Case& each : cases) {
      const std::uint64_t done = rig.kv.work(each.request.id.value);
      const std::uint64_t own =
          each.request.prompt->tokens.size() + rig.collector.outcome(each.request.id.value).tokens.size();
      EXPECT_LE(done, 8 * own) << "sequence " << each.request.id.value;
      work += done;
      useful += own;
    }
    EXPECT_LE(2 * work, 3 * useful);
    EXPECT_LE(preemptions(rig), cases.size());
  }

  static void expect_clean_ledger(Rig& rig) {
    EXPECT_TRUE(drained(rig));
    const KvPoolUsage usage = rig.ledger_usage();
    EXPECT_EQ(usage.held + usage.retiring, 0U);
    EXPECT_EQ(usage.free + usage.published, usage.total);
  }
};
INSTANTIATE_TEST_SUITE_P(Pools, Exhaustion,
                         ::testing::Combine(::testing::Values(Placement::kSemi, Placement::kFused),
                                            ::testing::Values("", "model"), ::testing::Values(110U, 400U)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param) == Placement::kSemi ? "semi" : "fused") +
                                  (std::get<1>(each.param).empty() ? "_plain_" : "_cached_") +
                                  std::to_string(std::get<2>(each.param));
                         });

TEST_P(Exhaustion, every_stream_gets_on_and_gets_what_it_would_get_alone) {
  // Whether a load preempts depends on when its streams meet: more are drawn until one has.
  constexpr unsigned kSeeds = 2;
  constexpr unsigned kMostSeeds = 12;
  bool preempted = percent() < 400;
  for (unsigned seed = 1; seed <= kSeeds || (!preempted && seed <= kMostSeeds); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::vector<Case> cases = mixed_cases(random);
    Rig rig(pool_for(cases, percent()), placement(), kStreams, identity());
    ASSERT_TRUE(run_streams(rig, cases)) << "a deadlock";
    expect_output_as_alone(rig, cases);
    expect_nobody_is_passed(rig, cases);
    expect_no_thrashing(rig, cases);
    expect_clean_ledger(rig);
    preempted |= preemptions(rig) > 0;
  }
  EXPECT_TRUE(preempted) << "four times what the pool holds, and nobody gave up a block";
}

// Neither the oldest nor the one of the highest priority ever gives up its blocks, although the latter is admitted last
// and every other one needs blocks too: no token of them is computed twice. The pool has room for these two.
TEST_P(Exhaustion, the_most_urgent_sequence_is_never_preempted) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Rig rig(70 * 400 / percent(), placement(), kStreams, identity());
    for (const auto& lane : rig.lanes) lane->step_time = std::chrono::microseconds(100);
    std::vector<SequenceRequest> requests;
    const auto submit = [&](std::uint32_t prompt_tokens, std::uint32_t max_tokens, std::int32_t priority) {
      SequenceRequest& request = requests.emplace_back(Rig::request(requests.size() + 1, prompt_tokens, max_tokens));
      request.priority = priority;
      ASSERT_TRUE(rig.submit({request}).ok());
    };
    for (int i = 0; i < 6; ++i) submit(draw(random, 4, 11), draw(random, 60, 120), 0);
    ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return outcomes[6].tokens.size() > 10; }));
    submit(20, 100, 1);
    for (int i = 0; i < 20; ++i) submit(draw(random, 4, 43), draw(random, 10, 70), 0);
    ASSERT_TRUE(rig.collector.wait_finished(requests.size()));
    for (const std::size_t urgent : {0U, 6U}) {
      EXPECT_EQ(rig.kv.work(urgent + 1), requests[urgent].prompt->tokens.size() + requests[urgent].max_tokens - 1);
    }
    for (const SequenceRequest& request : requests) {
      EXPECT_EQ(rig.collector.outcome(request.id.value).tokens, Rig::expected(request));
    }
    if (percent() >= 400) {
      EXPECT_GT(preemptions(rig), 0U);
    }
    expect_clean_ledger(rig);
  }
}

// A prompt that is being read holds the blocks that a running sequence needs: the sequence waits for the prompt's step
// to end and takes them, instead of giving up its own for the sake of a less urgent one.
TEST(FullPool, a_running_sequence_takes_blocks_from_a_prompt_that_is_being_read) {
  Rig rig(30);
  rig.lanes[1]->step_time = std::chrono::milliseconds(1);
  const SequenceRequest early = Rig::request(1, 8, 60);
  ASSERT_TRUE(rig.submit({early}).ok());
  ASSERT_TRUE(rig.collector.wait([](auto& outcomes) { return !outcomes[1].tokens.empty(); }));
  rig.lanes[0]->step_time = std::chrono::milliseconds(10);
  const SequenceRequest late = Rig::request(2, 92, 10);
  ASSERT_TRUE(rig.submit({late}).ok());
  ASSERT_TRUE(rig.collector.wait_finished(2));
  EXPECT_EQ(rig.collector.outcome(1).tokens, Rig::expected(early));
  EXPECT_EQ(rig.collector.outcome(2).tokens, Rig::expected(late));
  EXPECT_GT(preemptions(rig), 0U);
  EXPECT_EQ(rig.kv.work(1), early.prompt->tokens.size() + early.max_tokens - 1) << "it was read again";
}

}  // namespace
}  // namespace tandem
