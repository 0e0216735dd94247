#include "attention/documents.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

TEST(Documents, LaysLengthsEndToEndAndDropsEmptyOnes) {
  const std::vector<int64_t> lengths{3, 0, 1, 4};
  const Documents documents(lengths);
  EXPECT_EQ(documents.count(), 3);
  EXPECT_EQ(documents.total_tokens(), 8);
  EXPECT_EQ(documents.begin(1), 3);
  EXPECT_EQ(documents.end(1), 4);
  std::vector<int64_t> owners;
  for (int64_t token = 0; token < 8; ++token) owners.push_back(documents.document_of(token));
  EXPECT_EQ(owners, (std::vector<int64_t>{0, 0, 0, 1, 2, 2, 2, 2}));
}

TEST(Documents, NoTokens) {
  EXPECT_EQ(Documents().count(), 0);
  EXPECT_EQ(Documents::single(0), Documents());
  EXPECT_EQ(Documents::single(5).count(), 1);
  EXPECT_THROW(Documents().document_of(0), ContractError);
}

TEST(Documents, RefusesWhatIsNotALength) {
  EXPECT_THROW(Documents(std::vector<int64_t>{3, -1}), ContractError);
  EXPECT_THROW(Documents(std::vector<int64_t>{INT64_MAX, 1}), ContractError);
  EXPECT_THROW(Documents::single(5).document_of(5), ContractError);
  EXPECT_THROW(Documents::single(5).document_of(-1), ContractError);
}

TEST(Documents, LongerThanThirtyTwoBits) {
  const Documents documents(std::vector<int64_t>{int64_t{1} << 33, 5});
  EXPECT_EQ(documents.document_of(int64_t{1} << 32), 0);
  EXPECT_EQ(documents.document_of((int64_t{1} << 33) + 4), 1);
}

}  // namespace
}  // namespace ithaca
