// SmolLM2-135M-Instruct Q4_1, where TANDEM_TEST_MODEL names it: a file that other software wrote.
#include <chrono>
#include <cstdlib>

#include "gtest/gtest.h"
#include "tandem/model.h"

namespace tandem {
namespace {

TEST(RealModel, opens_quickly_with_the_published_sizes) {
  const char* path = std::getenv("TANDEM_TEST_MODEL");
  if (path == nullptr || *path == '\0') GTEST_SKIP() << "TANDEM_TEST_MODEL is not set";
  ASSERT_TRUE(open_model(path).ok());  // reads the header into the page cache
  const auto start = std::chrono::steady_clock::now();
  const auto opened = open_model(path);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(opened.ok()) << opened.status();
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(elapsed, std::chrono::milliseconds(60));
#else
  EXPECT_LT(elapsed, std::chrono::seconds(2));
#endif
  const ModelSpec& spec = (*opened)->spec();
  EXPECT_EQ(spec.num_layers, 30);
  EXPECT_EQ(spec.hidden_size, 576);
  EXPECT_EQ(spec.num_heads, 9);
  EXPECT_EQ(spec.num_kv_heads, 3);
  EXPECT_EQ(spec.head_dim, 64);
  EXPECT_EQ(spec.ffn_size, 1536);
  EXPECT_EQ(spec.vocab_size, 49152);
  EXPECT_EQ(spec.context_length, 8192);
  EXPECT_FLOAT_EQ(spec.rope.theta, 100000.0F);
  EXPECT_EQ(spec.rope.rotary_dim, 64);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_EQ((*opened)->tensors().size(), 272U);
  const TokenizerSpec& tokenizer = (*opened)->tokenizer();
  EXPECT_EQ(tokenizer.tokens.size(), 49152U);
  EXPECT_EQ(tokenizer.merges.size(), 48900U);
  EXPECT_EQ(tokenizer.eos, 2);
  EXPECT_EQ(tokenizer.end_of_generation, (std::vector<TokenId>{0, 2}));
  EXPECT_FALSE(tokenizer.add_bos);
  EXPECT_FALSE(tokenizer.chat_template.empty());
}

}  // namespace
}  // namespace tandem
