// One tile of the loss: softmax cross-entropy of each row, and its gradient in place of the logits.
//
// The maximum and the sum of exponentials come from one pass over the row (the sum is rescaled whenever the maximum
// grows). With the gradient wanted, the row waits in shared memory, cut over the blocks of a cluster, so that logits
// are read once and written once: the copy engine brings the coming rows and takes the finished one away while threads
// compute. Rows that do not come in 16-byte words, or are too long, are read twice.
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
// Shared memory of one block's piece of a row. Three pieces up to the first size (one coming, one at work, one leaving)
// fit twice on a multiprocessor; longer ones have blocks that are alone there, with as many pieces as there is room
// for.
constexpr int64_t kShortPieceBytes = 38400;
constexpr int64_t kLongPieceBytes = 216 << 10;
constexpr int kShortThreads = 512;
constexpr int kLongThreads = 1024;
constexpr int kMostStages = 3;
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

  // Over kLanes neighbouring lanes, the same bits in each.
  template <int kLanes>
  __device__ void add_lanes() {
    float high = max;
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, distance));
    }
    // Nothing seen, or only -inf: 0 stays, and so does a NaN.
    if (high != -CUDART_INF_F) sum *= two_to(scaled(max) - scaled(high));
    sum = lanes_sum<kLanes>(sum);
    max = high;
  }
};

// The largest number of a vector and `high`; NaNs are skipped.
__device__ inline float largest(const Pack<float, 4>& vector, float high) {
#pragma unroll
  for (int i = 0; i < 4; ++i) high = fmaxf(high, vector[i]);
  return high;
}
__device__ inline float largest(const Pack<BFloat, 8>& vector, float high) {
  const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(vector.values);
  const __nv_bfloat162 pair = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(high, fmaxf(__low2float(pair), __high2float(pair)));
}
template <typename T>
__device__ inline float largest(const Pack<T, 1>& vector, float high) {
  return fmaxf(high, vector[0]);
}

// One rescaling of the sum for all of the vectors.
template <typename T, int kWidth, int kCount>
__device__ inline void add_vectors(Softmax& state, const Pack<T, kWidth> (&vectors)[kCount]) {
  float high = state.max;
#pragma unroll
  for (int vector = 0; vector < kCount; ++vector) high = largest(vectors[vector], high);
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

// Over all threads of the block (at most 32 warps), in a fixed order; every thread gets the result. The scratch is free
// again after the next block barrier.
__device__ inline Softmax block_softmax(Softmax state, Softmax* scratch) {
  state.add_lanes<32>();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (lane == 0) scratch[threadIdx.x / 32] = state;
  __syncthreads();
  Softmax total = lane < warps ? scratch[lane] : Softmax::empty();
  total.add_lanes<32>();
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
    __syncthreads();                            // the scratch may still be read for the row before
    softmax = block_softmax(softmax, scratch);  // its barrier also parts the reads from the writes below
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

// Clusters that stay until all rows are done: block r of one has the r-th piece of each of its rows.
template <typename T, int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, 1024 / kBlockThreads)
    cross_entropy_cluster_kernel(const View<T> view, int64_t piece_vectors, int stages) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kWidth = kVectorWidth<T>;
  constexpr int kUnroll = 4;
  namespace groups = cooperative_groups;
  extern __shared__ uint4 piece_words[];
  __shared__ Softmax scratch[32];
  __shared__ Softmax exchange[2][kMostClusterBlocks];  // of the pieces of a row; every other row
  __shared__ BulkBarrier arrived[kMostStages];
  const groups::cluster_group cluster = groups::this_cluster();
  const auto blocks = static_cast<int>(cluster.num_blocks());
  const auto rank = static_cast<int>(cluster.block_rank());
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = blockIdx.x / static_cast<unsigned>(blocks);
  const int64_t row_step = gridDim.x / static_cast<unsigned>(blocks);
  const int64_t all_vectors = view.vocabulary / kWidth;
  const int64_t begin = rank * piece_vectors < all_vectors ? rank * piece_vectors : all_vectors;
  const auto vectors = static_cast<int>(begin + piece_vectors < all_vectors ? piece_vectors : all_vectors - begin);
  const auto bytes = static_cast<uint32_t>(vectors) * 16u;
  const auto piece_of = [&](int stage) { return reinterpret_cast<T*>(piece_words + stage * piece_vectors); };
  const auto logits_of = [&](int64_t row) { return view.logits + row * view.logits_stride + begin * kWidth; };
  // By thread 0: brings the piece of a row.
  const auto bring = [&](int64_t row, int stage) {
    if (row < view.tokens && vectors > 0) begin_copy(piece_of(stage), logits_of(row), bytes, arrived[stage]);
  };
  const int ahead = stages > 1 ? stages - 1 : 1;
  if (thread == 0) {
    for (int stage = 0; stage < stages; ++stage) init(arrived[stage]);
    fence_barriers();
    for (int stage = 0; stage < ahead; ++stage) bring(first_row + stage * row_step, stage);
  }
  cluster.sync();  // all blocks are there, and so are their barriers

  int stage = 0;
  int phase = 0;
  int parity = 0;
  for (int64_t row = first_row; row < view.tokens; row += row_step) {
    T* const piece = piece_of(stage);
    const int64_t label = view.labels[row * view.label_stride];
    const float weight = weight_of(view, row);
    const bool is_labelled = label >= 0 && label < view.vocabulary;
    const int64_t label_here = label - begin * kWidth;
    const bool is_here = is_labelled && label_here >= 0 && label_here < static_cast<int64_t>(vectors) * kWidth;
    if (vectors > 0) wait(arrived[stage], phase);
    float label_logit = 0.0f;
    if (thread == 0 && is_here) label_logit = to_float(piece[label_here]);
    // The stage of the row before is that of the row after next, as soon as its gradient has left.
    const auto bring_next = [&] {
      if (thread != 0) return;
      wait_for_store_reads();
      bring(row + ahead * row_step, stage == 0 ? stages - 1 : stage - 1);
    };
    if (!is_counted(view, label, weight)) {  // the same for all blocks of the cluster
      if (stages > 1) bring_next();
      if (rank == 0 && thread == 0) view.row_losses[row] = 0.0;
      Pack<T, kWidth> zeros;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) zeros.set(i, 0.0f);
      for (int vector = thread; vector < vectors; vector += kBlockThreads) zeros.store(piece + vector * kWidth);
    } else {
      Softmax softmax = Softmax::empty();
      int vector = thread;
      for (; vector + (kUnroll - 1) * kBlockThreads < vectors; vector += kUnroll * kBlockThreads) {
        Pack<T, kWidth> values[kUnroll];
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          values[i] = Pack<T, kWidth>::load(piece + (vector + i * kBlockThreads) * kWidth);
        }
        add_vectors(softmax, values);
      }
      for (; vector < vectors; vector += kBlockThreads) {
        const Pack<T, kWidth> values[1] = {Pack<T, kWidth>::load(piece + vector * kWidth)};
        add_vectors(softmax, values);
      }
      if (stages > 1) bring_next();
      softmax = block_softmax(softmax, scratch);
      // To all blocks of the cluster. They read what the row before last left here before they came to the barrier of
      // the row before.
      if (thread < blocks) *cluster.map_shared_rank(&exchange[parity][rank], thread) = softmax;
      cluster.sync();
      const int lane = thread % 32;
      Softmax total = lane < blocks ? exchange[parity][lane] : Softmax::empty();
      total.add_lanes<32>();
      parity ^= 1;

      if (thread == 0 && (is_here || (!is_labelled && rank == 0))) {
        write_row_loss(view, row, label, label_logit, weight, total);
      }
      const auto scale = static_cast<float>(static_cast<double>(weight) * view.gradient_scale);
      const float scale_over_sum = scale / total.sum;
#pragma unroll 4
      for (int place = thread; place < vectors; place += kBlockThreads) {
        const auto values = Pack<T, kWidth>::load(piece + place * kWidth);
        vector_gradient(values, static_cast<int64_t>(place) * kWidth, label_here, total.max, scale_over_sum, scale)
            .store(piece + place * kWidth);
      }
    }
    fence_shared();
    __syncthreads();  // the gradient is there
    if (thread == 0) {
      if (vectors > 0) begin_store(logits_of(row), piece, bytes);
      if (stages == 1) {
        wait_for_store_reads();
        bring(row + row_step, 0);
      }
    }
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  if (thread == 0) wait_for_stores();
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
  return divide_up(bytes, kMostClusterBlocks) <= kLongPieceBytes ? kMostClusterBlocks : 0;
}

template <typename T, int kBlockThreads>
void launch_clusters(const View<T>& view, int blocks, int64_t piece_vectors, int stages, cudaStream_t stream) {
  const auto kernel = cross_entropy_cluster_kernel<T, kBlockThreads>;
  const auto shared_bytes = static_cast<size_t>(piece_vectors) * 16 * static_cast<size_t>(stages);
  ITHACA_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  // As many blocks as the pieces leave room for, rather than more of the first-level cache.
  ITHACA_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(kBlockThreads);
  launch.dynamicSmemBytes = shared_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  int clusters = 0;
  ITHACA_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch));
  const int64_t resident = std::clamp<int64_t>(view.tokens, 1, std::max(clusters, 1));
  launch.gridDim = dim3(static_cast<unsigned>(resident * blocks));
  ITHACA_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, view, piece_vectors, stages));
}

template <typename T>
void launch_clusters(const View<T>& view, int blocks, cudaStream_t stream) {
  const int64_t piece_vectors = divide_up(view.vocabulary / kVectorWidth<T>, blocks);
  const int64_t piece_bytes = piece_vectors * 16;
  if (piece_bytes <= kShortPieceBytes) {
    launch_clusters<T, kShortThreads>(view, blocks, piece_vectors, kMostStages, stream);
  } else {
    const auto stages = static_cast<int>(std::clamp<int64_t>(kLongPieceBytes / piece_bytes, 1, kMostStages));
    launch_clusters<T, kLongThreads>(view, blocks, piece_vectors, stages, stream);
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
    if (vectors && view.with_gradient && blocks > 0 && device_has_clusters()) {
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
