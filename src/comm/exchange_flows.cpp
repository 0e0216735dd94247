#include "comm/exchange_flows.h"

namespace ithaca {

namespace {

// One round of SplitMix64 (Steele, Lea and Flood 2014) over both.
uint64_t mixed(uint64_t seed, uint64_t value) {
  uint64_t bits = seed + 0x9E3779B97F4A7C15u * (value + 1);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

}  // namespace

uint64_t ExchangeFlows::number(int from, int to, int64_t count, bool is_message) const {
  uint64_t result = mixed(group_, static_cast<uint64_t>(from));
  result = mixed(result, static_cast<uint64_t>(to));
  result = mixed(result, 2 * static_cast<uint64_t>(count) + (is_message ? 1 : 0));
  return result == 0 ? 1 : result;
}

ScopeName ExchangeFlows::next(const CollectiveCall& call, int rank, int size) {
  ScopeName name;
  name.name = collective_name(call.collective);
  name.kind = ScopeName::Kind::exchange;
  name.bytes = bytes_sent(call, rank, size);
  if (call.collective != Collective::send_receive) {
    const int64_t count = collectives_++;
    if (size == 1) return name;
    name.flow_out = number(rank, (rank + 1) % size, count, false);
    name.flow_in = number((rank + size - 1) % size, rank, count, false);
    return name;
  }
  // A message to itself needs no arrow.
  if (call.to >= 0 && call.to != rank) name.flow_out = number(rank, call.to, sent_[call.to]++, true);
  if (call.from >= 0 && call.from != rank) name.flow_in = number(call.from, rank, received_[call.from]++, true);
  return name;
}

ExchangeFlows ExchangeFlows::of_split(int color) const {
  ExchangeFlows child;
  child.group_ = mixed(mixed(group_, static_cast<uint64_t>(collectives_)), static_cast<uint64_t>(color));
  return child;
}

}  // namespace ithaca
