// Sequences that share prefixes, through the scheduler. A fake lane reads its tokens back from the blocks of the plan,
// so a block with the wrong content gives the wrong output.
#include "sched/prefix_reuse.h"

#include <random>

#include "gtest/gtest.h"
#include "sched/scheduler_rig.h"

namespace tandem {
namespace {

using test::drained;
using test::Rig;

class Both : public ::testing::TestWithParam<Placement> {
 public:
  // Runs to the end and gives the cached tokens of each, having checked the output.
  static std::vector<std::uint32_t> run(Rig& rig, const std::vector<SequenceRequest>& requests,
                                        std::optional<std::string_view> salt = "") {
    for (const SequenceRequest& request : requests) EXPECT_TRUE(rig.submit({request}, salt).ok());
    return outcomes(rig, requests);
  }
  static std::vector<std::uint32_t> outcomes(Rig& rig, const std::vector<SequenceRequest>& requests) {
    std::vector<std::uint32_t> cached;
    for (const SequenceRequest& request : requests) {
      const std::uint64_t id = request.id.value;
      EXPECT_TRUE(rig.collector.wait([id](auto& outcomes) { return outcomes[id].finished; }));
      const auto outcome = rig.collector.outcome(id);
      EXPECT_EQ(outcome.tokens, Rig::expected(request)) << "sequence " << id;
      cached.push_back(outcome.cached.value_or(UINT32_MAX));
    }
    return cached;
  }
};
INSTANTIATE_TEST_SUITE_P(PrefixReuse, Both, ::testing::Values(Placement::kSemi, Placement::kFused),
                         [](const auto& each) { return each.param == Placement::kSemi ? "semi" : "fused"; });

SequenceRequest again(SequenceRequest request, std::uint64_t id) {
  request.id = SequenceId{id};
  return request;
}

TEST_P(Both, a_prompt_seen_before_is_read_from_its_last_block_on) {
  Rig rig(100, GetParam(), 16, "model");
  const auto request = Rig::request(1, 17, 3);
  EXPECT_EQ(run(rig, {request}), std::vector<std::uint32_t>{0});
  EXPECT_EQ(run(rig, {again(request, 2)}), std::vector<std::uint32_t>{16});
  auto whole_blocks = Rig::request(1, 16, 3);  // its last token is computed all the same
  EXPECT_EQ(run(rig, {again(whole_blocks, 3)}), std::vector<std::uint32_t>{12});
  EXPECT_TRUE(drained(rig));
}

TEST_P(Both, a_conversation_finds_its_own_answers) {
  Rig rig(100, GetParam(), 16, "model");
  auto request = Rig::request(1, 9, 8);
  std::uint32_t expected = 0;
  for (std::uint64_t turn = 1; turn <= 6; ++turn) {
    request.id = SequenceId{turn};
    EXPECT_EQ(run(rig, {request}), std::vector<std::uint32_t>{expected}) << "turn " << turn;
    // All but the newest token are in the pool then.
    const auto answer = rig.collector.outcome(turn).tokens;
    std::vector<TokenId> prompt = request.prompt->tokens;
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    expected = static_cast<std::uint32_t>((prompt.size() - 1) / 4 * 4);
    prompt.insert(prompt.end(), {5, 6, 7});
    test::set_prompt(request, std::move(prompt));
  }
}

TEST_P(Both, prompts_that_come_together_read_their_common_part_once) {
  Rig rig(400, GetParam(), 16, "model");
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 1; id <= 12; ++id) {
    auto request = Rig::request(1, 40, 4);
    request.id = SequenceId{id};
    std::vector<TokenId> prompt = request.prompt->tokens;
    prompt.insert(prompt.end(), id, static_cast<TokenId>(id));
    test::set_prompt(request, std::move(prompt));
    requests.push_back(std::move(request));
  }
  const auto cached = run(rig, requests);
  EXPECT_EQ(cached[0], 0U);
  for (std::size_t i = 1; i < cached.size(); ++i) EXPECT_EQ(cached[i], 40U) << i;
}

TEST_P(Both, salts_and_opting_out_keep_requests_apart) {
  Rig rig(100, GetParam(), 16, "model");
  const auto request = Rig::request(1, 17, 3);
  EXPECT_EQ(run(rig, {again(request, 3)}, std::nullopt), std::vector<std::uint32_t>{0});
  EXPECT_EQ(run(rig, {request}), std::vector<std::uint32_t>{0});  // the one before had left nothing
  EXPECT_EQ(run(rig, {again(request, 2)}, "tenant"), std::vector<std::uint32_t>{0});
  EXPECT_EQ(run(rig, {again(request, 4)}, std::nullopt), std::vector<std::uint32_t>{0});
  EXPECT_EQ(run(rig, {again(request, 5)}, "tenant"), std::vector<std::uint32_t>{16});
}

TEST_P(Both, a_flush_comes_before_every_later_request) {
  Rig rig(100, GetParam(), 16, "model");
  const auto request = Rig::request(1, 17, 3);
  run(rig, {request});
  rig.scheduler->flush_cache();
  EXPECT_EQ(run(rig, {again(request, 2)}), std::vector<std::uint32_t>{0});
  EXPECT_EQ(run(rig, {again(request, 3)}), std::vector<std::uint32_t>{16});
}

TEST_P(Both, cancelled_and_stopped_sequences_leave_only_what_is_true) {
  Rig rig(200, GetParam(), 16, "model");
  for (auto& lane : rig.lanes) lane->step_time = std::chrono::microseconds(300);
  std::mt19937 random(3);
  std::uint64_t id = 1;
  for (int turn = 0; turn < 30; ++turn) {
    const auto request = again(Rig::request(7, 30 + random() % 30, 20), id++);
    ASSERT_TRUE(rig.submit({request}).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    rig.scheduler->cancel(request.id);
    auto stopped = again(Rig::request(7, 30, 20), id++);
    stopped.stop_tokens = {Rig::expected(stopped)[random() % 20]};
    ASSERT_TRUE(rig.submit({stopped}).ok());
    run(rig, {again(Rig::request(7, 45, 6), id++)});
  }
  ASSERT_TRUE(rig.collector.wait_finished(id - 1));
  EXPECT_TRUE(drained(rig));
}

// A server's memory is full of cache after a while: taking a block of it must not wait for a step that runs.
TEST_P(Both, a_full_cache_holds_up_no_step) {
  constexpr std::uint32_t kBlocks = 64;
  constexpr std::uint32_t kTokens = 40;
  Rig rig(kBlocks, GetParam(), 16, "model");
  for (std::uint64_t id = 1; id <= 12; ++id) run(rig, {Rig::request(id, 40, 2)});
  ASSERT_TRUE(drained(rig));
  ASSERT_GT(rig.pool->usage().evictable, kBlocks - 8);

  const std::uint64_t steps = rig.lanes.back()->steps();
  const std::uint64_t steps_ahead = rig.lanes.back()->steps_ahead();
  std::vector<SequenceRequest> requests;
  for (std::uint64_t id = 21; id <= 24; ++id) requests.push_back(Rig::request(id, 2, kTokens));  // one step reads all
  ASSERT_TRUE(rig.submit(requests).ok());
  for (const SequenceRequest& request : requests) {
    const std::uint64_t id = request.id.value;
    ASSERT_TRUE(rig.collector.wait([id](auto& outcomes) { return outcomes[id].finished; }));
    EXPECT_EQ(rig.collector.outcome(id).tokens, Rig::expected(request));
  }
  const std::uint64_t prompts = GetParam() == Placement::kFused ? 1 : 0;  // read by the same lane
  EXPECT_EQ(rig.lanes.back()->steps() - steps, prompts + kTokens - 1);
  EXPECT_EQ(rig.lanes.back()->steps_ahead() - steps_ahead, kTokens - 2) << "all but the first";
}

// Sharing, eviction and preemption at once: the pool holds a fraction of what is asked for.
TEST_P(Both, a_full_pool_evicts_and_preempts_without_changing_the_output) {
  for (const std::uint32_t num_blocks : {20U, 45U, 120U}) {
    Rig rig(num_blocks, GetParam(), 16, "model");
    std::mt19937 random(num_blocks);
    std::vector<SequenceRequest> requests;
    for (std::uint64_t id = 1; id <= 60; ++id) {
      auto request = Rig::request(random() % 4, 4 + random() % 36, 1 + random() % 30);
      request.id = SequenceId{id};
      EXPECT_TRUE(rig.submit({request}, random() % 5 == 0 ? "other" : "").ok());
      requests.push_back(std::move(request));
    }
    outcomes(rig, requests);
    EXPECT_TRUE(drained(rig));
  }
}

}  // namespace
}  // namespace tandem
