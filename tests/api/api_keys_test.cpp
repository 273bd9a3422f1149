#include "api/api_keys.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(ApiKeys, a_tenant_is_its_key_wherever_the_key_stands_in_the_list) {
  const ApiKeys first({ApiKey{"alice"}, ApiKey{"bob"}});
  const ApiKeys second({ApiKey{"carol"}, ApiKey{"bob"}, ApiKey{"alice"}});
  const auto alice = first.caller("Bearer alice");
  ASSERT_TRUE(alice);
  EXPECT_EQ(alice->tenant, second.caller("bearer  alice")->tenant);
  EXPECT_NE(alice->tenant, first.caller("Bearer bob")->tenant);
  EXPECT_EQ(alice->tenant.find("alice"), std::string::npos);
}

TEST(ApiKeys, only_a_key_of_the_list_may_call) {
  const ApiKeys keys({ApiKey{"alice"}});
  for (const char* header : {"", "alice", "Basic alice", "Bearer", "Bearer ", "Bearer alic", "Bearer alice2"}) {
    EXPECT_FALSE(keys.caller(header)) << header;
  }
}

TEST(ApiKeys, without_keys_anybody_calls_under_the_common_bound) {
  const auto anybody = ApiKeys({}, 7).caller("Bearer whatever");
  ASSERT_TRUE(anybody);
  EXPECT_EQ(anybody->tenant, "");
  EXPECT_EQ(anybody->max_priority, 7);
}

TEST(Attribute, lowers_what_is_above_the_bound_and_nothing_else) {
  const Caller caller{.tenant = "t", .max_priority = 5};
  for (const auto& [asked, got] : {std::pair{6, 5}, {5, 5}, {-9, -9}, {2147483647, 5}}) {
    Request request;
    request.priority = asked;
    const auto lowered = attribute(caller, request);
    EXPECT_EQ(request.priority, got);
    EXPECT_EQ(lowered.has_value(), asked > 5);
    EXPECT_EQ(request.tenant, "t");
  }
}

}  // namespace
}  // namespace tandem
