#include "backend/cuda/attention_engine.h"

#include <algorithm>
#include <bit>

namespace ithaca::cuda {
namespace {

// Ragged plans serve batches up to powers of two from this one on. Most lists fit the first, which is as fast for one
// rectangle; much larger ones would cost time for what is not there.
constexpr int64_t kSmallestBatch = 256;
// Ragged plans serve lengths up to powers of two from this one on.
constexpr int64_t kSmallestLength = 4096;

uint64_t as_unsigned(int64_t value) {
  return static_cast<uint64_t>(value);
}

CudnnAttentionShape shape_of(const PreparedCall& prepared, const Tensor& query, const Tensor& key) {
  CudnnAttentionShape shape;
  shape.mask = prepared.call.mask;
  shape.windowed = prepared.call.window > 0;
  shape.query_heads = query.extent(1);
  shape.key_heads = key.extent(1);
  shape.head_size = query.extent(2);
  return shape;
}

}  // namespace

OwnTensor AttentionEngine::allocate(std::string_view name, DType dtype, const Extents& extents, cudaStream_t stream) {
  OwnTensor result;
  result.memory = workspace_(name, std::max<int64_t>(1, extents.product() * element_size(dtype)), stream);
  result.tensor = Tensor::contiguous(result.memory.get(), dtype, extents);
  return result;
}

std::shared_ptr<void> AttentionEngine::allocate_bytes(std::string_view name, int64_t bytes, cudaStream_t stream) {
  return workspace_(name, std::max<int64_t>(1, bytes), stream);
}

CudnnAttention& AttentionEngine::cudnn() {
  if (cudnn_ == nullptr) cudnn_ = std::make_unique<CudnnAttention>();
  return *cudnn_;
}

AttentionCallRules AttentionEngine::rules(const Tensor& query, const Tensor& key, const Tensor& value,
                                          bool fused) const {
  AttentionCallRules rules;
  rules.query_heads = query.extent(1);
  rules.smallest_fused_work = options_.smallest_cudnn_work;
  rules.fused = fused && options_.use_cudnn && query.dtype == DType::bfloat16 &&
                CudnnAttention::may_take(query.extent(1), key.extent(1), query.extent(2), value.extent(2)) &&
                is_aligned(query) && is_aligned(key) && is_aligned(value);
  return rules;
}

bool AttentionEngine::is_aligned(const Tensor& tensor) {
  constexpr int64_t kElements = 8;  // 16 bytes
  return std::bit_cast<uintptr_t>(tensor.data) % 16 == 0 && tensor.stride(0) % kElements == 0 &&
         tensor.stride(1) % kElements == 0;
}

CudnnAttentionShape AttentionEngine::dense_shape(const PreparedCall& prepared, const Tensor& query, const Tensor& key) {
  CudnnAttentionShape shape = shape_of(prepared, query, key);
  const std::vector<AttentionEntry>& entries = prepared.call.entries;
  shape.batch = static_cast<int64_t>(entries.size());
  shape.query_length = entries.front().q_length;
  shape.key_length = entries.front().k_length;
  return shape;
}

CudnnAttentionShape AttentionEngine::ragged_shape(const PreparedCall& prepared, const Tensor& query,
                                                  const Tensor& key) {
  CudnnAttentionShape shape = shape_of(prepared, query, key);
  shape.ragged = true;
  const auto entries = static_cast<int64_t>(prepared.call.entries.size());
  shape.batch = static_cast<int64_t>(std::bit_ceil(as_unsigned(std::max(entries, kSmallestBatch))));
  const int64_t longest = std::max({query.extent(0), key.extent(0), kSmallestLength});
  shape.query_length = static_cast<int64_t>(std::bit_ceil(as_unsigned(longest)));
  shape.key_length = shape.query_length;
  return shape;
}

bool AttentionEngine::admits_dense(const CudnnAttentionShape& shape) {
  if (cudnn().is_known(shape)) return cudnn().prepare(shape);
  const DenseLengths lengths = {shape.backward, shape.mask,         shape.windowed,
                                shape.batch,    shape.query_length, shape.key_length};
  if (!dense_lengths_.contains(lengths) && dense_lengths_.size() >= kMostDenseShapes) return false;
  dense_lengths_.insert(lengths);
  return cudnn().prepare(shape);
}

int64_t query_distance(const AttentionCall& call) {
  return call.entries.size() > 1 ? call.entries[1].q_begin - call.entries[0].q_begin : call.entries[0].q_length;
}

int64_t key_distance(const AttentionCall& call) {
  return call.entries.size() > 1 ? call.entries[1].k_begin - call.entries[0].k_begin : call.entries[0].k_length;
}

CudnnStrides cudnn_strides(const Tensor& tensor, int64_t distance) {
  return {distance * tensor.stride(0), tensor.stride(1), tensor.stride(0)};
}

}  // namespace ithaca::cuda
