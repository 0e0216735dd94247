// What one rank of a collective copies, sends, receives and adds up when its bytes travel as messages.
//
// Messages are contiguous: blocks that are not are packed before they are sent and unpacked when they have come. Sums
// are made by the rank that owns the slice, of the ranks' terms in rank order, so all ranks get the same bits.
// Internal to comm. Thread-safety: pure functions.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/device_exchange.h"
#include "comm/collective_call.h"

namespace ithaca {

struct ExchangeStep {
  struct Copy {
    Tensor from;
    Tensor to;
  };
  std::vector<Copy> before;
  // All at once; peers are ranks of the group, never this one.
  std::vector<DeviceMessage> sends;
  std::vector<DeviceMessage> receives;
  // sum = terms[0] + terms[1] + ...; no terms: nothing.
  std::vector<Tensor> terms;
  Tensor sum;
  std::vector<Copy> after;
};

// `elements` of room, row-major, until the steps have run.
using AllocateRoom = std::function<Tensor(std::string_view name, DType dtype, int64_t elements)>;

// The steps of `rank` of `size`, one behind the other. all_reduce has two: terms to the owners of slices, then sums to
// everybody. `call` has passed check_call.
std::vector<ExchangeStep> plan_exchange(const CollectiveCall& call, int rank, int size, const AllocateRoom& allocate);

// Those with whom the steps exchange anything, in rank order.
std::vector<int> exchange_partners(std::span<const ExchangeStep> steps);

}  // namespace ithaca
