#include "comm/exchange_flows.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ithaca {
namespace {

CollectiveCall collective(Collective kind) {
  CollectiveCall call;
  call.collective = kind;
  return call;
}

CollectiveCall message(int to, int from) {
  CollectiveCall call = collective(Collective::send_receive);
  call.send = {Tensor{}};
  call.receive = {Tensor{}};
  call.to = to;
  call.from = from;
  return call;
}

TEST(ExchangeFlows, LeadFromEveryRankToTheNext) {
  constexpr int kRanks = 3;
  std::vector<ExchangeFlows> ranks(kRanks);
  std::set<uint64_t> numbers;
  for (int call = 0; call < 4; ++call) {
    std::vector<ScopeName> names;
    for (int rank = 0; rank < kRanks; ++rank) {
      names.push_back(ranks[static_cast<size_t>(rank)].next(collective(Collective::barrier), rank, kRanks));
    }
    for (size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_NE(names[rank].flow_out, 0u);
      EXPECT_EQ(names[rank].flow_out, names[(rank + 1) % kRanks].flow_in);
      numbers.insert(names[rank].flow_out);
      EXPECT_EQ(names[rank].name, "barrier");
      EXPECT_EQ(names[rank].kind, ScopeName::Kind::exchange);
    }
  }
  EXPECT_EQ(numbers.size(), 12u) << "every arrow has a number of its own";
}

TEST(ExchangeFlows, OfMessagesLeadFromSenderToReceiver) {
  ExchangeFlows zero;
  ExchangeFlows one;
  ExchangeFlows two;
  // 0 sends to 1 and gets from 2; later it sends to 1 again. Ranks do not make the same number of calls.
  const ScopeName first = zero.next(message(1, 2), 0, 3);
  const ScopeName second = zero.next(message(1, -1), 0, 3);
  const ScopeName one_first = one.next(message(-1, 0), 1, 3);
  const ScopeName one_second = one.next(message(-1, 0), 1, 3);
  const ScopeName two_first = two.next(message(0, -1), 2, 3);
  EXPECT_EQ(first.flow_out, one_first.flow_in);
  EXPECT_EQ(second.flow_out, one_second.flow_in);
  EXPECT_NE(first.flow_out, second.flow_out);
  EXPECT_EQ(two_first.flow_out, first.flow_in);
  EXPECT_EQ(one_first.flow_out, 0u);
  EXPECT_EQ(second.flow_in, 0u);
}

TEST(ExchangeFlows, AreNothingWithinARank) {
  ExchangeFlows alone;
  EXPECT_EQ(alone.next(collective(Collective::barrier), 0, 1).flow_out, 0u);
  EXPECT_EQ(alone.next(message(0, 0), 0, 1).flow_in, 0u);
}

TEST(ExchangeFlows, DifferFromGroupToGroup) {
  ExchangeFlows world;
  static_cast<void>(world.next(collective(Collective::split), 0, 2));
  ExchangeFlows first = world.of_split(0);
  ExchangeFlows other_color = world.of_split(1);
  static_cast<void>(world.next(collective(Collective::split), 0, 2));
  ExchangeFlows second = world.of_split(0);
  std::set<uint64_t> numbers;
  for (ExchangeFlows* group : {&first, &other_color, &second, &world}) {
    numbers.insert(group->next(collective(Collective::barrier), 0, 2).flow_out);
  }
  EXPECT_EQ(numbers.size(), 4u);
}

}  // namespace
}  // namespace ithaca
