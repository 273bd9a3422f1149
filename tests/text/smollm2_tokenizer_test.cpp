// The default model's tokenizer against the reference ids. Runs where TANDEM_TEST_MODEL names its GGUF file.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "base/status.h"
#include "tandem/model.h"
#include "text/bpe.h"
#include "text_fixture.h"

namespace tandem {
namespace {

using Ids = std::vector<TokenId>;

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const char* const path = std::getenv("TANDEM_TEST_MODEL");
    if (path == nullptr) GTEST_SKIP() << "TANDEM_TEST_MODEL names no model file";
    const auto model = open_model(path);
    ASSERT_TRUE(model.ok()) << message(model.status());
    auto made = create_tokenizer((*model)->tokenizer());
    ASSERT_TRUE(made.ok()) << message(made.status());
    tokenizer_ = *std::move(made);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  const nlohmann::json fixture_ = read_fixture("smollm2.json");
};

TEST_F(SmolLm2, ids_equal_the_reference) {
  for (const auto& entry : fixture_["cases"]) {
    EXPECT_EQ(tokenizer_->encode(entry[0].get<std::string>(), {}), entry[1].get<Ids>()) << entry[0];
  }
}

TEST_F(SmolLm2, the_perplexity_text_gives_the_recorded_window) {
  Ids ids = tokenizer_->encode(fixture_["window"]["text"].get<std::string>(), {});
  const std::size_t count = fixture_["window"]["count"];
  ASSERT_GE(ids.size(), count);
  ids.resize(count);
  EXPECT_EQ(ids, fixture_["window"]["first_ids"].get<Ids>());
}

TEST_F(SmolLm2, markers_are_control_tokens_in_a_raw_prompt_and_text_in_a_users_words) {
  const std::string text = "<|im_start|>user";
  EXPECT_EQ(tokenizer_->encode_prompt(text), tokenizer_->encode(text, {}));
  EXPECT_EQ(tokenizer_->encode_prompt(text).front(), 1);
  const TextSpan all{0, text.size()};
  for (const TokenId id : tokenizer_->encode(text, {&all, 1})) EXPECT_EQ(tokenizer_->kind(id), TokenKind::kNormal);
  EXPECT_TRUE(tokenizer_->ends_generation(2));
}

}  // namespace
}  // namespace tandem
