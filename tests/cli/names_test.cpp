#include "cli/names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace tandem {
namespace {

namespace fs = std::filesystem;

TEST(Host, brackets_of_urls_are_taken_off) {
  EXPECT_EQ(without_brackets("[::1]"), "::1");
  EXPECT_EQ(without_brackets("::1"), "::1");
  EXPECT_EQ(without_brackets("localhost"), "localhost");
  EXPECT_EQ(without_brackets("[]"), "[]");
  EXPECT_EQ(without_brackets("["), "[");
}

TEST(ModelName, is_the_last_part_of_the_path) {
  std::string name = (fs::temp_directory_path() / "tandem-name-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const fs::path folder = fs::path(name) / "Qwen2.5-0.5B";
  fs::create_directories(folder / "inner");
  std::ofstream(folder / "SmolLM2-135M.Q4_1.gguf") << "x";
  const std::string path = folder.string();
  for (const char* end : {"", "/", "//", "/.", "/./", "/.//", "/inner/..", "/inner/../"}) {
    EXPECT_EQ(model_name(path + end), "Qwen2.5-0.5B") << end;
  }
  EXPECT_EQ(model_name(folder / "SmolLM2-135M.Q4_1.gguf"), "SmolLM2-135M.Q4_1");
  EXPECT_EQ(model_name(path + "//SmolLM2-135M.Q4_1.gguf"), "SmolLM2-135M.Q4_1");
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  for (const char* here : {".", "./", ".//", "./inner/.."}) EXPECT_EQ(model_name(here), "Qwen2.5-0.5B") << here;
  fs::current_path(folder / "inner");
  for (const char* above : {"..", "../", "../."}) EXPECT_EQ(model_name(above), "Qwen2.5-0.5B") << above;
  fs::current_path(before);
  EXPECT_EQ(model_name("/"), "model");
  EXPECT_EQ(model_name("/."), "model");
  EXPECT_FALSE(model_name("").empty());
  fs::remove_all(name);
}

}  // namespace
}  // namespace tandem
