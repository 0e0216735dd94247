#include "cli/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace ithaca {
namespace {

TEST(Plot, AFallingLineGoesFromCornerToCorner) {
  const std::vector<std::string> lines = plot_curve({0, 1, 2, 3}, {3, 2, 1, 0}, "step", {.columns = 4, .rows = 4});
  EXPECT_THAT(lines, testing::ElementsAre("        3 |*", "          | *", "        1 |  *", "        0 |   *",
                                          "          +----", "           0 step 3"));
}

TEST(Plot, ManyPointsOfOneColumnAreAveraged) {
  std::vector<double> x;
  std::vector<double> y;
  for (int i = 0; i < 1000; ++i) {
    x.push_back(i);
    y.push_back(i < 500 ? 10.0 + (i % 2 == 0 ? 1.0 : -1.0) : 2.0);
  }
  const std::vector<std::string> lines = plot_curve(x, y, "step", {.columns = 10, .rows = 5});
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), '*'), 5);
  EXPECT_EQ(std::count(lines[4].begin(), lines[4].end(), '*'), 5);
  EXPECT_THAT(lines[4], testing::HasSubstr(" 2 |"));
}

TEST(Plot, FlatSingleAndEmptyCurves) {
  EXPECT_THAT(plot_curve({1}, {5}, "step"), testing::Contains(testing::HasSubstr("|*")));
  const std::vector<std::string> flat = plot_curve({1, 2}, {5, 5}, "step", {.columns = 2, .rows = 3});
  EXPECT_EQ(flat[1], "        5 |**");
  EXPECT_TRUE(plot_curve({}, {}, "step").empty());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(plot_curve({1, 2}, {nan, nan}, "step").empty());
}

TEST(Plot, PointsThatAreNotFiniteAreLeftOut) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::string> lines = plot_curve({0, 1, 2}, {2, nan, 0}, "step", {.columns = 3, .rows = 3});
  EXPECT_EQ(lines[0], "        2 |*");
  EXPECT_EQ(lines[1], "        1 |");
  EXPECT_EQ(lines[2], "        0 |  *");
}

TEST(Plot, UnequalLengthsBreakTheContract) {
  EXPECT_THROW(plot_curve({1, 2}, {1}, "step"), ContractError);
}

}  // namespace
}  // namespace ithaca
