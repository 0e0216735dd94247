#include "comm/collective_call.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

Tensor elements(int64_t count, DType dtype = DType::float32) {
  static const int64_t kSomewhere = 0;  // never read
  return Tensor::contiguous(const_cast<int64_t*>(&kSomewhere), dtype, {count});
}

TEST(EvenSlice, CoversEverythingOnceAndEvenly) {
  for (int size = 1; size <= 9; ++size) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{64}, int64_t{1} << 62}) {
      int64_t expected_begin = 0;
      for (int rank = 0; rank < size; ++rank) {
        const ElementRange range = even_slice(count, rank, size);
        EXPECT_EQ(range.begin, expected_begin);
        EXPECT_GE(range.count(), count / size);
        EXPECT_LE(range.count(), count / size + 1);
        expected_begin = range.end;
      }
      EXPECT_EQ(expected_begin, count);
    }
  }
}

TEST(BytesSent, FollowsTheFormulas) {
  CollectiveCall call;
  call.collective = Collective::all_to_all;
  call.send = {elements(3), elements(0), elements(5, DType::float64), {}};
  EXPECT_EQ(bytes_sent(call, 0, 4), 40);
  EXPECT_EQ(bytes_sent(call, 2, 4), 12);
  EXPECT_EQ(bytes_sent(call, 3, 4), 52);
  call.collective = Collective::reduce_scatter;
  EXPECT_EQ(bytes_sent(call, 0, 4), 40);

  call.collective = Collective::all_gather;
  call.send = {elements(10, DType::bfloat16)};
  EXPECT_EQ(bytes_sent(call, 1, 5), 4 * 20);

  call.collective = Collective::broadcast;
  call.root = 2;
  EXPECT_EQ(bytes_sent(call, 2, 5), 4 * 20);
  EXPECT_EQ(bytes_sent(call, 1, 5), 0);

  call.collective = Collective::all_reduce;
  call.send = {elements(12)};
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(bytes_sent(call, rank, 4), 2 * 3 * 48 / 4);
  // Uneven slices: 11 elements on 4 ranks are 3, 3, 3, 2.
  call.send = {elements(11)};
  EXPECT_EQ(bytes_sent(call, 0, 4), (11 - 3 + 3 * 3) * 4);
  EXPECT_EQ(bytes_sent(call, 3, 4), (11 - 2 + 3 * 2) * 4);
  int64_t total = 0;
  for (int rank = 0; rank < 4; ++rank) total += bytes_sent(call, rank, 4);
  EXPECT_EQ(total, 2 * 3 * 44);
  EXPECT_EQ(bytes_sent(call, 0, 1), 0);

  call.collective = Collective::send_receive;
  call.to = 1;
  EXPECT_EQ(bytes_sent(call, 0, 4), 44);
  EXPECT_EQ(bytes_sent(call, 1, 4), 0);
  // Counts beyond 2^31 bytes and elements are exact.
  call.send = {elements(int64_t{3} << 31)};
  EXPECT_EQ(bytes_sent(call, 0, 4), int64_t{12} << 31);
}

TEST(NameRanks, JoinsNeighbours) {
  EXPECT_EQ(name_ranks(std::vector<int>{}), "no rank");
  EXPECT_EQ(name_ranks(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(name_ranks(std::vector<int>{0, 1}), "ranks 0, 1");
  EXPECT_EQ(name_ranks(std::vector<int>{0, 1, 2, 3, 5, 7, 8, 9}), "ranks 0-3, 5, 7-9");
}

TEST(FindMismatch, NamesRanksOperationsAndSizes) {
  const std::vector<int> names = {4, 6};
  CollectiveCall first;
  first.collective = Collective::all_to_all;
  first.send = {elements(1), elements(128)};
  first.receive = {elements(1), elements(7)};
  CollectiveCall second = first;
  second.send = {elements(7), elements(2)};
  second.receive = {elements(128), elements(2)};
  EXPECT_EQ(find_mismatch(first, 0, second, 1, names), "");
  second.receive[0] = elements(64);
  EXPECT_EQ(find_mismatch(first, 0, second, 1, names),
            "rank 4 calls all_to_all sending 128 float32 to rank 6, which expects 64 float32");
  second.receive[0] = elements(128, DType::int32);
  EXPECT_EQ(find_mismatch(second, 1, first, 0, names),
            "rank 4 calls all_to_all sending 128 float32 to rank 6, which expects 128 int32");
  second.receive[0] = {};
  EXPECT_EQ(find_mismatch(first, 0, second, 1, names),
            "rank 4 calls all_to_all sending 128 float32 to rank 6, which expects nothing");
  CollectiveCall other;
  other.collective = Collective::all_reduce;
  other.send = other.receive = {elements(5, DType::float64)};
  EXPECT_EQ(find_mismatch(first, 0, other, 1, names),
            "rank 4 calls all_to_all sending [1, 128] float32 and receiving [1, 7] float32, but rank 6 calls "
            "all_reduce of 5 float64");
  CollectiveCall longer = other;
  longer.send = longer.receive = {elements(6, DType::float64)};
  EXPECT_EQ(find_mismatch(other, 0, longer, 1, names),
            "rank 4 calls all_reduce of 5 float64, but rank 6 calls it of 6 float64");
  other.collective = longer.collective = Collective::broadcast;
  other.root = 1;
  EXPECT_EQ(find_mismatch(other, 0, longer, 1, names),
            "rank 4 calls broadcast from root 6, but rank 6 calls it from root 4");
}

TEST(CheckCall, RefusesWrongArguments) {
  CollectiveCall call;
  call.collective = Collective::all_to_all;
  call.send = {elements(1), elements(2)};
  call.receive = {elements(1), elements(2)};
  EXPECT_NO_THROW(check_call(call, 0, 2));
  EXPECT_THROW(check_call(call, 0, 3), ContractError);
  call.receive[0] = elements(2);
  EXPECT_THROW(check_call(call, 0, 2), ContractError);  // own block
  EXPECT_NO_THROW(check_call(call, 1, 2));
  call.send[0].data = nullptr;
  EXPECT_THROW(check_call(call, 1, 2), ContractError);

  call = {};
  call.collective = Collective::reduce_scatter;
  call.send = {elements(4, DType::bfloat16), elements(4, DType::bfloat16)};
  call.receive = {elements(4, DType::bfloat16)};
  EXPECT_THROW(check_call(call, 0, 2), ContractError);

  call = {};
  call.collective = Collective::all_reduce;
  call.send = call.receive = {elements(8).split(0, 2, 4).transpose(0, 1)};
  EXPECT_THROW(check_call(call, 0, 2), ContractError);

  call = {};
  call.collective = Collective::broadcast;
  call.send = call.receive = {elements(8)};
  call.root = 2;
  EXPECT_THROW(check_call(call, 0, 2), ContractError);

  call = {};
  call.collective = Collective::send_receive;
  call.send = {elements(4)};
  call.receive = {elements(4)};
  call.to = 0;
  call.from = 1;
  EXPECT_THROW(check_call(call, 0, 2), ContractError);  // to itself, but from another
  call.from = 0;
  EXPECT_NO_THROW(check_call(call, 0, 2));
  call.to = 5;
  EXPECT_THROW(check_call(call, 1, 2), ContractError);
}

}  // namespace
}  // namespace ithaca
