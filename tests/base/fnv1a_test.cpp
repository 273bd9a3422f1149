#include "base/fnv1a.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// The values of the authors' own test suite (Fowler, Noll, Vo).
TEST(Fnv1a, gives_the_published_hashes) {
  EXPECT_EQ(fnv1a(""), 0xCBF29CE484222325ULL);
  EXPECT_EQ(fnv1a("a"), 0xAF63DC4C8601EC8CULL);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171F73967E8ULL);
}

TEST(Fnv1a, is_the_same_in_one_call_or_several_and_for_bytes_or_numbers) {
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
  const std::byte bytes[8] = {std::byte{1}, std::byte{2}};
  EXPECT_EQ(fnv1a(bytes), fnv1a_number(0x0201, kFnv1aStart));
}

}  // namespace
}  // namespace tandem
