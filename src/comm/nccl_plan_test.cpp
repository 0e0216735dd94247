// Which blocks travel as they lie, which are packed, and what each rank sends: held to the formulas of the traffic.
#include "comm/nccl_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/comm_testing.h"

namespace ithaca {
namespace {

using testing::Block;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::tensors_of;

// A plan and the room that it was given.
struct Planned {
  std::vector<std::vector<double>> room;
  std::vector<std::string> names;
  std::vector<ExchangeStep> steps;

  Planned(const CollectiveCall& call, int rank, int size) {
    check_call(call, rank, size);
    steps = plan_exchange(call, rank, size, [&](std::string_view name, DType dtype, int64_t elements) {
      room.emplace_back(static_cast<size_t>(elements));
      names.emplace_back(name);
      return Tensor::contiguous(room.back().data(), dtype, {elements});
    });
  }
  int64_t bytes_sent() const {
    int64_t bytes = 0;
    for (const ExchangeStep& step : steps) {
      for (const DeviceMessage& message : step.sends) bytes += message.data.byte_count();
    }
    return bytes;
  }
};

std::vector<int> peers_of(const std::vector<DeviceMessage>& messages) {
  std::vector<int> peers;
  for (const DeviceMessage& message : messages) peers.push_back(message.peer);
  return peers;
}

std::vector<Block<double>> blocks(std::initializer_list<int64_t> counts, int style = 0) {
  std::vector<Block<double>> result;
  for (const int64_t count : counts) result.emplace_back(count, style);
  return result;
}

CollectiveCall call_of(Collective collective, std::vector<Tensor> send, std::vector<Tensor> receive) {
  CollectiveCall call;
  call.collective = collective;
  call.send = std::move(send);
  call.receive = std::move(receive);
  return call;
}

TEST(NcclPlan, ContiguousBlocksTravelAsTheyLie) {
  auto send = blocks({5, 7, 0, 1});
  auto receive = blocks({2, 7, 3, 0});
  const CollectiveCall call = call_of(Collective::all_to_all, tensors_of(send), tensors_of(receive));
  const Planned plan(call, 1, 4);
  ASSERT_EQ(plan.steps.size(), 1u);
  const ExchangeStep& step = plan.steps[0];
  EXPECT_THAT(plan.names, IsEmpty());
  EXPECT_THAT(peers_of(step.sends), ElementsAre(3, 0));  // the next one first; nothing to rank 2
  EXPECT_THAT(peers_of(step.receives), ElementsAre(2, 0));
  EXPECT_EQ(step.sends[1].data.data, send[0].tensor().data);
  EXPECT_EQ(step.receives[0].data.data, receive[2].tensor().data);
  ASSERT_EQ(step.before.size(), 1u);  // its own block
  EXPECT_EQ(step.before[0].from.data, send[1].tensor().data);
  EXPECT_EQ(step.before[0].to.data, receive[1].tensor().data);
  EXPECT_THAT(step.after, IsEmpty());
  EXPECT_THAT(step.terms, IsEmpty());
  EXPECT_THAT(exchange_partners(plan.steps), ElementsAre(0, 2, 3));
}

TEST(NcclPlan, StridedBlocksArePackedOnceAndUnpacked) {
  auto own = blocks({6}, 2);
  auto receive = blocks({4, 6, 8}, 3);
  receive[1] = own[0];
  const CollectiveCall call = call_of(Collective::all_gather, {own[0].tensor()}, tensors_of(receive));
  const Planned plan(call, 1, 3);
  ASSERT_EQ(plan.steps.size(), 1u);
  const ExchangeStep& step = plan.steps[0];
  EXPECT_THAT(plan.names, ElementsAre("blocks to send", "blocks to receive", "blocks to receive"));
  ASSERT_EQ(step.before.size(), 2u);  // own block, and the packed one
  ASSERT_EQ(step.sends.size(), 2u);
  EXPECT_EQ(step.sends[0].data.data, step.sends[1].data.data);
  EXPECT_EQ(step.before[1].to.data, step.sends[0].data.data);
  ASSERT_EQ(step.after.size(), 2u);
  EXPECT_EQ(step.after[0].from.data, step.receives[0].data.data);
  EXPECT_EQ(step.after[0].to.data, receive[2].tensor().data);
  for (const DeviceMessage& message : step.receives) EXPECT_TRUE(message.data.is_contiguous());
}

TEST(NcclPlan, TermsOfASumAreInRankOrder) {
  auto send = blocks({3, 4, 5});
  auto sum = blocks({4}, 1);
  const CollectiveCall call = call_of(Collective::reduce_scatter, tensors_of(send), {sum[0].tensor()});
  const Planned plan(call, 1, 3);
  const ExchangeStep& step = plan.steps.at(0);
  EXPECT_THAT(plan.names, ElementsAre("terms of a sum"));
  EXPECT_EQ(plan.room[0].size(), 8u);
  ASSERT_EQ(step.terms.size(), 3u);
  EXPECT_EQ(step.terms[0].data, plan.room[0].data());
  EXPECT_EQ(step.terms[1].data, send[1].tensor().data);
  EXPECT_EQ(step.terms[2].data, plan.room[0].data() + 4);
  EXPECT_EQ(step.sum.data, sum[0].tensor().data);
  EXPECT_THAT(peers_of(step.receives), ElementsAre(0, 2));
}

TEST(NcclPlan, AllReduceSendsTermsThenSums) {
  for (const int64_t count : {0, 1, 2, 7, 12}) {
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(count * 10 + rank);
      auto data = blocks({count});
      const CollectiveCall call = call_of(Collective::all_reduce, {data[0].tensor()}, {data[0].tensor()});
      const Planned plan(call, rank, 3);
      EXPECT_EQ(plan.bytes_sent(), bytes_sent(call, rank, 3));
      if (count == 0) {
        EXPECT_THAT(exchange_partners(plan.steps), IsEmpty());
        continue;
      }
      ASSERT_EQ(plan.steps.size(), 2u);
      const int64_t own = even_slice(count, rank, 3).count();
      EXPECT_EQ(plan.steps[0].receives.size(), own > 0 ? 2u : 0u);
      EXPECT_EQ(plan.steps[0].terms.size(), own > 0 ? 3u : 0u);
      EXPECT_EQ(plan.steps[1].sends.size(), own > 0 ? 2u : 0u);
      EXPECT_THAT(plan.steps[1].terms, IsEmpty());
    }
  }
}

TEST(NcclPlan, OfMessagesWithAbsentAndEmptySides) {
  auto block = blocks({4, 0});
  CollectiveCall call = call_of(Collective::send_receive, {block[0].tensor()}, {{}});
  call.to = 2;
  const Planned sends(call, 0, 3);
  EXPECT_THAT(peers_of(sends.steps.at(0).sends), ElementsAre(2));
  EXPECT_THAT(sends.steps.at(0).receives, IsEmpty());
  call = call_of(Collective::send_receive, {block[1].tensor()}, {block[0].tensor()});
  call.to = 2;
  call.from = 1;
  const Planned empty(call, 0, 3);
  EXPECT_THAT(empty.steps.at(0).sends, IsEmpty());
  EXPECT_THAT(peers_of(empty.steps.at(0).receives), ElementsAre(1));
}

TEST(NcclPlan, OfBroadcast) {
  auto block = blocks({4}, 1);
  CollectiveCall call = call_of(Collective::broadcast, {block[0].tensor()}, {block[0].tensor()});
  call.root = 2;
  const Planned root(call, 2, 4);
  EXPECT_THAT(peers_of(root.steps.at(0).sends), ElementsAre(3, 0, 1));
  EXPECT_THAT(root.names, ElementsAre("blocks to send"));
  EXPECT_EQ(root.bytes_sent(), bytes_sent(call, 2, 4));
  const Planned other(call, 0, 4);
  EXPECT_THAT(exchange_partners(other.steps), ElementsAre(2));
  EXPECT_EQ(other.bytes_sent(), 0);
}

// One rank has nobody to send to.
TEST(NcclPlan, OfOneRank) {
  auto send = blocks({4}, 2);
  auto receive = blocks({4}, 3);
  const Planned sum(call_of(Collective::reduce_scatter, tensors_of(send), tensors_of(receive)), 0, 1);
  EXPECT_THAT(sum.names, IsEmpty());
  EXPECT_EQ(sum.steps.at(0).terms.size(), 1u);
  const Planned gathered(call_of(Collective::all_gather, tensors_of(send), tensors_of(receive)), 0, 1);
  EXPECT_THAT(gathered.names, IsEmpty());
  EXPECT_EQ(gathered.steps.at(0).before.size(), 1u);
}

}  // namespace
}  // namespace ithaca
