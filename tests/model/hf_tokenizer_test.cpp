// tokenizer.json and its companions: what is read, the union of end tokens (kind end-of-turn), what is refused.
#include "base/status.h"
#include "gtest/gtest.h"
#include "model/hf_folder.h"
#include "tandem/model.h"

namespace tandem {
namespace {

using nlohmann::json;
using testing::HfFolder;

using Change = std::function<void(json&)>;

absl::StatusOr<TokenizerSpec> read(const HfFolder& folder) {
  const auto model = open_model(folder.path());
  if (!model.ok()) return model.status();
  return (*model)->tokenizer();
}

absl::StatusOr<TokenizerSpec> read_with(const Change& change) {
  const HfFolder folder;
  folder.edit("tokenizer.json", change);
  return read(folder);
}

TEST(HfTokenizer, tiny_llama_reads_as_its_files_say) {
  const auto spec = read(HfFolder());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tokens.size(), 512U);
  EXPECT_EQ(spec->tokens[2], "<|im_end|>");
  EXPECT_EQ(spec->kinds[2], TokenKind::kControl);
  EXPECT_EQ(spec->kinds[3], TokenKind::kNormal);
  EXPECT_EQ(spec->merges.size(), 253U);
  EXPECT_EQ(spec->merges[0].second, "a");
  ASSERT_EQ(spec->pre_tokenizer.size(), 1U);
  EXPECT_EQ(spec->pre_tokenizer[0].pattern, kGpt2Pattern);
  EXPECT_EQ(spec->normalizer, Normalizer::kNone);
  EXPECT_FALSE(spec->add_bos);
  EXPECT_FALSE(spec->add_prefix_space);
  EXPECT_EQ(spec->bos, 0);
  EXPECT_EQ(spec->eos, 2);
  EXPECT_EQ(spec->end_of_generation, (std::vector<TokenId>{0, 2}));
  EXPECT_EQ(spec->chat_template.find("{% for m in messages %}"), 0U);
}

TEST(HfTokenizer, llama3_shape_of_pre_tokenizer_and_begin_token) {
  const auto spec = read_with([](json& root) {
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
    root["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", R"(\p{N}{1,3})"}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "Split"}, {"pattern", {{"String", "a.b"}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "Digits"}, {"individual_digits", true}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    root["post_processor"] = {{"type", "Sequence"},
                              {"processors",
                               {{{"type", "ByteLevel"}},
                                {{"type", "TemplateProcessing"},
                                 {"single",
                                  {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                                   {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}}}};
    root["model"]["ignore_merges"] = true;
    root["model"]["merges"][0] = "\xC4\xA0 a";
  });
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->normalizer, Normalizer::kNfc);
  ASSERT_EQ(spec->pre_tokenizer.size(), 3U);
  EXPECT_EQ(spec->pre_tokenizer[0].pattern, R"(\p{N}{1,3})");
  EXPECT_EQ(spec->pre_tokenizer[1].pattern, R"(a\.b)");
  EXPECT_EQ(spec->pre_tokenizer[2].kind, PreTokenizerStep::Kind::kIndividualDigits);
  EXPECT_TRUE(spec->add_bos);
  EXPECT_EQ(spec->bos, 0);
  EXPECT_TRUE(spec->ignore_merges);
  EXPECT_EQ(spec->merges[0].second, "a");
}

TEST(HfTokenizer, added_tokens_and_holes_get_their_kinds) {
  const auto spec = read_with([](json& root) {
    for (const char* token : {"!", "\""}) root["model"]["vocab"].erase(token);
    root["added_tokens"].push_back({{"id", 3}, {"content", "<tool>"}, {"special", false}});
  });
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tokens[3], "<tool>");
  EXPECT_EQ(spec->kinds[3], TokenKind::kUserDefined);
  EXPECT_EQ(spec->kinds[4], TokenKind::kUnused);
}

TEST(HfTokenizer, end_tokens_are_the_union_of_every_source) {
  const HfFolder folder;
  // No token that is known by its text: only what the files say counts.
  folder.edit("tokenizer.json", [](json& root) {
    for (int i = 0; i < 3; ++i) {
      const std::string name = "<t" + std::to_string(i) + ">";
      root["model"]["vocab"].erase(root["added_tokens"][i]["content"].get<std::string>());
      root["model"]["vocab"][name] = i;
      root["added_tokens"][i]["content"] = name;
    }
  });
  const auto set = [&](const json& config, const json& generation, const json& tokenizer) {
    folder.edit("config.json", [&](json& value) { value["eos_token_id"] = config; });
    folder.edit("generation_config.json", [&](json& value) { value["eos_token_id"] = generation; });
    folder.files().write("tokenizer_config.json", json{{"eos_token", tokenizer}, {"bos_token", nullptr}}.dump());
    const auto spec = read(folder);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? *spec : TokenizerSpec();
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(set(2, nullptr, nullptr).end_of_generation, (Ids{2}));
  EXPECT_EQ(set(nullptr, {2, 1}, nullptr).end_of_generation, (Ids{1, 2}));
  EXPECT_EQ(set(nullptr, nullptr, "<t2>").end_of_generation, (Ids{2}));
  EXPECT_EQ(set(nullptr, nullptr, {{"content", "<t2>"}, {"lstrip", false}}).end_of_generation, (Ids{2}));
  const TokenizerSpec all = set(0, {1}, "<t2>");
  EXPECT_EQ(all.end_of_generation, (Ids{0, 1, 2}));
  EXPECT_EQ(all.eos, 2);
  EXPECT_EQ(all.bos, std::nullopt);  // null in tokenizer_config.json overrules config.json
  folder.remove("tokenizer_config.json");
  folder.remove("generation_config.json");
  const auto bare = read(folder);
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->end_of_generation, (Ids{0}));
  EXPECT_EQ(bare->bos, 0);
}

TEST(HfTokenizer, chat_template_comes_from_the_file_or_the_config) {
  const HfFolder folder;
  folder.remove("chat_template.jinja");
  folder.edit("tokenizer_config.json", [](json& config) { config["chat_template"] = "one"; });
  EXPECT_EQ(read(folder)->chat_template, "one");
  folder.edit("tokenizer_config.json", [](json& config) {
    config["chat_template"] = {{{"name", "tool_use"}, {"template", "two"}},
                               {{"name", "default"}, {"template", "three"}}};
  });
  EXPECT_EQ(read(folder)->chat_template, "three");
  folder.files().write("chat_template.jinja", "four");
  EXPECT_EQ(read(folder)->chat_template, "four");
  folder.edit("tokenizer_config.json", [](json& config) { config["chat_template"] = 5; });
  EXPECT_FALSE(read(folder).ok());
}

TEST(HfTokenizer, refuses_what_it_would_compute_wrongly) {
  struct Bad {
    Change change;
    std::string_view expected;
  };
  const Bad bads[] = {
      {[](json& r) { r["model"]["type"] = "Unigram"; }, "model type \"Unigram\""},
      {[](json& r) { r["model"] = nullptr; }, "\"model\" is missing"},
      {[](json& r) { r["model"].erase("vocab"); }, "\"model.vocab\" is missing"},
      {[](json& r) { r["model"].erase("merges"); }, "\"model.merges\" is missing"},
      {[](json& r) { r["model"]["byte_fallback"] = true; }, "byte_fallback"},
      {[](json& r) { r["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix \"</w>\""},
      {[](json& r) { r["model"]["dropout"] = 0.1; }, "dropout"},
      {[](json& r) { r["model"]["unk_token"] = "<nope>"; }, "unk_token \"<nope>\""},
      {[](json& r) { r["model"]["vocab"]["new"] = 512; }, "the id of \"new\" is 512"},
      {[](json& r) { r["model"]["vocab"]["new"] = -1; }, "the id of \"new\" is -1"},
      {[](json& r) { r["model"]["vocab"]["new"] = "x"; }, "the id of \"new\" is not a number"},
      {[](json& r) { r["model"]["vocab"]["new"] = 7; }, "id 7 is both"},
      {[](json& r) { r["model"]["merges"][5] = "ab"; }, "element 5 of model.merges"},
      {[](json& r) { r["model"]["merges"][5] = {"a", "b", "c"}; }, "element 5 of model.merges"},
      {[](json& r) { r["model"]["merges"][5] = {"a", ""}; }, "element 5 of model.merges"},
      {[](json& r) { r["added_tokens"][1]["rstrip"] = true; }, "rstrip of added token \"<|im_start|>\""},
      {[](json& r) { r["added_tokens"][1]["id"] = 9; }, "\"<|im_start|>\" has two ids"},
      {[](json& r) { r["added_tokens"][1].erase("id"); }, "no id"},
      {[](json& r) { r["added_tokens"] = 1; }, "\"added_tokens\" must be a list"},
      {[](json& r) { r["normalizer"] = {{"type", "Lowercase"}}; }, "normalizer \"Lowercase\""},
      {[](json& r) { r["pre_tokenizer"] = nullptr; }, "without pre_tokenizer ByteLevel"},
      {[](json& r) { r["pre_tokenizer"] = {{"type", "Metaspace"}}; }, "pre_tokenizer \"Metaspace\""},
      {[](json& r) { r["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}}; },
       "without pre_tokenizer"},
      {[](json& r) {
         r["pre_tokenizer"] = {
             {"type", "Sequence"},
             {"pretokenizers",
              {{{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}, {"invert", false}},
               {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
       },
       "behavior \"Removed\""},
      {[](json& r) { r["decoder"] = nullptr; }, "decoder \"none\""},
      {[](json& r) { r["post_processor"] = {{"type", "BertProcessing"}}; }, "post_processor \"BertProcessing\""},
      {[](json& r) { r["post_processor"]["single"] = {{{"SpecialToken", {{"id", "<nope>"}}}}}; }, "token \"<nope>\""},
      {[](json& r) { r["post_processor"]["single"] = json::array(); }, "drops the text"},
  };
  for (const Bad& bad : bads) {
    SCOPED_TRACE(bad.expected);
    const auto spec = read_with(bad.change);
    ASSERT_FALSE(spec.ok());
    EXPECT_NE(message(spec.status()).find(bad.expected), std::string_view::npos) << spec.status();
    EXPECT_NE(message(spec.status()).find("tokenizer.json"), std::string_view::npos) << spec.status();
  }
}

TEST(HfTokenizer, refuses_end_tokens_that_do_not_exist) {
  const HfFolder folder;
  folder.edit("tokenizer_config.json", [](json& config) { config["eos_token"] = "<nope>"; });
  const auto spec = read(folder);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(message(spec.status()).find("\"eos_token\" is \"<nope>\""), std::string_view::npos) << spec.status();
}

TEST(HfTokenizer, refuses_more_values_than_a_vocabulary_has) {
  const HfFolder folder;
  std::string text = "{\"added_tokens\":[";
  for (int i = 0; i < 2200000; ++i) text += "0,";
  folder.files().write("tokenizer.json", text + "0]}");
  const auto spec = read(folder);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(message(spec.status()).find("values; at most"), std::string_view::npos) << spec.status();
}

}  // namespace
}  // namespace tandem
