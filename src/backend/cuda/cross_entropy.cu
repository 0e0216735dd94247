// One tile of the loss: softmax cross-entropy of each row, and its gradient in place of the logits.
//
// The maximum and the sum of exponentials come from one pass over the row (the sum is rescaled whenever the maximum
// grows). With the gradient wanted, the row waits in shared memory, cut over the blocks of a cluster, so that logits
// are read once and written once. Every warp has a part of the row in a ring of its own: as soon as it has written the
// gradient of a kilobyte, the copy engine brings the kilobyte that comes next in its place, mostly of a later row; the
// warps of a cluster meet once for each row, to add up. Rows that do not come in 16-byte words, or are too long, are
// read twice.
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
// A block of the kernel with rings is alone on its multiprocessor, and has nearly all of its shared memory.
constexpr int kRingThreads = 512;
constexpr int kRingWarps = kRingThreads / 32;
constexpr int kRingChunks = 13;
constexpr int kChunkVectors = 64;  // 16-byte words
// Chunks of a row in one ring for which a cluster is made: the others bring the next row meanwhile.
constexpr int kRowChunks = 10;
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

// e^(logit - max), where the maximum comes as scaled(max).
__device__ inline float exponential(float logit, float scaled_max) {
  return two_to(fmaf(logit, kLog2E, -scaled_max));
}

// max and sum of e^(x - max) of the numbers seen so far, as powers of two: 2^(x * kLog2E - scaled(max)), whose exponent
// is one fused operation.
struct alignas(8) Softmax {
  float max;
  float sum;

  __device__ static Softmax empty() { return {-CUDART_INF_F, 0.0f}; }

  __device__ void add(const Softmax& other) {
    const float high = fmaxf(max, other.max);
    // Nothing seen, or only -inf: 0 stays, and so does a NaN.
    const bool is_seen = high != -CUDART_INF_F;
    const float own = is_seen ? sum * two_to(scaled(max) - scaled(high)) : sum;
    sum = own + (is_seen ? other.sum * two_to(scaled(other.max) - scaled(high)) : other.sum);
    max = high;
  }

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
    for (int i = 0; i < kWidth; ++i) sums[vector] += exponential(vectors[vector][i], scaled_high);
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
  const double max = static_cast<double>(scaled(softmax.max)) * (1.0 / static_cast<double>(kLog2E));
  const double loss = log(static_cast<double>(softmax.sum)) + max - static_cast<double>(label_logit);
  view.row_losses[row] = is_valid ? static_cast<double>(weight) * loss : CUDART_NAN;
}

// scale * (softmax - 1): by what the other elements have of the sum, which is exactly nothing where there are none.
__device__ inline float label_gradient(float logit, float scaled_max, float sum, float scale_over_sum) {
  return (exponential(logit, scaled_max) - sum) * scale_over_sum;
}

template <typename T, int kWidth>
__device__ inline Pack<T, kWidth> scaled_softmax(const Pack<T, kWidth>& values, float scaled_max,
                                                 float scale_over_sum) {
  Pack<T, kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.set(i, exponential(values[i], scaled_max) * scale_over_sum);
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
    // The thread that writes the label's element reads it before.
    const bool is_labelled = label >= 0 && label < view.vocabulary;
    const bool has_label = is_labelled && label / kWidth % kThreads == threadIdx.x;
    const float label_logit = has_label ? to_float(logits[label]) : 0.0f;
    __syncthreads();                            // the scratch may still be read for the row before
    softmax = block_softmax(softmax, scratch);  // its barrier also parts the reads from the writes below
    if (has_label || (!is_labelled && threadIdx.x == 0)) {
      write_row_loss(view, row, label, label_logit, weight, softmax);
    }
    if (!view.with_gradient) continue;
    const auto scale = static_cast<float>(static_cast<double>(weight) * view.gradient_scale);
    const float scale_over_sum = scale / softmax.sum;
    const float scaled_max = scaled(softmax.max);
    for (int64_t vector = threadIdx.x; vector < vectors; vector += kThreads) {
      const auto values = Pack<T, kWidth>::load(logits + vector * kWidth);
      scaled_softmax(values, scaled_max, scale_over_sum).store(logits + vector * kWidth);
    }
    if (has_label) {
      logits[label] = from_float<T>(label_gradient(label_logit, scaled_max, softmax.sum, scale_over_sum));
    }
  }
}

// All shared memory of a block. Chunk i of the block's piece of a row belongs to warp i % kRingWarps; the chunks of a
// warp, row after row, go around its ring.
struct Rings {
  uint4 chunks[kRingWarps][kRingChunks][kChunkVectors];
  BulkBarrier arrived[kRingWarps][kRingChunks];
  Softmax exchange[2][kMostClusterBlocks * kRingWarps];  // of all warps of the cluster; every other row
};

// Where a warp is in its ring: the phase belongs to the copy that is waited for there.
struct RingPlace {
  int chunk = 0;
  int phase = 0;

  __device__ void advance() {
    if (++chunk < kRingChunks) return;
    chunk = 0;
    phase ^= 1;
  }
};

// A row whose loss is still to be written, on the lane that does so.
struct FinishedRow {
  int64_t row = -1;
  int64_t label = 0;
  float label_logit = 0.0f;
  float weight = 0.0f;
  Softmax softmax{};

  template <typename T>
  __device__ void write(const View<T>& view) {
    if (row >= 0) write_row_loss(view, row, label, label_logit, weight, softmax);
    row = -1;
  }
};

// Clusters that stay until all rows are done: block r of one has the r-th `piece_chunks` chunks of each of its rows.
template <typename T>
__global__ void __launch_bounds__(kRingThreads, 1) cross_entropy_ring_kernel(const View<T> view, int piece_chunks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kWidth = kVectorWidth<T>;
  constexpr int kLaneVectors = kChunkVectors / 32;
  namespace groups = cooperative_groups;
  extern __shared__ uint4 shared_words[];
  Rings& rings = *reinterpret_cast<Rings*>(shared_words);
  const groups::cluster_group cluster = groups::this_cluster();
  const auto blocks = static_cast<int>(cluster.num_blocks());
  const auto rank = static_cast<int>(cluster.block_rank());
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t lane_offset = static_cast<int64_t>(lane) * kWidth;
  const int64_t first_row = blockIdx.x / static_cast<unsigned>(blocks);
  const int64_t row_step = gridDim.x / static_cast<unsigned>(blocks);
  // The block's piece, and the warp's chunks of it.
  const int64_t row_vectors = view.vocabulary / kWidth;
  const int64_t piece_vectors = static_cast<int64_t>(piece_chunks) * kChunkVectors;
  const int64_t begin = rank * piece_vectors < row_vectors ? rank * piece_vectors : row_vectors;
  const int64_t vectors = piece_vectors < row_vectors - begin ? piece_vectors : row_vectors - begin;
  const auto chunks = static_cast<int>((vectors + kChunkVectors - 1) / kChunkVectors);
  const int own_chunks = chunks > warp ? (chunks - warp + kRingWarps - 1) / kRingWarps : 0;
  T* const piece = view.logits + begin * kWidth;
  const auto first_vector = [&](int own_chunk) {
    return (static_cast<int64_t>(own_chunk) * kRingWarps + warp) * kChunkVectors;
  };
  const auto vectors_from = [&](int64_t first) {
    return static_cast<int>(vectors - first < kChunkVectors ? vectors - first : kChunkVectors);
  };
  const auto in_ring = [&](int chunk) { return reinterpret_cast<T*>(rings.chunks[warp][chunk]); };

  // By lane 0: brings the warp's next chunk to a place of the ring.
  int64_t coming_row = first_row;
  int coming_chunk = 0;
  const auto bring = [&](int to_chunk) {
    if (coming_row >= view.tokens) return;
    const int64_t first = first_vector(coming_chunk);
    begin_copy(in_ring(to_chunk), piece + coming_row * view.logits_stride + first * kWidth,
               static_cast<uint32_t>(vectors_from(first)) * 16u, rings.arrived[warp][to_chunk]);
    if (++coming_chunk == own_chunks) {
      coming_chunk = 0;
      coming_row += row_step;
    }
  };
  if (lane == 0) {
    for (int chunk = 0; chunk < kRingChunks; ++chunk) init(rings.arrived[warp][chunk]);
    fence_barriers();
    for (int chunk = 0; chunk < kRingChunks && own_chunks > 0; ++chunk) bring(chunk);
  }
  cluster.sync();  // all blocks are there, and so are their barriers

  RingPlace place;
  int parity = 0;
  FinishedRow finished;
  int64_t next_label = first_row < view.tokens ? view.labels[first_row * view.label_stride] : 0;
  float next_weight = first_row < view.tokens ? weight_of(view, first_row) : 0.0f;
  for (int64_t row = first_row; row < view.tokens; row += row_step) {
    const int64_t label = next_label;
    const float weight = next_weight;
    if (row + row_step < view.tokens) {  // long before they are needed
      next_label = view.labels[(row + row_step) * view.label_stride];
      next_weight = weight_of(view, row + row_step);
    }
    T* const to = piece + row * view.logits_stride;
    if (!is_counted(view, label, weight)) {  // the same for all blocks of the cluster
      if (rank == 0 && threadIdx.x == 0) view.row_losses[row] = 0.0;
      Pack<T, kWidth> zeros;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) zeros.set(i, 0.0f);
      for (int own_chunk = 0; own_chunk < own_chunks; ++own_chunk) {
        const int64_t first = first_vector(own_chunk);
        const int count = vectors_from(first);
        wait(rings.arrived[warp][place.chunk], place.phase);
        for (int64_t vector = lane; vector < count; vector += 32) zeros.store(to + (first + vector) * kWidth);
        __syncwarp();
        if (lane == 0) bring(place.chunk);
        place.advance();
      }
      continue;
    }

    const int first_chunk = place.chunk;
    Softmax softmax = Softmax::empty();
    for (int own_chunk = 0; own_chunk < own_chunks; ++own_chunk) {
      const int count = vectors_from(first_vector(own_chunk));
      const T* const from = in_ring(place.chunk);
      wait(rings.arrived[warp][place.chunk], place.phase);
      if (count == kChunkVectors) {
        Pack<T, kWidth> values[kLaneVectors];
#pragma unroll
        for (int i = 0; i < kLaneVectors; ++i) values[i] = Pack<T, kWidth>::load(from + lane_offset + i * 32 * kWidth);
        add_vectors(softmax, values);
      } else {
        for (int64_t vector = lane; vector < count; vector += 32) {
          const Pack<T, kWidth> values[1] = {Pack<T, kWidth>::load(from + vector * kWidth)};
          add_vectors(softmax, values);
        }
      }
      place.advance();
    }

    // The lane that has the label's element, while it still is a logit.
    const bool is_labelled = label >= 0 && label < view.vocabulary;
    const int64_t label_here = label - begin * kWidth;
    bool has_label = false;
    float label_logit = 0.0f;
    if (is_labelled && label_here >= 0 && label_here < vectors * kWidth) {
      const int vector = static_cast<int>(label_here) / kWidth;
      const int chunk = vector / kChunkVectors;
      has_label = chunk % kRingWarps == warp && vector % 32 == lane;
      if (has_label) {
        const int ring_chunk = (first_chunk + chunk / kRingWarps) % kRingChunks;
        label_logit = to_float(in_ring(ring_chunk)[static_cast<int>(label_here) - chunk * kChunkVectors * kWidth]);
      }
    }

    // To all blocks of the cluster. They read what the row before last left here before they came to the barrier of the
    // row before.
    softmax.add_lanes<32>();
    if (lane < blocks) *cluster.map_shared_rank(&rings.exchange[parity][rank * kRingWarps + warp], lane) = softmax;
    cluster.barrier_arrive();
    finished.write(view);  // of the row before: the others have yet to come
    __syncwarp();
    cluster.barrier_wait();
    Softmax total = Softmax::empty();
    for (int part = lane; part < blocks * kRingWarps; part += 32) total.add(rings.exchange[parity][part]);
    total.add_lanes<32>();
    parity ^= 1;

    const auto scale = static_cast<float>(static_cast<double>(weight) * view.gradient_scale);
    const float scale_over_sum = scale / total.sum;
    const float scaled_max = scaled(total.max);
    int chunk = first_chunk;
    for (int own_chunk = 0; own_chunk < own_chunks; ++own_chunk) {
      const int64_t first = first_vector(own_chunk);
      const int count = vectors_from(first);
      const T* const from = in_ring(chunk);
      T* const chunk_to = to + first * kWidth;
      if (count == kChunkVectors) {
        Pack<T, kWidth> values[kLaneVectors];
#pragma unroll
        for (int i = 0; i < kLaneVectors; ++i) values[i] = Pack<T, kWidth>::load(from + lane_offset + i * 32 * kWidth);
#pragma unroll
        for (int i = 0; i < kLaneVectors; ++i) {
          scaled_softmax(values[i], scaled_max, scale_over_sum).store(chunk_to + lane_offset + i * 32 * kWidth);
        }
      } else {
        for (int64_t vector = lane; vector < count; vector += 32) {
          const auto values = Pack<T, kWidth>::load(from + vector * kWidth);
          scaled_softmax(values, scaled_max, scale_over_sum).store(chunk_to + vector * kWidth);
        }
      }
      __syncwarp();  // all lanes have read the chunk
      if (lane == 0) bring(chunk);
      chunk = chunk + 1 < kRingChunks ? chunk + 1 : 0;
    }
    if (has_label) {  // behind the lane's own store of the vector
      to[label_here] = from_float<T>(label_gradient(label_logit, scaled_max, total.sum, scale_over_sum));
    }
    if (has_label || (!is_labelled && rank == 0 && threadIdx.x == 0)) {
      finished = {row, label, label_logit, weight, total};
    }
  }
  finished.write(view);
#endif
}

bool device_has_clusters() {
  int device = 0;
  int major = 0;
  ITHACA_CUDA_CHECK(cudaGetDevice(&device));
  ITHACA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

// How the chunks of a row are dealt to the blocks of a cluster. No blocks: the row is too long for the largest cluster.
struct Pieces {
  int blocks = 0;
  int chunks = 0;  // of each block but the last ones
};

Pieces pieces_for(int64_t row_vectors) {
  const int64_t row_chunks = divide_up(row_vectors, kChunkVectors);
  for (int blocks = 1; blocks <= kMostClusterBlocks; blocks *= 2) {
    const int64_t chunks = divide_up(row_chunks, blocks);
    if (chunks <= kRingWarps * (blocks < kMostClusterBlocks ? kRowChunks : kRingChunks)) {
      return {blocks, static_cast<int>(chunks)};
    }
  }
  return {};
}

template <typename T>
void launch_rings(const View<T>& view, const Pieces& pieces, cudaStream_t stream) {
  const auto kernel = cross_entropy_ring_kernel<T>;
  ITHACA_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Rings))));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(pieces.blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(pieces.blocks));
  launch.blockDim = dim3(kRingThreads);
  launch.dynamicSmemBytes = sizeof(Rings);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  int clusters = 0;
  ITHACA_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch));
  const int64_t resident = std::clamp<int64_t>(view.tokens, 1, std::max(clusters, 1));
  launch.gridDim = dim3(static_cast<unsigned>(resident * pieces.blocks));
  ITHACA_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, view, pieces.chunks));
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
    const Pieces pieces = pieces_for(view.vocabulary / kVectorWidth<T>);
    if (vectors && view.with_gradient && pieces.blocks > 0 && device_has_clusters()) {
      launch_rings(view, pieces, stream);
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
