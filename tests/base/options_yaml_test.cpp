#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/options.h"
#include "base/temp_file.h"

namespace tandem {
namespace {

class YamlFile : public testing::Test {
 protected:
  YamlFile() {
    table_.add_text("name", name_, "");
    table_.add_integer("port", port_, 0, 65535, "");
    table_.add_integer("grpc-port", grpc_port_, "off", 0, 65535, "");
    table_.add_list("api-keys", keys_, "");
    table_.add_flag("verbose", verbose_, "");
  }

  absl::Status apply(std::string_view text) {
    const TempFile file(text);
    path_ = file.path();
    return apply_yaml_file(path_, table_);
  }

  // The error's text without the path in front.
  std::string error(std::string_view text) {
    const absl::Status status = apply(text);
    if (status.ok()) return "(accepted)";
    const std::string whole(message(status));
    return whole.rfind(path_, 0) == 0 ? whole.substr(path_.size() + 1) : "(no path) " + whole;
  }

  OptionTable table_;
  std::string path_;
  std::string name_ = "default";
  std::uint16_t port_ = 1;
  std::optional<std::uint16_t> grpc_port_ = 7;
  std::vector<std::string> keys_;
  bool verbose_ = false;
};

TEST_F(YamlFile, values_are_taken_as_written) {
  const absl::Status status = apply(
      "# comment\n"
      "name: yes\n"
      "port: 0080\n"
      "grpc-port: off\n"
      "api-keys:\n  - one\n  - 'two words'\n  - 0x10\n"
      "verbose: true\n");
  ASSERT_TRUE(status.ok()) << message(status);
  EXPECT_EQ(name_, "yes");
  EXPECT_EQ(port_, 80);
  EXPECT_EQ(grpc_port_, std::nullopt);
  EXPECT_EQ(keys_, (std::vector<std::string>{"one", "two words", "0x10"}));
  EXPECT_TRUE(verbose_);
}

TEST_F(YamlFile, quoted_numbers_and_flow_style_are_accepted) {
  ASSERT_TRUE(apply("{port: \"9000\", api-keys: [], name: \"\"}").ok());
  EXPECT_EQ(port_, 9000);
  EXPECT_EQ(name_, "");
}

TEST_F(YamlFile, files_from_other_systems_are_read) {
  ASSERT_TRUE(apply("\xEF\xBB\xBFport: 90\r\nname: x\r\n").ok());
  EXPECT_EQ(port_, 90);
  EXPECT_EQ(name_, "x");
  ASSERT_TRUE(apply("name: |\n  two\n  lines").ok());
  EXPECT_EQ(name_, "two\nlines\n");
}

TEST_F(YamlFile, nothing_set_changes_nothing) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "--- {}\n", "{}"}) {
    EXPECT_EQ(error(text), "(accepted)") << text;
  }
  EXPECT_EQ(name_, "default");
  EXPECT_EQ(port_, 1);
}

TEST_F(YamlFile, unknown_and_repeated_keys_are_refused_with_their_line) {
  EXPECT_EQ(error("port: 1\nprot: 2\n"), "2: unknown option \"prot\"; did you mean \"port\"?");
  EXPECT_EQ(error("api_keys: [a]\n"), "1: unknown option \"api_keys\"; did you mean \"api-keys\"?");
  EXPECT_EQ(error("<<: 1\n"), "1: unknown option \"<<\"");
  EXPECT_EQ(error("port: 1\n\nport: 2\n"), "3: port is set a second time; remove one");
  EXPECT_EQ(port_, 1);
}

TEST_F(YamlFile, wrong_types_are_refused_with_their_line) {
  EXPECT_EQ(error("name: x\nport: many\n"),
            "2: port: \"many\" is not a whole number; write a whole number from 0 to 65535");
  EXPECT_EQ(error("port: 70000"), "1: port: \"70000\" is out of range; write a whole number from 0 to 65535");
  EXPECT_EQ(error("verbose: yes"), "1: verbose: \"yes\" is not one of true|false");
  EXPECT_EQ(error("port: [1]"), "1: port: takes one value, not a list");
  EXPECT_EQ(error("api-keys: secret"), "1: api-keys: takes a list; write [first, second]");
  EXPECT_EQ(error("api-keys:\n  - a\n  - [b]\n"), "3: api-keys: a list is not expected here");
  EXPECT_EQ(error("api-keys:\n  - a\n  - b: c\n"), "3: api-keys: options do not nest; write it at the top level");
  EXPECT_EQ(error("port:\n  http: 1\n"), "2: port: options do not nest; write it at the top level");
  EXPECT_EQ(error("name: a\nport:\n"), "2: port: has no value; write one (\"\" for an empty text)");
  EXPECT_EQ(error("port: ~\n"), "1: port: has no value; write one (\"\" for an empty text)");
  EXPECT_EQ(error("api-keys: [a, ~]"), "1: api-keys: has no value; write one (\"\" for an empty text)");
  EXPECT_EQ(error("api-keys: ['']"), "1: api-keys: an item of the list is empty; remove it");
}

TEST_F(YamlFile, other_shapes_are_refused) {
  EXPECT_EQ(error("just text"), "1: the file must be a mapping of options, such as `port: 8080`");
  EXPECT_EQ(error("- port\n"), "1: a list is not expected here");
  EXPECT_EQ(error("port: 1\n---\nport: 2\n"), "2: a second document starts here; keep one");
  EXPECT_EQ(error("port: !!int 1\n"), "1: port: the tag tag:yaml.org,2002:int is not supported");
  EXPECT_EQ(error("port: &a 1\n"), "1: port: anchors are not supported");
  EXPECT_EQ(error("name: &a x\nname: *a\n"), "1: name: anchors are not supported");
  EXPECT_EQ(error("? [a, b]\n: 1\n"), "1: a list is not expected here");
  EXPECT_EQ(error("? {a: b}\n: 1\n"), "1: options do not nest; write it at the top level");
  EXPECT_EQ(error("~: 1\n"), "1: a key is empty");
}

TEST_F(YamlFile, what_is_not_yaml_is_refused_with_its_line) {
  EXPECT_EQ(error("port: 1\nname: \"open\n"), "2: name: the quote opened here is never closed");
  EXPECT_EQ(error("port: 1\nname: 'open # more\n\n"), "2: name: the quote opened here is never closed");
  EXPECT_EQ(error("port: 1\n\"open: 2\n"), "2: the quote opened here is never closed");
  EXPECT_EQ(error("port: 1\napi-keys: [a,\n").substr(0, 3), "2: ");
  EXPECT_NE(error("port: 1\n\tname: x\n").find("not valid YAML"), std::string::npos);
  EXPECT_FALSE(apply("port: 1\n name: x\n").ok());
}

TEST_F(YamlFile, hostile_files_end_with_an_error) {
  for (const char* piece : {"[", "{", "- ", "? ", "a: ", "&a ", "!!a ", "{a: [", "\"", "\xFF\xFE", "|\n ", "*"}) {
    std::string text;
    while (text.size() < 20'000) text += piece;
    EXPECT_FALSE(apply(text).ok()) << piece;
    EXPECT_FALSE(apply("port: " + text).ok()) << piece;
  }
  EXPECT_FALSE(apply("port: 1 # " + std::string(2'000'000, 'x')).ok());
  EXPECT_FALSE(apply(std::string("port: 1\n\0name: x\n", 17)).ok());
}

TEST_F(YamlFile, missing_files_and_folders_are_named) {
  EXPECT_EQ(message(apply_yaml_file("/nonexistent/x.yaml", table_)),
            "open the configuration file /nonexistent/x.yaml: No such file or directory");
  EXPECT_EQ(message(apply_yaml_file("/", table_)), "read the configuration file /: Is a directory");
}

}  // namespace
}  // namespace tandem
