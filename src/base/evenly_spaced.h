// Some of many, evenly from the first to the last. Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ithaca {

// `most` (at least 2) ascending numbers below `count`, 0 and count - 1 among them; all of them where there are no more.
inline std::vector<int64_t> evenly_spaced(int64_t count, int64_t most) {
  std::vector<int64_t> numbers;
  for (int64_t index = 0; index < std::min(count, most); ++index) {
    numbers.push_back(count <= most ? index : index * (count - 1) / (most - 1));
  }
  return numbers;
}

}  // namespace ithaca
