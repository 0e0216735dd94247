// A digit is sorted by in two kernels over the same ranges of tokens, one range for each block: the first counts each
// digit's tokens in each range; in the second, every block adds up from those counts where its tokens of each digit
// begin, and writes them there in their order. Digits go from the lowest to the highest, as each pass keeps the order
// of the pass before it among equals.
#include <bit>
#include <cstddef>
#include <limits>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/token_sort.h"
#include "backend/cuda/vectors.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kDigitBits = 9;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kThreads = kDigits;  // of a block, each with one token at a time and, in between, one digit
constexpr int kWarps = kThreads / 32;
// Every block reads the counts of all: more blocks than multiprocessors would cost more than they bring.
constexpr int64_t kMostBlocks = 128;
constexpr uint32_t kAllLanes = 0xffffffffU;

__device__ uint32_t digit_of(uint32_t id, int shift) {
  return (id >> shift) & (kDigits - 1);
}

// The first pass takes ids and places from the batch, the others from the pass before.
struct BatchTokens {
  const int64_t* token_ids;
  int64_t stride;
  int64_t vocabulary;

  __device__ uint32_t id(int64_t place) const {
    const int64_t id = token_ids[place * stride];
    return static_cast<uint32_t>(id >= 0 && id < vocabulary ? id : vocabulary);
  }
  __device__ uint32_t token(int64_t place) const { return static_cast<uint32_t>(place); }
};

struct ListedTokens {
  uint32_t* ids;
  uint32_t* tokens;

  __device__ uint32_t id(int64_t place) const { return ids[place]; }
  __device__ uint32_t token(int64_t place) const { return tokens[place]; }
};

// counts[b][d]: tokens of digit d among those of block b, which are `block_tokens` from b * block_tokens on.
template <typename Tokens>
__global__ void __launch_bounds__(kThreads)
    count_digits_kernel(Tokens from, int64_t count, int64_t block_tokens, int shift, uint32_t* counts) {
  __shared__ uint32_t of_digit[kDigits];
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * block_tokens;
  const int64_t end = min(count, begin + block_tokens);
  for (int64_t place = begin + threadIdx.x; place < end; place += kThreads) {
    atomicAdd(&of_digit[digit_of(from.id(place), shift)], 1U);
  }
  __syncthreads();
  counts[blockIdx.x * kDigits + threadIdx.x] = of_digit[threadIdx.x];
}

// The sum over the threads of a block before this one. `warp_sums`: shared, one for each warp.
__device__ uint32_t sum_before(uint32_t value, uint32_t* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t up_to_here = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, up_to_here, distance);
    if (lane >= distance) up_to_here += other;
  }
  if (lane == 31) warp_sums[warp] = up_to_here;
  __syncthreads();
  uint32_t before = up_to_here - value;
  for (int other = 0; other < warp; ++other) before += warp_sums[other];
  return before;
}

template <typename Tokens>
__global__ void __launch_bounds__(kThreads) move_tokens_kernel(Tokens from, int64_t count, int64_t block_tokens,
                                                               int shift, const uint32_t* counts, ListedTokens to) {
  __shared__ uint32_t warp_sums[kWarps];
  __shared__ uint32_t places[kWarps][kDigits];  // a warp's tokens of each digit: how many, then where they begin
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t begin = blockIdx.x * block_tokens;
  const int64_t end = min(count, begin + block_tokens);

  // Where the next tokens go whose digit is this thread's: behind lower digits, and behind those of blocks before.
  uint32_t of_digit = 0;
  uint32_t next_place = 0;
#pragma unroll 16
  for (unsigned block = 0; block < gridDim.x; ++block) {
    const uint32_t in_block = counts[block * kDigits + threadIdx.x];
    of_digit += in_block;
    if (block < blockIdx.x) next_place += in_block;
  }
  next_place += sum_before(of_digit, warp_sums);

  for (int64_t tile = begin; tile < end; tile += kThreads) {
    const int64_t place = tile + threadIdx.x;
    const bool has_token = place < end;
    const uint32_t id = has_token ? from.id(place) : 0;
    const uint32_t token = has_token ? from.token(place) : 0;
    const uint32_t digit = digit_of(id, shift);
    for (int other = lane; other < kDigits; other += 32) places[warp][other] = 0;
    __syncwarp();
    // Lanes without a token share a digit that is no token's.
    const uint32_t alike = __match_any_sync(kAllLanes, has_token ? digit : kDigits);
    const auto alike_before = static_cast<uint32_t>(__popc(alike & ((1U << lane) - 1)));
    if (has_token && alike_before == 0) places[warp][digit] = static_cast<uint32_t>(__popc(alike));
    __syncthreads();
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const uint32_t in_warp = places[other][threadIdx.x];
      places[other][threadIdx.x] = next_place;
      next_place += in_warp;
    }
    __syncthreads();
    if (has_token) {
      const uint32_t goes_to = places[warp][digit] + alike_before;
      to.ids[goes_to] = id;
      to.tokens[goes_to] = token;
    }
    __syncwarp();  // before the next tile's zeros
  }
}

// How tokens are divided over blocks, and the pieces of the workspace.
class Division {
 public:
  Division(int64_t tokens, int64_t vocabulary) {
    require(tokens <= std::numeric_limits<int32_t>::max() && vocabulary < std::numeric_limits<uint32_t>::max(),
            "embedding_backward: 2^31 tokens or more in one call, or a vocabulary of 2^32 - 1 or more");
    passes_ = divide_up(std::bit_width(static_cast<uint64_t>(vocabulary)), kDigitBits);
    block_tokens_ = divide_up(divide_up(tokens, kThreads), kMostBlocks) * kThreads;
    blocks_ = tokens == 0 ? 0 : divide_up(tokens, block_tokens_);
    list_bytes_ = divide_up(tokens * int64_t{sizeof(uint32_t)}, kAlignment) * kAlignment;
  }

  int64_t passes() const { return passes_; }
  unsigned blocks() const { return static_cast<unsigned>(blocks_); }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t bytes() const { return 4 * list_bytes_ + blocks_ * kDigits * int64_t{sizeof(uint32_t)}; }
  // Two lists, which passes write in turn, and the counts.
  ListedTokens list(void* workspace, int index) const {
    return {numbers(workspace, 2 * index * list_bytes_), numbers(workspace, (2 * index + 1) * list_bytes_)};
  }
  uint32_t* counts(void* workspace) const { return numbers(workspace, 4 * list_bytes_); }

 private:
  static constexpr int64_t kAlignment = 256;
  static uint32_t* numbers(void* workspace, int64_t offset) {
    return reinterpret_cast<uint32_t*>(static_cast<std::byte*>(workspace) + offset);
  }

  int64_t passes_ = 0;
  int64_t block_tokens_ = 0;
  int64_t blocks_ = 0;
  int64_t list_bytes_ = 0;
};

}  // namespace

int64_t token_sort_workspace_bytes(int64_t tokens, int64_t vocabulary) {
  return Division(tokens, vocabulary).bytes();
}

SortedTokens sort_tokens(const Tensor& token_ids, int64_t vocabulary, void* workspace, cudaStream_t stream) {
  const int64_t tokens = token_ids.extent(0);
  const Division division(tokens, vocabulary);
  uint32_t* const counts = division.counts(workspace);
  const auto sort_by_digit = [&](const auto& from, int pass) {
    const ListedTokens to = division.list(workspace, pass % 2);
    const int shift = pass * kDigitBits;
    count_digits_kernel<<<division.blocks(), kThreads, 0, stream>>>(from, tokens, division.block_tokens(), shift,
                                                                    counts);
    ITHACA_CUDA_CHECK_LAUNCH("count_digits");
    move_tokens_kernel<<<division.blocks(), kThreads, 0, stream>>>(from, tokens, division.block_tokens(), shift, counts,
                                                                   to);
    ITHACA_CUDA_CHECK_LAUNCH("move_tokens");
    return to;
  };
  ListedTokens sorted = division.list(workspace, 0);
  if (tokens > 0) {
    sorted = sort_by_digit(BatchTokens{token_ids.as<int64_t>(), token_ids.stride(0), vocabulary}, 0);
    for (int pass = 1; pass < division.passes(); ++pass) sorted = sort_by_digit(sorted, pass);
  }
  return {sorted.ids, sorted.tokens};
}

}  // namespace ithaca::cuda
