#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text_fixture.h"

namespace tandem {
namespace {

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

TEST(Utf8, replaces_ill_formed_parts_as_python_does) {
  for (const auto& entry : read_fixture("decode.json")) {
    const std::string hex = entry[0];
    std::string repaired;
    append_repaired_utf8(repaired, from_hex(hex));
    EXPECT_EQ(repaired, entry[1].get<std::string>()) << hex;
  }
}

TEST(CharClass, agrees_with_the_reference_where_unicode_versions_and_engines_differ) {
  EXPECT_EQ(char_class(U'a'), CharClass::kLetter);
  EXPECT_EQ(char_class(U'7'), CharClass::kNumber);
  EXPECT_EQ(char_class(U'$'), CharClass::kSymbol);
  EXPECT_EQ(char_class(U'_'), CharClass::kPunctuation);
  EXPECT_EQ(char_class(0x0301), CharClass::kMark);
  EXPECT_EQ(char_class(0x0085), CharClass::kSpace);
  EXPECT_EQ(char_class(0x2029), CharClass::kSpace);
  EXPECT_EQ(char_class(0x3000), CharClass::kSpace);
  EXPECT_EQ(char_class(0x180E), CharClass::kOther);  // a space to PCRE2
  EXPECT_EQ(char_class(0x200B), CharClass::kOther);
  EXPECT_EQ(char_class(0x0378), CharClass::kOther);  // unassigned
  EXPECT_EQ(char_class(0x2EBF0), CharClass::kLetter);  // Unicode 15.1
  EXPECT_EQ(char_class(0x16FF4), CharClass::kLateNumber);
  EXPECT_EQ(char_class(0x10FFFF), CharClass::kOther);
}

TEST(CharClass, runs_are_sorted_and_count_as_the_reference_does) {
  const auto runs = char_class_runs();
  for (std::size_t i = 1; i < runs.size(); ++i) ASSERT_LT(runs[i - 1] >> 3, runs[i] >> 3);
  std::array<std::size_t, 8> counts{};
  for (char32_t c = 0; c < 0x110000; ++c) ++counts[static_cast<std::size_t>(char_class(c))];
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kLetter)], 141028U);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kNumber)], 1911U);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kMark)], 2501U);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kPunctuation)], 855U);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kSymbol)], 8514U);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kSpace)], 25U);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kLateNumber)], 13U);
}

TEST(Nfc, composes_and_leaves_ill_formed_text_alone) {
  EXPECT_EQ(to_nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc("e\xCC\x81\xFF"), "e\xCC\x81\xFF");
  EXPECT_EQ(to_nfc(""), "");
}

}  // namespace
}  // namespace tandem
