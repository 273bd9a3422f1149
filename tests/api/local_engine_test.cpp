// Engine, output pipeline and scheduler together, over fake lanes: what a front end sees of a request's life.
#include "api/local_engine.h"

#include <condition_variable>
#include <mutex>

#include "api/request_check.h"
#include "gtest/gtest.h"
#include "support/fake_engine.h"
#include "support/heap_instance.h"

namespace tandem {
namespace {

// Everything one request's sink was given.
class Record {
 public:
  EventSink sink() {
    return [this](Event event) {
      const std::lock_guard lock(mutex_);
      if (auto* text = std::get_if<TextEvent>(&event)) {
        EXPECT_FALSE(text->text.empty() && text->tokens.empty());
        if (texts.size() <= text->choice) texts.resize(text->choice + 1);
        texts[text->choice] += text->text;
        num_tokens += text->tokens.size();
      } else if (auto* finish = std::get_if<FinishEvent>(&event)) {
        finishes.push_back(*finish);
      } else if (auto* end = std::get_if<DoneEvent>(&event)) {
        EXPECT_FALSE(done) << "one DoneEvent";
        done = *end;
      } else if (std::holds_alternative<PromptEvent>(event)) {
        EXPECT_EQ(num_tokens, 0U) << "the prompt comes first";
        ++prompts;
      } else if (auto* scores = std::get_if<PromptScoresEvent>(&event)) {
        num_scores += scores->scores.size();
        last_logits = scores->last_logits;
      }
      changed_.notify_all();
    };
  }
  bool wait_done() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return done.has_value(); });
  }
  bool wait_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return num_tokens >= count; });
  }

  std::vector<std::string> texts;
  std::vector<FinishEvent> finishes;
  std::optional<DoneEvent> done;
  std::size_t num_tokens = 0;
  std::size_t num_scores = 0;
  std::vector<float> last_logits;
  int prompts = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class LocalEngineTest : public ::testing::Test {
 protected:
  LocalEngineTest() : instance_(100, 4, 1), output_(tokenizer_, instance_.metrics) {
    SchedulerOptions options;
    options.placement = Placement::kFused;
    options.max_queued_sequences = 20;
    options.plan = {4, 16, 8};
    options.plan.vocab_size = test::kFakeVocab;
    scheduler_ = std::make_unique<Scheduler>(options, *instance_.pool, *instance_.control, output_, instance_.metrics,
                                             [](LaneId, std::uint64_t) {});
    output_.start([this](SequenceId id) { scheduler_->cancel(id); });
    LocalEngineOptions engine;
    engine.model.context_length = 200;
    engine.max_sequence_tokens = 390;
    engine.trouble = [this] { return trouble_; };
    engine_ = std::make_unique<LocalEngine>(engine, tokenizer_, nullptr, *scheduler_, output_, instance_.metrics);
    instance_.start_lane(LaneId{0}, *scheduler_);
    scheduler_->start();
  }
  ~LocalEngineTest() override {
    scheduler_->stop(absl::UnavailableError("test over"));
    output_.stop();
    instance_.lanes.clear();
    scheduler_.reset();
  }

  static Request request(std::string prompt, std::uint32_t max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.sampling.seed = 7;
    request.stopping.max_tokens = max_tokens;
    request.stopping.ignore_eos = true;
    return request;
  }

  std::string trouble_;
  FakeTokenizer tokenizer_;
  test::HeapInstance instance_;
  OutputPipeline output_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<LocalEngine> engine_;
};

TEST_F(LocalEngineTest, a_request_gets_prompt_text_finish_and_usage) {
  Record record;
  ASSERT_TRUE(engine_->submit(request("hello", 9), record.sink()).ok());
  ASSERT_TRUE(record.wait_done());
  EXPECT_TRUE(record.done->status.ok());
  EXPECT_EQ(record.prompts, 1);
  EXPECT_EQ(record.num_tokens, 9U);
  EXPECT_EQ(record.done->usage.completion_tokens, 9U);
  ASSERT_EQ(record.finishes.size(), 1U);
  EXPECT_EQ(record.finishes[0].reason, FinishReason::kLength);
}

TEST_F(LocalEngineTest, no_tokens_asked_for_gives_the_prompts_scores_and_no_text) {
  Record record;
  Request scored = request("hello", 0);
  scored.score_prompt = true;
  ASSERT_TRUE(engine_->submit(scored, record.sink()).ok());
  ASSERT_TRUE(record.wait_done());
  EXPECT_TRUE(record.done->status.ok());
  EXPECT_EQ(record.num_scores, 4U);
  EXPECT_TRUE(record.texts.empty());
  EXPECT_EQ(record.done->usage.completion_tokens, 0U);
  EXPECT_EQ(record.finishes.at(0).reason, FinishReason::kLength);
}

TEST_F(LocalEngineTest, last_logits_come_with_and_without_the_scores) {
  for (const bool scored : {false, true}) {
    Record record;
    Request asking = request(std::string(40, 'w'), 2);  // three chunks
    asking.score_prompt = scored;
    asking.return_last_logits = true;
    ASSERT_TRUE(engine_->submit(asking, record.sink()).ok());
    ASSERT_TRUE(record.wait_done());
    EXPECT_EQ(record.last_logits.size(), static_cast<std::size_t>(test::kFakeVocab));
    EXPECT_EQ(record.num_scores, scored ? 39U : 0U);
  }
}

TEST_F(LocalEngineTest, every_choice_finishes_once_and_usage_is_their_sum) {
  Record record;
  Request three = request("hello", 5);
  three.num_choices = 3;
  ASSERT_TRUE(engine_->submit(three, record.sink()).ok());
  ASSERT_TRUE(record.wait_done());
  EXPECT_EQ(record.finishes.size(), 3U);
  EXPECT_EQ(record.done->usage.completion_tokens, 15U);
}

TEST_F(LocalEngineTest, a_stop_string_ends_the_text_before_it_and_frees_the_sequence) {
  Record whole;
  ASSERT_TRUE(engine_->submit(request("hello", 40), whole.sink()).ok());
  ASSERT_TRUE(whole.wait_done());
  const std::string& text = whole.texts.at(0);
  ASSERT_GT(text.size(), 12U);
  const std::string stop = text.substr(6, 4);
  Record cut;
  Request stopping = request("hello", 150);
  stopping.stopping.stop = {stop};
  ASSERT_TRUE(engine_->submit(stopping, cut.sink()).ok());
  ASSERT_TRUE(cut.wait_done());
  EXPECT_EQ(cut.texts.empty() ? "" : cut.texts[0], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut.finishes.at(0).matched_stop, stop);
  for (int i = 0; i < 2000 && engine_->state().kv_blocks_used > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(engine_->state().kv_blocks_used, 0U);
}

TEST_F(LocalEngineTest, bad_requests_are_refused_without_an_event) {
  Record record;
  const auto long_prompt = engine_->submit(request(std::string(500, 'a'), 1), record.sink());
  EXPECT_EQ(error_code(long_prompt.status()), "context_length_exceeded");
  EXPECT_EQ(engine_->submit(request("", 1), record.sink()).status().code(), absl::StatusCode::kInvalidArgument);
  Request bad_id = request("", 1);
  bad_id.prompt = std::vector<TokenId>{1, tokenizer_.vocab_size()};
  EXPECT_EQ(error_field(engine_->submit(bad_id, record.sink()).status()), "prompt");
  Request bad_bias = request("a", 1);
  bad_bias.sampling.logit_bias = {{-1, 5.0F}};
  EXPECT_EQ(error_field(engine_->submit(bad_bias, record.sink()).status()), "logit_bias");
  Request stops = request("a", 1);
  stops.stopping.stop_token_ids.assign(limits::kStopTokens + 1, 1);
  EXPECT_EQ(error_field(engine_->submit(stops, record.sink()).status()), "stop_token_ids");
  stops.stopping.stop_token_ids = {tokenizer_.vocab_size()};
  EXPECT_EQ(error_field(engine_->submit(stops, record.sink()).status()), "stop_token_ids");
  bad_bias.sampling.logit_bias.assign(limits::kBiases + 1, {1, 5.0F});
  EXPECT_EQ(error_field(engine_->submit(bad_bias, record.sink()).status()), "logit_bias");
  Request chat = request("a", 1);
  chat.prompt = ChatPrompt{};
  EXPECT_EQ(error_field(engine_->submit(chat, record.sink()).status()), "messages") << "this model has no template";
  EXPECT_FALSE(record.done.has_value());
  EXPECT_EQ(output_.num_requests(), 0U);
}

TEST_F(LocalEngineTest, a_full_queue_refuses_a_whole_request_and_forgets_it) {
  Record record;
  Request many = request("hello", 5);
  many.num_choices = 21;
  EXPECT_EQ(engine_->submit(many, record.sink()).status().code(), absl::StatusCode::kInvalidArgument)
      << "it would never fit";
  EXPECT_EQ(output_.num_requests(), 0U);

  for (const auto& lane : instance_.lanes) lane->step_time = std::chrono::milliseconds(50);
  std::vector<std::unique_ptr<Record>> records;
  absl::Status status;
  many.num_choices = 15;
  for (int i = 0; i < 50 && status.ok(); ++i) {
    records.push_back(std::make_unique<Record>());
    status = engine_->submit(many, records.back()->sink()).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(output_.num_requests(), records.size() - 1);
  engine_->drain(std::chrono::milliseconds(0));  // before the records go
}

TEST_F(LocalEngineTest, cancel_ends_every_choice_with_one_done) {
  instance_.lanes[0]->step_time = std::chrono::milliseconds(8);
  Record record;
  Request endless = request("hello", 190);
  endless.num_choices = 2;
  const auto id = engine_->submit(endless, record.sink());
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(record.wait_tokens(4));
  engine_->cancel(*id);
  ASSERT_TRUE(record.wait_done());
  EXPECT_EQ(record.done->status.code(), absl::StatusCode::kCancelled);
  engine_->cancel(*id);
  engine_->cancel(RequestId{12345});
}

TEST_F(LocalEngineTest, drain_lets_the_running_end_and_then_ends_the_rest_with_unavailable) {
  instance_.lanes[0]->step_time = std::chrono::milliseconds(8);
  Record brief;
  Record endless;
  ASSERT_TRUE(engine_->submit(request("a", 5), brief.sink()).ok());
  ASSERT_TRUE(engine_->submit(request("b", 190), endless.sink()).ok());
  engine_->drain(std::chrono::milliseconds(600));
  ASSERT_TRUE(brief.wait_done() && endless.wait_done());
  EXPECT_TRUE(brief.done->status.ok());
  EXPECT_EQ(endless.done->status.code(), absl::StatusCode::kUnavailable);
  Record late;
  EXPECT_EQ(engine_->submit(request("c", 1), late.sink()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine_->state().ready);
}

TEST_F(LocalEngineTest, trouble_makes_it_neither_alive_nor_ready) {
  EXPECT_TRUE(engine_->state().alive && engine_->state().ready);
  trouble_ = "the memory owner ended";
  EXPECT_FALSE(engine_->state().alive || engine_->state().ready);
  Record record;
  EXPECT_EQ(engine_->submit(request("a", 1), record.sink()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LocalEngineTest, each_request_is_counted_once_whatever_its_choices) {
  const auto count = [this](const std::string& series) {
    const std::string text = "\n" + instance_.metrics.scrape();
    const auto at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 2));
  };
  const auto ended = [&](const std::string& reason) {
    return count("tandem_requests_finished_total{reason=\"" + reason + "\"}");
  };
  Record cut;
  Request several = request("hello", 3);
  several.num_choices = 3;
  ASSERT_TRUE(engine_->submit(several, cut.sink()).ok());
  ASSERT_TRUE(cut.wait_done());
  EXPECT_FALSE(engine_->submit(request("", 3), Record().sink()).ok());
  Record left;
  several.stopping.max_tokens = 150;
  const auto id = engine_->submit(several, left.sink());
  ASSERT_TRUE(left.wait_tokens(5));
  engine_->cancel(*id);
  ASSERT_TRUE(left.wait_done());
  EXPECT_EQ(ended("length"), 1);
  EXPECT_EQ(ended("cancelled"), 1);
  Record failed;
  ASSERT_TRUE(engine_->submit(several, failed.sink()).ok());
  ASSERT_TRUE(failed.wait_tokens(5));
  scheduler_->stop(absl::UnavailableError("test over"));
  ASSERT_TRUE(failed.wait_done());
  EXPECT_EQ(ended("failed"), 1);
  EXPECT_EQ(ended("stop"), 0);
  EXPECT_EQ(count("tandem_requests_accepted_total"), 3);
  EXPECT_EQ(count("tandem_requests_refused_total"), 1);
  EXPECT_EQ(count("tandem_prompt_tokens_total"), 15) << "once for all choices";
  EXPECT_EQ(
      count("tandem_generation_tokens_total"),
      cut.done->usage.completion_tokens + left.done->usage.completion_tokens + failed.done->usage.completion_tokens);
}

}  // namespace
}  // namespace tandem
