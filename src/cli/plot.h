// A curve as lines of text. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ithaca {

struct PlotSize {
  size_t columns = 64;  // of the curve, without its axis
  size_t rows = 12;
};

// y over x, both of the same length, x rising: the mean of the points of each column. Points that are not finite are
// left out. Returns the lines, axis included; empty when no point is finite.
std::vector<std::string> plot_curve(const std::vector<double>& x, const std::vector<double>& y,
                                    const std::string& x_name, const PlotSize& size = {});

}  // namespace ithaca
