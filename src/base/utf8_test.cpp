#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ithaca {
namespace {

// The well-formed and ill-formed sequences of the Unicode standard (15.0, tables 3-7 and 3-8).
TEST(Utf8, WellFormedAndNot) {
  for (const std::string_view good :
       {"", "abcdefghijklmnop", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "12345678\xC3\xA9"}) {
    EXPECT_EQ(valid_utf8_prefix(good), static_cast<int64_t>(good.size())) << good;
    EXPECT_EQ(valid_utf8(good), good);
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC3("}) {
    EXPECT_EQ(valid_utf8_prefix(std::string("0123456789") + bad), 10) << bad;
    EXPECT_EQ(valid_utf8_prefix(bad + std::string("0123456789")), 0) << bad;
    EXPECT_EQ(valid_character_length(bad), 0) << bad;
  }
}

// Table 3-8 of the standard, and the example of its chapter 3.9 ("61 F1 80 80 E1 80 C2 62 80 63 80 BF 64").
TEST(Utf8, MaximalSubpartsBecomeOneReplacement) {
  EXPECT_EQ(valid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b\xEF\xBF\xBD"
            "c\xEF\xBF\xBD\xEF\xBF\xBD"
            "d");
  EXPECT_EQ(invalid_utf8_length("\xF1\x80\x80\xE1"), 3);
  EXPECT_EQ(invalid_utf8_length("\xE1\x80"), 2);
  EXPECT_EQ(invalid_utf8_length("\xED\xA0\x80"), 1);
  EXPECT_EQ(invalid_utf8_length("\xC2"), 1);
}

TEST(Utf8, CodePointsAndBytes) {
  const std::vector<std::pair<char32_t, std::string>> characters = {{U'a', "a"},
                                                                    {0x7F, "\x7F"},
                                                                    {0x80, "\xC2\x80"},
                                                                    {0x7FF, "\xDF\xBF"},
                                                                    {0x800, "\xE0\xA0\x80"},
                                                                    {0xFFFD, "\xEF\xBF\xBD"},
                                                                    {0x10000, "\xF0\x90\x80\x80"},
                                                                    {0x10FFFF, "\xF4\x8F\xBF\xBF"}};
  std::string all;
  for (const auto& [code_point, bytes] : characters) {
    std::string written;
    append_utf8(written, code_point);
    EXPECT_EQ(written, bytes);
    EXPECT_EQ(utf8_length(bytes[0]), static_cast<int64_t>(bytes.size())) << bytes;
    EXPECT_EQ(valid_character_length(bytes + "\x80"), static_cast<int64_t>(bytes.size())) << bytes;
    EXPECT_EQ(first_code_point(bytes + "b"), code_point);
    all += bytes;
    EXPECT_EQ(last_code_point(all), code_point);
  }
  EXPECT_EQ(code_point_count(all), 8);
  EXPECT_EQ(code_point_count(""), 0);
  EXPECT_EQ(kReplacementCharacter, characters[5].second);
}

TEST(Utf8, BordersOfCharacters) {
  const std::string text =
      "a\xE2\x82\xAC"
      "b";
  const std::vector<size_t> begins = {0, 1, 1, 1, 4, 5, 6};
  for (size_t offset = 0; offset < begins.size(); ++offset) {
    EXPECT_EQ(character_begin(text, offset), begins[offset]) << offset;
  }
  EXPECT_EQ(skip_ascii(text, 0), 1);
  EXPECT_EQ(skip_ascii(text, 4), 5);
  EXPECT_EQ(skip_ascii("0123456789\xC3\xA9", 1), 10);
}

}  // namespace
}  // namespace ithaca
