#include "cli/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace ithaca {

std::vector<std::string> plot_curve(const std::vector<double>& x, const std::vector<double>& y,
                                    const std::string& x_name, const PlotSize& size) {
  require(x.size() == y.size(), "plot_curve: x and y must have the same length");
  require(size.columns >= 2 && size.rows >= 2, "plot_curve: at least two columns and rows");
  if (x.empty()) return {};
  const double x_low = x.front();
  const double x_high = std::max(x.back(), x_low + 1e-300);
  std::vector<double> sums(size.columns, 0.0);
  std::vector<int64_t> counts(size.columns, 0);
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(y[i])) continue;
    const double place = (x[i] - x_low) / (x_high - x_low) * static_cast<double>(size.columns - 1);
    const auto column = std::min(size.columns - 1, static_cast<size_t>(std::lround(std::max(0.0, place))));
    sums[column] += y[i];
    ++counts[column];
  }
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (size_t column = 0; column < size.columns; ++column) {
    if (counts[column] == 0) continue;
    sums[column] /= static_cast<double>(counts[column]);
    low = std::min(low, sums[column]);
    high = std::max(high, sums[column]);
  }
  if (low > high) return {};
  if (low == high) {
    // A flat curve runs through the middle.
    const double half = std::max(std::abs(low) * 0.05, 1e-6);
    low -= half;
    high += half;
  }
  std::vector<std::string> grid(size.rows, std::string(size.columns, ' '));
  for (size_t column = 0; column < size.columns; ++column) {
    if (counts[column] == 0) continue;
    const double height = (sums[column] - low) / (high - low) * static_cast<double>(size.rows - 1);
    grid[size.rows - 1 - static_cast<size_t>(std::lround(height))][column] = '*';
  }
  std::vector<std::string> lines;
  for (size_t row = 0; row < size.rows; ++row) {
    const double value = high - (high - low) * static_cast<double>(row) / static_cast<double>(size.rows - 1);
    const bool labelled = row == 0 || row + 1 == size.rows || row == size.rows / 2;
    std::string text = fmt::format("{:>9} |{}", labelled ? fmt::format("{:.4g}", value) : std::string(), grid[row]);
    text.erase(text.find_last_not_of(' ') + 1);
    lines.push_back(std::move(text));
  }
  lines.push_back(fmt::format("{:>9} +{}", "", std::string(size.columns, '-')));
  const std::string left = fmt::format("{:g}", x.front());
  const std::string right = fmt::format("{} {:g}", x_name, x.back());
  const size_t gap = size.columns > left.size() + right.size() ? size.columns - left.size() - right.size() : 1;
  lines.push_back(fmt::format("{:>9}  {}{}{}", "", left, std::string(gap, ' '), right));
  return lines;
}

}  // namespace ithaca
