#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace ithaca {
namespace {

TEST(ParallelParts, EveryIndexIsVisitedOnce) {
  for (const int64_t count : {0, 1, 7, 1000, 100003}) {
    for (const int64_t smallest : {1, 10, 1000000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      parallel_parts(count, smallest, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) ++visits[static_cast<size_t>(index)];
      });
      for (const std::atomic<int>& visit : visits) ASSERT_EQ(visit.load(), 1);
    }
  }
}

TEST(ParallelParts, ThrowsWhatAPartThrows) {
  EXPECT_THROW(parallel_parts(100000, 1,
                              [](int64_t, int64_t end) {
                                if (end == 100000) throw std::runtime_error("last part");
                              }),
               std::runtime_error);
}

}  // namespace
}  // namespace ithaca
