#include "base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ithaca {
namespace {

TEST(FormatBytes, IsExactBelowOneKibibyteAndRoundedAbove) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{24} << 30), "24.00 GiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8192.00 PiB");
  EXPECT_EQ(format_bytes(-1536), "-1.50 KiB");
}

TEST(FormatBytes, NeverPrintsAThousandAndTwentyFourOfAUnit) {
  EXPECT_EQ(format_bytes((int64_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 20) - (int64_t{1} << 10)), "1023.00 KiB");
}

TEST(FormatCount, GroupsByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-123), "-123");
  EXPECT_EQ(format_count(-1234), "-1,234");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(FormatShort, HasThreeSignificantDigits) {
  EXPECT_EQ(format_short(0), "0");
  EXPECT_EQ(format_short(7), "7");
  EXPECT_EQ(format_short(0.5), "0.50");
  EXPECT_EQ(format_short(999), "999");
  EXPECT_EQ(format_short(1234), "1.23k");
  EXPECT_EQ(format_short(12345678), "12.3M");
  EXPECT_EQ(format_short(7.0e9), "7.00G");
  EXPECT_EQ(format_short(-12345), "-12.3k");
  EXPECT_EQ(format_short(1.5e15), "1500T");
}

TEST(FormatShort, RoundsIntoTheNextDigitAndUnit) {
  EXPECT_EQ(format_short(999.9), "1.00k");
  EXPECT_EQ(format_short(999600), "1.00M");
  EXPECT_EQ(format_short(9.996e3), "10.0k");
  EXPECT_EQ(format_short(99.96e3), "100k");
}

TEST(FormatDuration, UsesTheUnitsThatFit) {
  EXPECT_EQ(format_duration(0), "0.0s");
  EXPECT_EQ(format_duration(12.54), "12.5s");
  EXPECT_EQ(format_duration(59.94), "59.9s");
  EXPECT_EQ(format_duration(59.96), "1m 00s");
  EXPECT_EQ(format_duration(200), "3m 20s");
  EXPECT_EQ(format_duration(3599.6), "1h 00m");
  EXPECT_EQ(format_duration(3720), "1h 02m");
  EXPECT_EQ(format_duration(90000), "1d 01h");
}

TEST(FormatDuration, SaysSoWhenThereIsNoNumber) {
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(1e300), "?");  // more seconds than an int64 holds
}

TEST(NearestName, FindsMisspeltNames) {
  const std::vector<std::string> known = {"learning_rate", "adam_beta1", "adam_beta2", "sp_size", "zero"};
  EXPECT_EQ(nearest_name("learning_rat", known), "learning_rate");
  EXPECT_EQ(nearest_name("lerning_rate", known), "learning_rate");
  EXPECT_EQ(nearest_name("adam_beta_2", known), "adam_beta2");
  EXPECT_EQ(nearest_name("sp_sise", known), "sp_size");
  EXPECT_EQ(nearest_name("zero", known), "zero");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  const std::vector<std::string> known = {"learning_rate", "sp_size"};
  EXPECT_EQ(nearest_name("tokenizer", known), "");
  EXPECT_EQ(nearest_name("", known), "");
  EXPECT_EQ(nearest_name("x", std::vector<std::string>{}), "");
  EXPECT_EQ(nearest_name("ab", std::vector<std::string>{"xy"}), "");
}

TEST(Text, WordsOfAShellAreQuotedWhereTheyNeedIt) {
  EXPECT_EQ(shell_word("runs/first-2_a.b"), "runs/first-2_a.b");
  EXPECT_EQ(shell_word("my runs/first"), "'my runs/first'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word("~/x"), "'~/x'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Text, ManualPagesNeedEscapes) {
  EXPECT_EQ(escape_man_text("--set a.b"), "\\-\\-set a.b");
  EXPECT_EQ(escape_man_text(".gz"), "\\&.gz");
  EXPECT_EQ(escape_man_text("'x'\n.y"), "\\&'x'\n\\&.y");
  EXPECT_EQ(escape_man_text("a\\b"), "a\\eb");
}

}  // namespace
}  // namespace ithaca
