#include "cli/server_options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

namespace tandem {
namespace {

constexpr char kExample[] = TANDEM_TEST_DATA "/../../configs/tandem.yaml";

// Every option's present value, as the text the table shows for it.
std::vector<std::string> texts(ServerConfig config) {
  std::vector<std::string> out;
  const OptionTable table = server_options(config);
  for (const Option& option : table.options()) out.push_back(option.name + "=" + option.default_text);
  return out;
}

TEST(ServerOptions, every_default_text_can_be_set) {
  ServerConfig config;
  const OptionTable table = server_options(config);
  for (const Option& option : table.options()) {
    const absl::Status status = option.set(option.default_text);
    EXPECT_TRUE(status.ok()) << option.name << ": " << message(status);
    EXPECT_FALSE(option.help.empty()) << option.name;
    EXPECT_EQ(option.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"), std::string::npos) << option.name;
  }
  EXPECT_EQ(texts(config), texts(ServerConfig()));
  EXPECT_TRUE(check_server_config(config).ok());
}

TEST(ServerOptions, the_example_file_names_every_option_with_its_default) {
  ServerConfig config;
  const OptionTable table = server_options(config);
  const absl::Status status = apply_yaml_file(kExample, table);
  ASSERT_TRUE(status.ok()) << message(status);
  EXPECT_EQ(texts(config), texts(ServerConfig()));

  std::ifstream file(kExample);
  std::set<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') keys.insert(line.substr(0, line.find(':')));
  }
  for (const Option& option : table.options()) EXPECT_TRUE(keys.contains(option.name)) << option.name;
}

TEST(ServerOptions, the_pool_is_sized_once) {
  ServerConfig config;
  config.kv_cache_tokens = 1000;
  EXPECT_TRUE(check_server_config(config).ok());
  config.kv_cache_gib = 1.5;
  EXPECT_EQ(message(check_server_config(config)),
            "kv-cache-tokens (1000) and kv-cache-gib (1.5) both size the KV pool; set one of them to auto");
}

TEST(ServerOptions, blocks_are_powers_of_two) {
  ServerConfig config;
  EXPECT_TRUE(check_server_config(config).ok());
  config.block_tokens = 24;
  EXPECT_FALSE(check_server_config(config).ok());
  config.block_tokens = 32;
  EXPECT_TRUE(check_server_config(config).ok());
}

TEST(ServerOptions, a_key_no_client_could_send_is_refused_and_not_shown) {
  for (const char* key : {"", "two words", "tab\tbed", "line\nbreak", "gr\xC3\xBC\xC3\x9F"}) {
    ServerConfig config;
    config.api_keys = {"good", key};
    const absl::Status status = check_server_config(config);
    ASSERT_FALSE(status.ok()) << key;
    EXPECT_EQ(message(status).substr(0, 16), "api-keys: item 2");
    if (*key != '\0') {
      EXPECT_EQ(message(status).find(key), std::string_view::npos);
    }
  }
  ServerConfig config;
  config.admin_api_key = "two words";
  EXPECT_FALSE(check_server_config(config).ok());
}

TEST(ServerOptions, a_key_may_have_a_bound_of_its_own) {
  ServerConfig config;
  EXPECT_EQ(max_priority(config), std::nullopt) << "without keys nobody has to be kept from anybody";
  config.api_keys = {"alice max-priority=5", "bob"};
  EXPECT_TRUE(check_server_config(config).ok());
  auto keys = api_keys(config);
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ((*keys)[0].key, "alice");
  EXPECT_EQ((*keys)[0].max_priority, 5);
  EXPECT_EQ((*keys)[1].key, "bob");
  EXPECT_EQ((*keys)[1].max_priority, 0);
  config.max_priority = -3;
  EXPECT_EQ((*api_keys(config))[1].max_priority, -3);
  for (const char* bad : {"k max-priority=", "k max-priority=x", "k max-priority=2147483648", "k priority=1"}) {
    config.api_keys = {bad};
    EXPECT_FALSE(check_server_config(config).ok()) << bad;
  }
}

TEST(ServerOptions, origins_have_a_scheme_and_no_path) {
  const auto accepted = [](const char* origin) {
    ServerConfig config;
    config.cors_allow_origins = {origin};
    return check_server_config(config).ok();
  };
  for (const char* origin : {"*", "null", "https://a.example", "http://localhost:3000"}) {
    EXPECT_TRUE(accepted(origin)) << origin;
  }
  for (const char* origin : {"a.example", "https://a.example/", "https://", "://x", "https://a,https://b"}) {
    EXPECT_FALSE(accepted(origin)) << origin;
  }
}

}  // namespace
}  // namespace tandem
