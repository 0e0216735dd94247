#include "comm/collective_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace ithaca {

namespace {

bool is_summable(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::int64;
}

int64_t block_bytes(const Tensor& block) {
  return block_elements(block) * element_size(block.dtype);
}

std::string describe_block(const Tensor& block) {
  const int64_t elements = block_elements(block);
  return elements == 0 ? "nothing" : fmt::format("{} {}", elements, dtype_name(block.dtype));
}

// "128 float32" for one block, "[128, 0, 64] float32" for several.
std::string describe_blocks(std::span<const Tensor> blocks) {
  if (blocks.size() == 1) return describe_block(blocks[0]);
  constexpr size_t kShown = 16;
  std::vector<int64_t> counts;
  DType dtype = DType::float32;
  for (const Tensor& block : blocks) {
    if (block_elements(block) > 0) dtype = block.dtype;
    if (counts.size() < kShown) counts.push_back(block_elements(block));
  }
  return fmt::format("[{}{}] {}", fmt::join(counts, ", "), blocks.size() > kShown ? ", ..." : "", dtype_name(dtype));
}

bool blocks_match(const Tensor& sent, const Tensor& expected) {
  const int64_t elements = block_elements(sent);
  return elements == block_elements(expected) && (elements == 0 || sent.dtype == expected.dtype);
}

void check_blocks(std::string_view what, const CollectiveCall& call, std::span<const Tensor> blocks, int size) {
  require(blocks.size() == static_cast<size_t>(size),
          fmt::format("{} needs one {} block for each of the {} ranks of the group, but was given {}",
                      collective_name(call.collective), what, size, blocks.size()));
}

void check_data(std::string_view what, const CollectiveCall& call, std::span<const Tensor> blocks) {
  for (const Tensor& block : blocks) {
    if (block_elements(block) == 0 || block.data != nullptr) continue;
    throw ContractError(
        fmt::format("{}: the {} block {} has no data", collective_name(call.collective), what, block.describe()));
  }
}

void check_rank(std::string_view what, const CollectiveCall& call, int value, int size) {
  require(0 <= value && value < size, fmt::format("{}: `{}` is {}, but the group has ranks 0 to {}",
                                                  collective_name(call.collective), what, value, size - 1));
}

void check_summable(const CollectiveCall& call, const Tensor& block) {
  if (block_elements(block) == 0 || is_summable(block.dtype)) return;
  throw ContractError(fmt::format("{} sums float32, float64 or int64, but was given {}",
                                  collective_name(call.collective), block.describe()));
}

void check_own_block(const CollectiveCall& call, const Tensor& sent, const Tensor& expected) {
  require(blocks_match(sent, expected),
          fmt::format("{}: the rank's own block has {} on the sending side and {} on the receiving side",
                      collective_name(call.collective), describe_block(sent), describe_block(expected)));
}

// One direction of a meeting: what `sender` sends to `receiver` against what that expects.
std::string mismatch_of_blocks(const CollectiveCall& call, int sender, int receiver, const Tensor& sent,
                               const Tensor& expected) {
  if (blocks_match(sent, expected)) return {};
  return fmt::format("rank {} calls {} sending {} to rank {}, which expects {}", sender,
                     collective_name(call.collective), describe_block(sent), receiver, describe_block(expected));
}

// The block of `call` that goes to `peer`, or comes from it.
const Tensor& block_for(const std::vector<Tensor>& blocks, int peer) {
  return blocks.size() == 1 ? blocks.front() : blocks[static_cast<size_t>(peer)];
}

}  // namespace

int64_t block_elements(const Tensor& block) {
  return block.is_absent() ? 0 : block.element_count();
}

ElementRange even_slice(int64_t count, int rank, int size) {
  const int64_t whole = count / size;
  const int64_t rest = count % size;
  const int64_t begin = whole * rank + std::min<int64_t>(rank, rest);
  return {begin, begin + whole + (rank < rest ? 1 : 0)};
}

void check_call(const CollectiveCall& call, int rank, int size) {
  const auto own = static_cast<size_t>(rank);
  switch (call.collective) {
    case Collective::all_to_all:
      check_blocks("send", call, call.send, size);
      check_blocks("receive", call, call.receive, size);
      check_own_block(call, call.send[own], call.receive[own]);
      break;
    case Collective::all_gather:
      check_blocks("receive", call, call.receive, size);
      check_own_block(call, call.send.front(), call.receive[own]);
      break;
    case Collective::reduce_scatter:
      check_blocks("send", call, call.send, size);
      check_own_block(call, call.send[own], call.receive.front());
      for (const Tensor& block : call.send) check_summable(call, block);
      break;
    case Collective::all_reduce:
      check_summable(call, call.send.front());
      require(call.send.front().is_contiguous(),
              "all_reduce works in place on contiguous data, but was given " + call.send.front().describe());
      break;
    case Collective::broadcast:
      check_rank("root", call, call.root, size);
      break;
    case Collective::send_receive:
      if (call.to >= 0 || !call.send.front().is_absent()) check_rank("to", call, call.to, size);
      if (call.from >= 0 || !call.receive.front().is_absent()) check_rank("from", call, call.from, size);
      require((call.to == rank) == (call.from == rank),
              fmt::format("send_receive: rank {} may exchange with itself only in both directions at once", rank));
      if (call.to == rank) check_own_block(call, call.send.front(), call.receive.front());
      break;
    case Collective::barrier:
    case Collective::split:
      break;
  }
  check_data("send", call, call.send);
  check_data("receive", call, call.receive);
}

int64_t bytes_sent(const CollectiveCall& call, int rank, int size) {
  const int64_t others = size - 1;
  switch (call.collective) {
    case Collective::all_to_all:
    case Collective::reduce_scatter: {
      int64_t bytes = 0;
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) bytes += block_bytes(call.send[static_cast<size_t>(peer)]);
      }
      return bytes;
    }
    case Collective::all_gather:
      return others * block_bytes(call.send.front());
    case Collective::all_reduce: {
      const Tensor& data = call.send.front();
      const int64_t elements = block_elements(data);
      const int64_t own = even_slice(elements, rank, size).count();
      return (elements - own + others * own) * element_size(data.dtype);
    }
    case Collective::broadcast:
      return rank == call.root ? others * block_bytes(call.send.front()) : 0;
    case Collective::send_receive:
      return call.to >= 0 && call.to != rank ? block_bytes(call.send.front()) : 0;
    case Collective::barrier:
    case Collective::split:
      return 0;
  }
  return 0;
}

std::string describe_call(const CollectiveCall& call) {
  const std::string_view name = collective_name(call.collective);
  switch (call.collective) {
    case Collective::all_to_all:
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::send_receive:
      return fmt::format("{} sending {} and receiving {}", name, describe_blocks(call.send),
                         describe_blocks(call.receive));
    case Collective::all_reduce:
      return fmt::format("{} of {}", name, describe_blocks(call.send));
    case Collective::broadcast:
      return fmt::format("{} of {} from root {}", name, describe_blocks(call.send), call.root);
    case Collective::barrier:
    case Collective::split:
      return std::string(name);
  }
  return std::string(name);
}

std::string find_mismatch(const CollectiveCall& first, int first_rank, const CollectiveCall& second, int second_rank,
                          std::span<const int> rank_names) {
  const int first_name = rank_names[static_cast<size_t>(first_rank)];
  const int second_name = rank_names[static_cast<size_t>(second_rank)];
  if (first.collective != second.collective) {
    return fmt::format("rank {} calls {}, but rank {} calls {}", first_name, describe_call(first), second_name,
                       describe_call(second));
  }
  switch (first.collective) {
    case Collective::all_to_all:
    case Collective::all_gather:
    case Collective::reduce_scatter: {
      std::string text = mismatch_of_blocks(first, first_name, second_name, block_for(first.send, second_rank),
                                            block_for(second.receive, first_rank));
      if (!text.empty()) return text;
      return mismatch_of_blocks(second, second_name, first_name, block_for(second.send, first_rank),
                                block_for(first.receive, second_rank));
    }
    case Collective::all_reduce:
    case Collective::broadcast:
      if (first.collective == Collective::broadcast && first.root != second.root) {
        return fmt::format("rank {} calls broadcast from root {}, but rank {} calls it from root {}", first_name,
                           rank_names[static_cast<size_t>(first.root)], second_name,
                           rank_names[static_cast<size_t>(second.root)]);
      }
      if (blocks_match(first.send.front(), second.send.front())) return {};
      return fmt::format("rank {} calls {} of {}, but rank {} calls it of {}", first_name,
                         collective_name(first.collective), describe_block(first.send.front()), second_name,
                         describe_block(second.send.front()));
    case Collective::send_receive:
      return mismatch_of_blocks(first, first_name, second_name, first.send.front(), second.receive.front());
    case Collective::barrier:
    case Collective::split:
      return {};
  }
  return {};
}

std::string name_ranks(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += end - begin == 1 ? fmt::format("{}", ranks[begin])
                             : fmt::format("{}{}{}", ranks[begin], end - begin == 2 ? ", " : "-", ranks[end - 1]);
    begin = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace ithaca
