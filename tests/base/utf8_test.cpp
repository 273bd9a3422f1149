#include "base/utf8.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Utf8, every_code_point_survives_and_every_proper_prefix_is_incomplete) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Unit unit = decode_utf8(text);
    ASSERT_EQ(unit.state, Utf8State::kValid) << std::hex << static_cast<unsigned>(c);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(unit.length, text.size());
    for (std::size_t size = 1; size < text.size(); ++size) {
      const Utf8Unit part = decode_utf8(std::string_view(text).substr(0, size));
      ASSERT_EQ(part.state, Utf8State::kIncomplete);
      ASSERT_EQ(part.length, size);
    }
  }
}

TEST(Utf8, valid_prefix_ends_before_the_first_ill_formed_byte) {
  EXPECT_EQ(valid_utf8_prefix(""), 0U);
  EXPECT_EQ(valid_utf8_prefix("a\xC3\xA9z"), 4U);
  EXPECT_EQ(valid_utf8_prefix("a\xC3\xA9\xE2\x82"), 3U);
  EXPECT_EQ(valid_utf8_prefix("a\x80"), 1U);
}

TEST(Utf8, repairs_ill_formed_parts_and_nothing_else) {
  std::string out;
  append_repaired_utf8(out, "a\xC3\xA9\xE2\x82z\xED\xA0\x80\xF0\x9F");
  EXPECT_EQ(out, "a\u00E9\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_FALSE(is_utf8("\xC0\xAF"));
  EXPECT_TRUE(is_utf8(out));
}

TEST(Utf8, counts_the_characters_that_start) {
  EXPECT_EQ(count_code_points("a\u00E9\U0001F600"), 3U);
  EXPECT_EQ(count_code_points("\x98\x80"), 0U);
}

}  // namespace
}  // namespace tandem
