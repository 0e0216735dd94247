// CollectiveCall: one rank's call of one operation, as data.
//
// What every form of Communicator needs and none should write twice: the checks of a rank's own arguments, the bytes
// that it sends, and whether two ranks' calls fit together. Knows nothing of threads, streams or devices.
// Thread-safety: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace ithaca {

struct CollectiveCall {
  Collective collective = Collective::barrier;
  // all_to_all: one block per rank each. all_gather: one send, one receive per rank. reduce_scatter: one send per rank,
  // one receive. all_reduce, broadcast: the data in both. send_receive: one of each, absent when unused.
  std::vector<Tensor> send;
  std::vector<Tensor> receive;
  int root = 0;  // broadcast
  int to = -1;   // send_receive: -1 when nothing is sent
  int from = -1;
  int color = 0;  // split
  int key = 0;
};

// Elements of a block; 0 when it is absent.
int64_t block_elements(const Tensor& block);

// Elements [begin, end) that one rank of `size` owns of `count`: as even as can be, the first ranks get one more.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};
ElementRange even_slice(int64_t count, int rank, int size);

// Throws ContractError when the arguments are wrong in themselves, whatever the other ranks call.
void check_call(const CollectiveCall& call, int rank, int size);

// Bytes that `rank` of `size` sends to other ranks. all_reduce of n bytes: the slices of the others go out to be
// summed, then the own slice goes to everybody: (n - own) + (size - 1) * own, which is 2 * (size - 1) / size * n when
// slices are even.
int64_t bytes_sent(const CollectiveCall& call, int rank, int size);

// "all_gather sending 128 float32".
std::string describe_call(const CollectiveCall& call);

// How the calls of two ranks of one group fail to match: "rank 0 calls all_to_all sending 128 float32 to rank 1, which
// expects 64 float32". Empty when they fit. `rank_names[r]` is what texts call rank r of the group. send_receive calls
// are compared only in the direction first -> second.
std::string find_mismatch(const CollectiveCall& first, int first_rank, const CollectiveCall& second, int second_rank,
                          std::span<const int> rank_names);

// "rank 5", "ranks 0-3, 5", "no rank".
std::string name_ranks(std::span<const int> ranks);

}  // namespace ithaca
