// One tile of the loss: softmax cross-entropy of each row, and its gradient in place of the logits.
//
// The maximum and the sum of exponentials come from one pass over the row (the sum is rescaled whenever the maximum
// grows). With the gradient wanted, the row waits in shared memory, cut over the blocks of a cluster, so that logits
// are read once and written once; rows that do not come in 16-byte words, or are too long, are read twice.
#include <cooperative_groups.h>
#include <math_constants.h>

#include <algorithm>

#include "backend/cuda/bulk_copy.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tiles.cuh"

namespace ithaca::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kMostClusterBlocks = 8;  // the largest that every device of this generation takes
// Shared memory of one block's piece of a row. Up to the first, four blocks of kShortThreads share a multiprocessor:
// while some wait for their pieces, others compute or write. Longer pieces have blocks of kLongThreads, two of them up
// to about the middle of the range.
constexpr int64_t kShortPieceBytes = 54 << 10;
constexpr int64_t kLargestPieceBytes = 200 << 10;
constexpr int kShortThreads = 256;
constexpr int kLongThreads = 512;
// Copies that bring a piece, so that the first part is worked on while the others come.
constexpr int kChunks = 8;
constexpr float kLog2E = 1.4426950408889634f;

template <typename T>
struct View {
  T* logits;
  const int64_t* labels;
  const float* weights;  // null: 1
  double* row_losses;
  int64_t logits_stride, label_stride, weight_stride;
  int64_t tokens, vocabulary;
  double gradient_scale;
  bool with_gradient;
};

// 2^x by the hardware (2 units in the last place), results under 1e-38 as 0.
__device__ inline float two_to(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// max * kLog2E, rounded: never fused with a subtraction, so that it is the same number everywhere.
__device__ inline float scaled(float max) {
  return __fmul_rn(max, kLog2E);
}

// max and sum of e^(x - max) of the numbers seen so far, as powers of two: 2^(x * kLog2E - scaled(max)), whose exponent
// is one fused operation.
struct Softmax {
  float max;
  float sum;

  __device__ static Softmax empty() { return {-CUDART_INF_F, 0.0f}; }

  __device__ void add(const Softmax& other) {
    const float high = fmaxf(max, other.max);
    if (high == -CUDART_INF_F) {  // nothing seen, or only -inf; a NaN stays in the sum
      sum += other.sum;
      return;
    }
    const float scaled_high = scaled(high);
    sum = sum * two_to(scaled(max) - scaled_high) + other.sum * two_to(scaled(other.max) - scaled_high);
    max = high;
  }
};

// One rescaling of the sum for all of the vectors.
template <typename T, int kWidth, int kCount>
__device__ inline void add_vectors(Softmax& state, const Pack<T, kWidth> (&vectors)[kCount]) {
  float high = state.max;
#pragma unroll
  for (int vector = 0; vector < kCount; ++vector) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) high = fmaxf(high, vectors[vector][i]);
  }
  if (high == -CUDART_INF_F) {
    // fmaxf skips NaN, which must not be lost.
#pragma unroll
    for (int vector = 0; vector < kCount; ++vector) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) state.sum += isnan(vectors[vector][i]) ? vectors[vector][i] : 0.0f;
    }
    return;
  }
  const float scaled_high = scaled(high);
  float sums[kCount];
#pragma unroll
  for (int vector = 0; vector < kCount; ++vector) {
    sums[vector] = 0.0f;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[vector] += two_to(fmaf(vectors[vector][i], kLog2E, -scaled_high));
  }
  state.sum *= two_to(scaled(state.max) - scaled_high);
#pragma unroll
  for (int vector = 0; vector < kCount; ++vector) state.sum += sums[vector];
  state.max = high;
}

// Over all threads of the block, in a fixed order; every thread gets the result.
__device__ inline Softmax block_softmax(Softmax state, Softmax* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Softmax other;
    other.max = __shfl_xor_sync(kAllLanes, state.max, distance);
    other.sum = __shfl_xor_sync(kAllLanes, state.sum, distance);
    state.add(other);
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();
  if (lane == 0) scratch[warp] = state;
  __syncthreads();
  Softmax total = Softmax::empty();
  for (int other = 0; other < warps; ++other) total.add(scratch[other]);
  return total;
}

template <typename T>
__device__ inline void write_row_loss(const View<T>& view, int64_t row, int64_t label, float label_logit, float weight,
                                      const Softmax& softmax) {
  const bool is_valid = label >= 0 && label < view.vocabulary;
  // The maximum that the sum was made with: the rounded product, over the rounded factor.
  const double max = static_cast<double>(scaled(softmax.max)) / static_cast<double>(kLog2E);
  const double loss = log(static_cast<double>(softmax.sum)) + max - static_cast<double>(label_logit);
  view.row_losses[row] = is_valid ? static_cast<double>(weight) * loss : CUDART_NAN;
}

// (softmax - onehot) * scale of the vector that begins at `column`.
template <typename T, int kWidth>
__device__ inline Pack<T, kWidth> vector_gradient(const Pack<T, kWidth>& values, int64_t column, int64_t label,
                                                  float max, float scale_over_sum, float scale) {
  float gradient[kWidth];
  const float scaled_max = scaled(max);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gradient[i] = two_to(fmaf(values[i], kLog2E, -scaled_max)) * scale_over_sum;
  const int64_t place = label - column;
  if (place >= 0 && place < kWidth) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) gradient[i] -= i == place ? scale : 0.0f;
  }
  Pack<T, kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.set(i, gradient[i]);
  return result;
}

template <typename T>
__device__ inline float weight_of(const View<T>& view, int64_t row) {
  return view.weights == nullptr ? 1.0f : view.weights[row * view.weight_stride];
}

// False for rows that have no label or no weight, whatever their logits are; a wrong label counts, to be found.
template <typename T>
__device__ inline bool is_counted(const View<T>& view, int64_t label, float weight) {
  return label != -100 && (weight != 0.0f || label < 0 || label >= view.vocabulary);
}

// A block for each row, which is read twice when the gradient is wanted.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(const View<T> view) {
  __shared__ Softmax scratch[32];
  const int64_t vectors = view.vocabulary / kWidth;
  for (int64_t row = blockIdx.x; row < view.tokens; row += gridDim.x) {
    T* const logits = view.logits + row * view.logits_stride;
    const int64_t label = view.labels[row * view.label_stride];
    const float weight = weight_of(view, row);
    if (!is_counted(view, label, weight)) {
      if (threadIdx.x == 0) view.row_losses[row] = 0.0;
      if (view.with_gradient) {
        Pack<T, kWidth> zeros;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) zeros.set(i, 0.0f);
        for (int64_t vector = threadIdx.x; vector < vectors; vector += kThreads) zeros.store(logits + vector * kWidth);
      }
      continue;
    }
    Softmax softmax = Softmax::empty();
    for (int64_t vector = threadIdx.x; vector < vectors; vector += kThreads) {
      const Pack<T, kWidth> values[1] = {Pack<T, kWidth>::load(logits + vector * kWidth)};
      add_vectors(softmax, values);
    }
    float label_logit = 0.0f;
    if (threadIdx.x == 0 && label >= 0 && label < view.vocabulary) label_logit = to_float(logits[label]);
    softmax = block_softmax(softmax, scratch);  // its barriers also part the reads from the writes below
    if (threadIdx.x == 0) write_row_loss(view, row, label, label_logit, weight, softmax);
    if (!view.with_gradient) continue;
    const auto scale = static_cast<float>(static_cast<double>(weight) * view.gradient_scale);
    const float scale_over_sum = scale / softmax.sum;
    for (int64_t vector = threadIdx.x; vector < vectors; vector += kThreads) {
      const int64_t column = vector * kWidth;
      const auto values = Pack<T, kWidth>::load(logits + column);
      vector_gradient(values, column, label, softmax.max, scale_over_sum, scale).store(logits + column);
    }
  }
}

// A cluster for each row: block r of it has the r-th piece, in shared memory between reading and writing. The copy
// engine brings the piece, all of it under way at once.
template <typename T, int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, 1024 / kBlockThreads)
    cross_entropy_cluster_kernel(const View<T> view, int64_t piece_vectors) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kWidth = kVectorWidth<T>;
  constexpr int kUnroll = 4;
  namespace groups = cooperative_groups;
  extern __shared__ uint4 piece_words[];
  __shared__ Softmax scratch[32];
  __shared__ Softmax piece_softmax;
  __shared__ BulkBarrier arrived[kChunks];
  auto* const piece = reinterpret_cast<T*>(piece_words);
  const groups::cluster_group cluster = groups::this_cluster();
  const auto blocks = static_cast<int>(cluster.num_blocks());
  const auto rank = static_cast<int>(cluster.block_rank());
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x / static_cast<unsigned>(blocks);
  const int64_t all_vectors = view.vocabulary / kWidth;
  const int64_t begin = rank * piece_vectors < all_vectors ? rank * piece_vectors : all_vectors;
  const auto vectors = static_cast<int>(begin + piece_vectors < all_vectors ? piece_vectors : all_vectors - begin);
  T* const logits = view.logits + row * view.logits_stride + begin * kWidth;  // of the piece
  const int64_t label = view.labels[row * view.label_stride];
  const float weight = weight_of(view, row);
  if (!is_counted(view, label, weight)) {  // the same for all blocks of the cluster
    if (rank == 0 && thread == 0) view.row_losses[row] = 0.0;
    Pack<T, kWidth> zeros;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) zeros.set(i, 0.0f);
    for (int vector = thread; vector < vectors; vector += kBlockThreads) zeros.store(logits + vector * kWidth);
    return;
  }

  constexpr int kRound = kBlockThreads * kUnroll;
  const int chunk_vectors = (vectors + kChunks * kRound - 1) / (kChunks * kRound) * kRound;
  float label_logit = 0.0f;
  if (thread == 0) {
    for (int chunk = 0; chunk < kChunks; ++chunk) init(arrived[chunk]);
    fence_barriers();
    for (int chunk = 0; chunk * chunk_vectors < vectors; ++chunk) {
      const int first = chunk * chunk_vectors;
      const int count = first + chunk_vectors < vectors ? chunk_vectors : vectors - first;
      begin_copy(piece + first * kWidth, logits + first * kWidth, static_cast<uint32_t>(count) * 16u, arrived[chunk]);
    }
    if (rank == 0 && label >= 0 && label < view.vocabulary) {
      label_logit = to_float(view.logits[row * view.logits_stride + label]);
    }
  }
  __syncthreads();  // the barriers are there

  Softmax softmax = Softmax::empty();
  for (int chunk = 0; chunk * chunk_vectors < vectors; ++chunk) {
    wait(arrived[chunk]);
    const int first = chunk * chunk_vectors;
    const int end = first + chunk_vectors < vectors ? first + chunk_vectors : vectors;
    int vector = first + thread;
    for (; vector + (kUnroll - 1) * kBlockThreads < end; vector += kRound) {
      Pack<T, kWidth> values[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        values[i] = Pack<T, kWidth>::load(piece + (vector + i * kBlockThreads) * kWidth);
      }
      add_vectors(softmax, values);
    }
    for (; vector < end; vector += kBlockThreads) {
      const Pack<T, kWidth> values[1] = {Pack<T, kWidth>::load(piece + vector * kWidth)};
      add_vectors(softmax, values);
    }
  }

  softmax = block_softmax(softmax, scratch);
  if (thread == 0) piece_softmax = softmax;
  cluster.sync();  // all pieces are read, all sums are there
  Softmax total = Softmax::empty();
  for (int other = 0; other < blocks; ++other) total.add(*cluster.map_shared_rank(&piece_softmax, other));

  if (rank == 0 && thread == 0) write_row_loss(view, row, label, label_logit, weight, total);
  const auto scale = static_cast<float>(static_cast<double>(weight) * view.gradient_scale);
  const float scale_over_sum = scale / total.sum;
  const int64_t label_here = label - begin * kWidth;
#pragma unroll 4
  for (int vector = thread; vector < vectors; vector += kBlockThreads) {
    const auto values = Pack<T, kWidth>::load(piece + vector * kWidth);
    vector_gradient(values, static_cast<int64_t>(vector) * kWidth, label_here, total.max, scale_over_sum, scale)
        .store(logits + vector * kWidth);
  }
  cluster.sync();  // nobody leaves while its sum may still be read
#endif
}

bool device_has_clusters() {
  int device = 0;
  int major = 0;
  ITHACA_CUDA_CHECK(cudaGetDevice(&device));
  ITHACA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

// Blocks that share a row of `bytes`; 0 when it is too long for the largest cluster.
int cluster_blocks_for(int64_t bytes) {
  for (int blocks = 1; blocks <= kMostClusterBlocks; blocks *= 2) {
    if (divide_up(bytes, blocks) <= kShortPieceBytes) return blocks;
  }
  return divide_up(bytes, kMostClusterBlocks) <= kLargestPieceBytes ? kMostClusterBlocks : 0;
}

template <typename T, int kBlockThreads>
void launch_clusters(const View<T>& view, int blocks, int64_t piece_vectors, cudaStream_t stream) {
  const auto kernel = cross_entropy_cluster_kernel<T, kBlockThreads>;
  const auto piece_bytes = static_cast<size_t>(piece_vectors) * 16;
  ITHACA_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(piece_bytes)));
  // As many blocks as the pieces leave room for, rather than more of the first-level cache.
  ITHACA_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(view.tokens * blocks));
  launch.blockDim = dim3(kBlockThreads);
  launch.dynamicSmemBytes = piece_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  ITHACA_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, view, piece_vectors));
}

template <typename T>
void launch_clusters(const View<T>& view, int blocks, cudaStream_t stream) {
  const int64_t piece_vectors = divide_up(view.vocabulary / kVectorWidth<T>, blocks);
  if (piece_vectors * 16 <= kShortPieceBytes) {
    launch_clusters<T, kShortThreads>(view, blocks, piece_vectors, stream);
  } else {
    launch_clusters<T, kLongThreads>(view, blocks, piece_vectors, stream);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& arguments, double* row_losses, cudaStream_t stream) {
  const Tensor& logits = arguments.logits;
  const int64_t tokens = logits.extent(0);
  if (tokens == 0) return;
  with_float_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    const bool has_weights = !arguments.weights.is_absent();
    const View<T> view{data_of<T>(logits),
                       arguments.labels.as<int64_t>(),
                       has_weights ? arguments.weights.as<float>() : nullptr,
                       row_losses,
                       logits.stride(0),
                       arguments.labels.stride(0),
                       has_weights ? arguments.weights.stride(0) : 0,
                       tokens,
                       logits.extent(1),
                       arguments.gradient_scale,
                       arguments.with_gradient};
    const bool vectors = rows_are_vectors(logits, kVectorWidth<T>);
    const int blocks = cluster_blocks_for(view.vocabulary * static_cast<int64_t>(sizeof(T)));
    constexpr int64_t kMostRows = int64_t{1} << 27;  // of a grid of clusters
    if (vectors && view.with_gradient && blocks > 0 && tokens <= kMostRows && device_has_clusters()) {
      launch_clusters(view, blocks, stream);
      return;
    }
    const auto grid = static_cast<unsigned>(std::min<int64_t>(tokens, 1 << 20));
    if (vectors) {
      cross_entropy_kernel<T, kVectorWidth<T>><<<grid, kThreads, 0, stream>>>(view);
    } else {
      cross_entropy_kernel<T, 1><<<grid, kThreads, 0, stream>>>(view);
    }
    ITHACA_CUDA_CHECK_LAUNCH("cross_entropy");
  });
  add_partials(row_losses, tokens, arguments.loss_sum.as<double>(), stream);
}

}  // namespace ithaca::cuda
