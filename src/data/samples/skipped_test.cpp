#include "data/samples/skipped.h"

#include <gtest/gtest.h>

namespace ithaca {
namespace {

TEST(ReasonCounter, GroupsByReasonInTheOrderOfFirstRecords) {
  ReasonCounter counter;
  EXPECT_TRUE(counter.empty());
  EXPECT_EQ(counter.text(), "");
  counter.add(RecordError("a:1", "the role \"bot\" is not known", "role not known"));
  EXPECT_EQ(counter.text(), "1 record skipped:\n  1 x role not known, first a:1: the role \"bot\" is not known");
  counter.add(RecordError("a:7", "x is missing", "missing"));
  counter.add(RecordError("a:8", "the role \"cat\" is not known", "role not known"));

  ReasonCounter later;
  later.add("new", "b:2", "something");
  later.add("missing", "b:3", "y is missing", 1998);
  counter.merge(later);
  EXPECT_EQ(counter.count(), 2002);
  EXPECT_EQ(counter.groups().size(), 3u);
  EXPECT_EQ(counter.text(),
            "2,002 records skipped:\n"
            "  2 x role not known, first a:1: the role \"bot\" is not known\n"
            "  1,999 x missing, first a:7: x is missing\n"
            "  1 x new, first b:2: something");
}

// That records can be skipped is not worth saying of one that was.
TEST(ReasonCounter, LeavesOutTheAdviceToSkip) {
  const RecordError error("a:1", "no role", "no role", ", or skip it");
  EXPECT_STREQ(error.what(), "a:1: no role, or skip it");
  ReasonCounter counter;
  counter.add(error);
  EXPECT_EQ(counter.text(), "1 record skipped:\n  1 x no role, first a:1: no role");
}

}  // namespace
}  // namespace ithaca
