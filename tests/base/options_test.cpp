#include "base/options.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace tandem {
namespace {

struct Values {
  std::string text = "start";
  std::vector<std::string> list = {"a", "b"};
  bool flag = false;
  std::uint16_t port = 80;
  std::optional<std::uint32_t> limit;
  std::optional<double> size;
  enum class Color { kRed, kBlue } color = Color::kBlue;
};

OptionTable table_over(Values& v) {
  OptionTable table;
  table.add_text("text", v.text, "a text");
  table.add_list("list", v.list, "a list");
  table.add_flag("flag", v.flag, "a flag");
  table.add_integer("port", v.port, 0, 65535, "a port");
  table.add_integer("max-limit", v.limit, "auto", 1, 100, "a limit");
  table.add_real("size", v.size, "auto", 0.5, 10, "a size");
  table.add_choice("color", v.color, {{"red", Values::Color::kRed}, {"blue", Values::Color::kBlue}}, "a color");
  return table;
}

absl::Status set(const OptionTable& table, std::string_view name, std::string_view text) {
  const Option* option = table.find(name);
  return option == nullptr ? absl::NotFoundError(std::string(name)) : option->set(text);
}

TEST(Options, default_texts_are_the_values_at_the_start_and_can_be_set_back) {
  Values v;
  const OptionTable table = table_over(v);
  EXPECT_EQ(table.find("text")->default_text, "start");
  EXPECT_EQ(table.find("list")->default_text, "a,b");
  EXPECT_EQ(table.find("flag")->default_text, "false");
  EXPECT_EQ(table.find("port")->default_text, "80");
  EXPECT_EQ(table.find("max-limit")->default_text, "auto");
  EXPECT_EQ(table.find("color")->default_text, "blue");
  for (const Option& option : table.options()) EXPECT_TRUE(option.set(option.default_text).ok()) << option.name;
  EXPECT_EQ(v.list, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(v.color, Values::Color::kBlue);
}

TEST(Options, set_changes_the_struct) {
  Values v;
  const OptionTable table = table_over(v);
  ASSERT_TRUE(set(table, "text", "x y").ok());
  ASSERT_TRUE(set(table, "list", "one,two,three").ok());
  ASSERT_TRUE(set(table, "flag", "true").ok());
  ASSERT_TRUE(set(table, "port", "65535").ok());
  ASSERT_TRUE(set(table, "max-limit", "100").ok());
  ASSERT_TRUE(set(table, "size", "0.75").ok());
  ASSERT_TRUE(set(table, "color", "red").ok());
  EXPECT_EQ(v.text, "x y");
  EXPECT_EQ(v.list.size(), 3U);
  EXPECT_TRUE(v.flag);
  EXPECT_EQ(v.port, 65535);
  EXPECT_EQ(v.limit, 100U);
  EXPECT_EQ(v.size, 0.75);
  EXPECT_EQ(v.color, Values::Color::kRed);
  ASSERT_TRUE(set(table, "max-limit", "auto").ok());
  EXPECT_EQ(v.limit, std::nullopt);
}

TEST(Options, numbers_are_whole_decimal_and_in_range) {
  Values v;
  const OptionTable table = table_over(v);
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "1.0", "0x10", "65536", "99999999999999999999", "1e3", "off"}) {
    EXPECT_FALSE(set(table, "port", text).ok()) << text;
  }
  for (const char* text : {"", "nan", "inf", "-inf", "0.49", "10.01", "1,5", "0x1p1", "1e999"}) {
    EXPECT_FALSE(set(table, "size", text).ok()) << text;
  }
  EXPECT_EQ(v.port, 80);
  EXPECT_EQ(v.size, std::nullopt);
  EXPECT_EQ(message(set(table, "port", "70000")), "\"70000\" is out of range; write a whole number from 0 to 65535");
  EXPECT_EQ(message(set(table, "port", "many")),
            "\"many\" is not a whole number; write a whole number from 0 to 65535");
}

TEST(Options, other_words_are_refused_with_the_choices) {
  Values v;
  const OptionTable table = table_over(v);
  EXPECT_EQ(message(set(table, "color", "green")), "\"green\" is not one of red|blue");
  EXPECT_EQ(message(set(table, "flag", "yes")), "\"yes\" is not one of true|false");
  EXPECT_FALSE(set(table, "list", "a,,b").ok());
  EXPECT_EQ(v.list, (std::vector<std::string>{"a", "b"}));
}

TEST(Options, a_single_value_cannot_be_given_twice) {
  Values v;
  const OptionTable table = table_over(v);
  const std::vector<std::string> twice = {"1", "2"};
  EXPECT_FALSE(table.find("port")->assign(twice).ok());
  EXPECT_FALSE(table.find("port")->assign({}).ok());
  ASSERT_TRUE(table.find("list")->assign(twice).ok());
  EXPECT_EQ(v.list, twice);
  ASSERT_TRUE(table.find("list")->assign({}).ok());
  EXPECT_TRUE(v.list.empty());
}

TEST(Options, near_names_are_suggested) {
  Values v;
  const OptionTable table = table_over(v);
  EXPECT_EQ(table.did_you_mean("prot"), "; did you mean \"port\"?");
  EXPECT_EQ(table.did_you_mean("max_limit"), "; did you mean \"max-limit\"?");
  EXPECT_EQ(table.did_you_mean("temperature"), "");
  EXPECT_EQ(table.did_you_mean(std::string(100'000, 'p')), "");
}

TEST(OptionsDeathTest, one_name_cannot_mean_two_options) {
  Values v;
  OptionTable table = table_over(v);
  EXPECT_DEATH(table.add_flag("port", v.flag, ""), "option port is added once");
}

}  // namespace
}  // namespace tandem
