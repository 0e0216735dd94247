#include "backend/cuda/cudnn_attention.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace ithaca::cuda {
namespace {

constexpr auto kBFloat16 = CUDNN_DATA_BFLOAT16;
constexpr auto kFloat = CUDNN_DATA_FLOAT;
constexpr auto kInt32 = CUDNN_DATA_INT32;
constexpr auto kInt64 = CUDNN_DATA_INT64;
constexpr auto kBoolean = CUDNN_DATA_BOOLEAN;

// Ids of tensors and scalars.
enum Id : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOutput,
  kLogSumExp,
  kDoutput,
  kDquery,
  kDkey,
  kDvalue,
  kDqueryAccumulator,
  kRowSums,
  kDkeyByQueryHead,
  kDvalueByQueryHead,
  kScale,
  kMinusInfinity,
  kOne,
  kQueryLength,
  kKeyLength,
  kWindow,
  kQueryLengths,
  kKeyLengths,
  kQueryOffsets,
  kKeyOffsets,
  kValueOffsets,
  kOutputOffsets,
  kLogSumExpOffsets,
  kIdCount
};

using Extents = CudnnGraph::Extents;

// Strides of [batch, heads, tokens, size], and of the same memory as [batch, heads, size, tokens].
Extents by_token(const CudnnStrides& strides) {
  return {strides.batch, strides.head, strides.token, 1};
}
Extents by_size(const CudnnStrides& strides) {
  return {strides.batch, strides.head, 1, strides.token};
}

// Builds the graph of one shape.
class AttentionGraph {
 public:
  explicit AttentionGraph(const CudnnAttentionShape& shape) : shape_(shape) {
    if (shape_.ragged) {
      const auto array = [&](Id id, int64_t count, cudnnDataType_t type) {
        return graph_.tensor(id, {count, 1, 1, 1}, {1, 1, 1, 1}, type);
      };
      query_lengths_ = array(kQueryLengths, shape_.batch, kInt32);
      key_lengths_ = array(kKeyLengths, shape_.batch, kInt32);
      query_offsets_ = array(kQueryOffsets, shape_.batch + 1, kInt64);
      key_offsets_ = array(kKeyOffsets, shape_.batch + 1, kInt64);
      value_offsets_ = array(kValueOffsets, shape_.batch + 1, kInt64);
      output_offsets_ = array(kOutputOffsets, shape_.batch + 1, kInt64);
      log_sum_exp_offsets_ = array(kLogSumExpOffsets, shape_.batch + 1, kInt64);
    }
    scale_ = graph_.scalar(kScale, kFloat);
    if (shape_.ragged || shape_.mask != AttentionMask::full) minus_infinity_ = graph_.scalar(kMinusInfinity, kFloat);
    query_ = graph_.tensor(kQuery, query_extents(), by_token(shape_.query), kBFloat16, ragged(query_offsets_));
    key_transposed_ =
        graph_.tensor(kKey, transposed_key_extents(), by_size(shape_.key), kBFloat16, ragged(key_offsets_));
  }

  CudnnGraph forward() {
    const CudnnTensor value =
        graph_.tensor(kValue, key_extents(), by_token(shape_.value), kBFloat16, ragged(value_offsets_));
    const CudnnTensor output =
        graph_.tensor(kOutput, query_extents(), by_token(shape_.output), kBFloat16, ragged(output_offsets_));
    const CudnnTensor log_sum_exp = row_tensor(kLogSumExp);
    const CudnnTensor scores = diagonal_mask(padding_mask(scaled_scores()));
    const CudnnTensor maximum = graph_.intermediate(row_extents());
    graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, maximum);
    const CudnnTensor exponentials =
        graph_.unary(CUDNN_POINTWISE_EXP, graph_.binary(CUDNN_POINTWISE_SUB, scores, maximum));
    const CudnnTensor sum = graph_.intermediate(row_extents());
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
    const CudnnTensor log_sum = graph_.unary(CUDNN_POINTWISE_LOG, sum);
    graph_.pointwise(CUDNN_POINTWISE_ADD, log_sum_exp, maximum, &log_sum);
    const CudnnTensor probabilities = graph_.binary(CUDNN_POINTWISE_DIV, exponentials, sum, kFloat, kBFloat16);
    graph_.matmul(probabilities, value, output, rows(), nullptr, columns());
    return std::move(graph_);
  }

  CudnnGraph backward() {
    const CudnnTensor value_transposed =
        graph_.tensor(kValue, transposed_key_extents(), by_size(shape_.value), kBFloat16, ragged(value_offsets_));
    const CudnnTensor output =
        graph_.tensor(kOutput, query_extents(), by_token(shape_.output), kBFloat16, ragged(output_offsets_));
    const CudnnTensor doutput =
        graph_.tensor(kDoutput, query_extents(), by_token(shape_.doutput), kBFloat16, ragged(output_offsets_));
    const CudnnTensor log_sum_exp = row_tensor(kLogSumExp);
    const CudnnTensor dquery =
        graph_.tensor(kDquery, query_extents(), by_token(shape_.dquery), kBFloat16, ragged(query_offsets_));
    const CudnnTensor dkey =
        graph_.tensor(kDkey, key_extents(), by_token(shape_.dkey), kBFloat16, ragged(key_offsets_));
    const CudnnTensor dvalue =
        graph_.tensor(kDvalue, key_extents(), by_token(shape_.dvalue), kBFloat16, ragged(value_offsets_));

    // sum(dO * O) of every row. Without the product with 1 cuDNN keeps all scores in memory.
    const CudnnTensor row_sums = row_tensor(kRowSums);
    const CudnnTensor unscaled = graph_.intermediate(row_extents());
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, graph_.binary(CUDNN_POINTWISE_MUL, doutput, output), unscaled);
    const CudnnTensor one = graph_.scalar(kOne, kFloat);
    graph_.pointwise(CUDNN_POINTWISE_MUL, row_sums, unscaled, &one);

    // P = exp(scale * Q K^T - log_sum_exp), masked.
    CudnnTensor scores = padding_mask(scaled_scores());
    scores = diagonal_mask(graph_.binary(CUDNN_POINTWISE_SUB, scores, log_sum_exp));
    const CudnnTensor probabilities = graph_.unary(CUDNN_POINTWISE_EXP, scores);
    // dV = P^T dO.
    key_gradient(probabilities, doutput, dvalue, kDvalueByQueryHead, shape_.dvalue, value_offsets_);
    // dS = P * (dO V^T - row sums) * scale; dK = dS^T Q.
    CudnnTensor dscores = graph_.intermediate(score_extents());
    graph_.matmul(doutput, value_transposed, dscores, rows(), columns());
    dscores = graph_.binary(CUDNN_POINTWISE_SUB, dscores, row_sums);
    dscores = graph_.binary(CUDNN_POINTWISE_MUL, dscores, probabilities);
    dscores = graph_.binary(CUDNN_POINTWISE_MUL, dscores, scale_);
    key_gradient(dscores, query_, dkey, kDkeyByQueryHead, shape_.dkey, key_offsets_);
    // dQ = dS K, through a float32 accumulator.
    const CudnnTensor key = graph_.transpose(key_transposed_, by_size(shape_.key), kBFloat16, ragged(key_offsets_));
    const int64_t row = shape_.head_size;
    const Extents dense_strides = {shape_.query_heads * shape_.query_length * row, shape_.query_length * row, row, 1};
    const CudnnTensor accumulator =
        graph_.tensor(kDqueryAccumulator, query_extents(), shape_.ragged ? by_token(shape_.dquery) : dense_strides,
                      kFloat, ragged(query_offsets_));
    graph_.matmul(dscores, key, accumulator, rows(), nullptr, columns());
    graph_.pointwise(CUDNN_POINTWISE_IDENTITY, dquery, accumulator);
    return std::move(graph_);
  }

 private:
  Extents query_extents() const { return {shape_.batch, shape_.query_heads, shape_.query_length, shape_.head_size}; }
  Extents key_extents() const { return {shape_.batch, shape_.key_heads, shape_.key_length, shape_.head_size}; }
  Extents transposed_key_extents() const {
    return {shape_.batch, shape_.key_heads, shape_.head_size, shape_.key_length};
  }
  Extents score_extents() const { return {shape_.batch, shape_.query_heads, shape_.query_length, shape_.key_length}; }
  Extents row_extents() const { return {shape_.batch, shape_.query_heads, shape_.query_length, 1}; }

  const CudnnTensor* ragged(const CudnnTensor& offsets) const { return shape_.ragged ? &offsets : nullptr; }
  const CudnnTensor* rows() const { return ragged(query_lengths_); }
  const CudnnTensor* columns() const { return ragged(key_lengths_); }

  // One float32 value per row: dense [batch, heads, length], ragged [tokens, heads].
  CudnnTensor row_tensor(Id id) {
    const int64_t heads = shape_.query_heads;
    const int64_t length = shape_.query_length;
    const Extents strides =
        shape_.ragged ? Extents{heads * length, 1, heads, 1} : Extents{heads * length, length, 1, 1};
    return graph_.tensor(id, row_extents(), strides, kFloat, ragged(log_sum_exp_offsets_));
  }

  CudnnTensor scaled_scores() {
    const CudnnTensor scores = graph_.intermediate(score_extents());
    graph_.matmul(query_, key_transposed_, scores, rows(), columns());
    return graph_.binary(CUDNN_POINTWISE_MUL, scores, scale_);
  }

  // -inf behind the last query and the last key of a rectangle.
  CudnnTensor padding_mask(const CudnnTensor& scores) {
    if (!shape_.ragged) return scores;
    const auto within = [&](int64_t axis, const CudnnTensor& lengths) {
      return graph_.binary(CUDNN_POINTWISE_CMP_LT, graph_.index(scores, axis), lengths, kBoolean, kBoolean);
    };
    const CudnnTensor row = within(2, query_lengths_);
    const CudnnTensor column = within(3, key_lengths_);
    return graph_.select(graph_.binary(CUDNN_POINTWISE_LOGICAL_AND, row, column, kBoolean, kBoolean), scores,
                         minus_infinity_);
  }

  // -inf right of the diagonal and left of the window. These forms are the ones that cuDNN's engines recognise.
  CudnnTensor diagonal_mask(const CudnnTensor& scores) {
    if (shape_.mask == AttentionMask::full) return scores;
    const bool bottom_right = shape_.mask == AttentionMask::causal_bottom_right;
    CudnnTensor row = graph_.index(scores, 2);
    const CudnnTensor column = graph_.index(scores, 3);
    if (bottom_right) {
      row = graph_.binary(CUDNN_POINTWISE_ADD, row, shape_.ragged ? key_lengths_ : graph_.scalar(kKeyLength, kInt32),
                          kInt32, kInt32);
      row = graph_.binary(CUDNN_POINTWISE_SUB, row,
                          shape_.ragged ? query_lengths_ : graph_.scalar(kQueryLength, kInt32), kInt32, kInt32);
    }
    const CudnnTensor causal =
        graph_.select(graph_.binary(CUDNN_POINTWISE_CMP_GE, row, column, kBoolean, kBoolean), scores, minus_infinity_);
    return shape_.windowed ? window_mask(causal, bottom_right && shape_.ragged) : causal;
  }

  // Keeps column + window (- key length + query length) > row. With lengths from tensors everything is int32, otherwise
  // the shift is part of the window, a float.
  CudnnTensor window_mask(const CudnnTensor& scores, bool with_lengths) {
    const cudnnDataType_t type = with_lengths ? kInt32 : kFloat;
    const CudnnTensor row = graph_.index(scores, 2);
    CudnnTensor column = graph_.index(scores, 3);
    column = graph_.binary(CUDNN_POINTWISE_ADD, column, graph_.scalar(kWindow, type), type, type);
    if (with_lengths) {
      column = graph_.binary(CUDNN_POINTWISE_SUB, column, key_lengths_, kInt32, kInt32);
      column = graph_.binary(CUDNN_POINTWISE_ADD, column, query_lengths_, kInt32, kInt32);
    }
    return graph_.select(graph_.binary(CUDNN_POINTWISE_CMP_GT, column, row, kBoolean, kBoolean), scores,
                         minus_infinity_);
  }

  // gradient = scores^T * factor, summed over the query heads of each key head. The sums of ragged batches go through a
  // real tensor, whose offsets are the gradient's times the group size (cuDNN multiplies).
  void key_gradient(const CudnnTensor& scores, const CudnnTensor& factor, const CudnnTensor& gradient, Id by_head_id,
                    const CudnnStrides& strides, const CudnnTensor& offsets) {
    const Extents score_strides = {shape_.query_heads * shape_.query_length * shape_.key_length,
                                   shape_.query_length * shape_.key_length, shape_.key_length, 1};
    const CudnnTensor transposed = graph_.transpose(scores, score_strides, kBFloat16);
    if (shape_.query_heads == shape_.key_heads) {
      graph_.matmul(transposed, factor, gradient, columns(), nullptr, rows());
      return;
    }
    const Extents extents = {shape_.batch, shape_.query_heads, shape_.key_length, shape_.head_size};
    const int64_t group = shape_.query_heads / shape_.key_heads;
    const CudnnTensor by_head =
        shape_.ragged
            ? graph_.tensor(by_head_id, extents, {strides.batch * group, strides.head, strides.token * group, 1},
                            kBFloat16, &offsets)
            : graph_.intermediate(extents, kBFloat16);
    graph_.matmul(transposed, factor, by_head, columns(), nullptr, rows());
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, by_head, gradient);
  }

  CudnnAttentionShape shape_;
  CudnnGraph graph_;
  CudnnTensor query_lengths_, key_lengths_;
  CudnnTensor query_offsets_, key_offsets_, value_offsets_, output_offsets_, log_sum_exp_offsets_;
  CudnnTensor scale_, minus_infinity_;
  CudnnTensor query_, key_transposed_;
};

// The host values of scalars, and the addresses of everything by id. Lives during one execution.
class ExecutionArguments {
 public:
  ExecutionArguments(const CudnnAttentionShape& shape, float scale, int64_t window, const CudnnRaggedArrays& ragged)
      : scale_(scale),
        query_length_(static_cast<int32_t>(shape.query_length)),
        key_length_(static_cast<int32_t>(shape.key_length)) {
    const bool bottom_right = shape.mask == AttentionMask::causal_bottom_right;
    if (bottom_right && shape.ragged) {
      window_ = std::bit_cast<uint32_t>(static_cast<int32_t>(window));
    } else {
      const int64_t shift = bottom_right ? shape.key_length - shape.query_length : 0;
      window_ = std::bit_cast<uint32_t>(static_cast<float>(window - shift));
    }
    set(kScale, &scale_);
    set(kMinusInfinity, &minus_infinity_);
    set(kOne, &one_);
    set(kQueryLength, &query_length_);
    set(kKeyLength, &key_length_);
    set(kWindow, &window_);
    set(kQueryLengths, ragged.query_lengths);
    set(kKeyLengths, ragged.key_lengths);
    set(kQueryOffsets, ragged.query);
    set(kKeyOffsets, ragged.key);
    set(kValueOffsets, ragged.value);
    set(kOutputOffsets, ragged.output);
    set(kLogSumExpOffsets, ragged.log_sum_exp);
  }
  ExecutionArguments(const ExecutionArguments&) = delete;
  ExecutionArguments& operator=(const ExecutionArguments&) = delete;

  // cuDNN takes all addresses as void*; it writes only to outputs.
  void set(Id id, const void* address) { addresses_[id] = const_cast<void*>(address); }

  std::vector<void*> of(const std::vector<int64_t>& ids) const {
    std::vector<void*> result;
    result.reserve(ids.size());
    for (const int64_t id : ids) {
      void* address = addresses_[static_cast<size_t>(id)];
      require(address != nullptr, fmt::format("cuDNN attention: tensor {} has no address", id));
      result.push_back(address);
    }
    return result;
  }

 private:
  std::array<void*, kIdCount> addresses_{};
  float scale_;
  float minus_infinity_ = -std::numeric_limits<float>::infinity();
  float one_ = 1.0f;
  int32_t query_length_;
  int32_t key_length_;
  uint32_t window_ = 0;  // bits of an int32 or a float
};

}  // namespace

CudnnAttention::CudnnAttention() {
  require_cudnn(cudnnCreate(&handle_), "creating a handle");
}

CudnnAttention::CudnnAttention(const std::string& device_properties)
    : device_properties_(std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device properties")) {
  device_properties_->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                          static_cast<int64_t>(device_properties.size()), device_properties.data());
  device_properties_->finalize();
}

CudnnAttention::~CudnnAttention() {
  plans_.clear();
  if (handle_ != nullptr) cudnnDestroy(handle_);
}

bool CudnnAttention::may_take(int64_t query_heads, int64_t key_heads, int64_t key_size, int64_t value_size) {
  constexpr int64_t kLargestHeadSize = 128;
  // cuDNN 9.19 accepts multiples of 8 up to 256, but on an H200 its ragged backward gave wrong gradients for head sizes
  // 8, 72, 160 and (in one of two runs) 256; 32, 64, 96 and 128 were right. Only multiples of 32 up to 128 are trusted
  // with it.
  constexpr int64_t kHeadSizeMultiple = 32;
  return query_heads > 0 && key_heads > 0 && query_heads % key_heads == 0 && key_size == value_size && key_size > 0 &&
         key_size % kHeadSizeMultiple == 0 && key_size <= kLargestHeadSize;
}

bool CudnnAttention::prepare(const CudnnAttentionShape& shape) {
  const auto known = plans_.find(shape);
  if (known != plans_.end()) return known->second != nullptr;
  std::unique_ptr<CudnnPlan> built;
  try {
    AttentionGraph graph(shape);
    built = std::make_unique<CudnnPlan>(shape.backward ? graph.backward() : graph.forward(), handle_,
                                        device_properties_.get());
    ++plans_built_;
  } catch (const CudnnError& error) {
    last_refusal_ = error.what();
  }
  return plans_.emplace(shape, std::move(built)).first->second != nullptr;
}

bool CudnnAttention::is_known(const CudnnAttentionShape& shape) const {
  return plans_.contains(shape);
}

const CudnnPlan& CudnnAttention::plan(const CudnnAttentionShape& shape) const {
  const auto found = plans_.find(shape);
  require(found != plans_.end() && found->second != nullptr, "cuDNN attention: the shape has not been prepared");
  return *found->second;
}

int64_t CudnnAttention::workspace_bytes(const CudnnAttentionShape& shape) const {
  return plan(shape).workspace_bytes();
}

void CudnnAttention::use_stream(cudaStream_t stream) {
  require_cudnn(cudnnSetStream(handle_, stream), "choosing the stream");
}

void CudnnAttention::forward(cudaStream_t stream, const CudnnAttentionShape& shape, const CudnnForwardData& data,
                             void* workspace) {
  const CudnnPlan& forward_plan = plan(shape);
  ExecutionArguments arguments(shape, data.scale, data.window, data.ragged);
  arguments.set(kQuery, data.query);
  arguments.set(kKey, data.key);
  arguments.set(kValue, data.value);
  arguments.set(kOutput, data.output);
  arguments.set(kLogSumExp, data.log_sum_exp);
  use_stream(stream);
  forward_plan.execute(handle_, arguments.of(forward_plan.ids()), workspace);
}

void CudnnAttention::backward(cudaStream_t stream, const CudnnAttentionShape& shape, const CudnnBackwardData& data,
                              void* workspace) {
  const CudnnPlan& backward_plan = plan(shape);
  ExecutionArguments arguments(shape, data.scale, data.window, data.ragged);
  arguments.set(kQuery, data.query);
  arguments.set(kKey, data.key);
  arguments.set(kValue, data.value);
  arguments.set(kOutput, data.output);
  arguments.set(kDoutput, data.doutput);
  arguments.set(kLogSumExp, data.log_sum_exp);
  arguments.set(kDquery, data.dquery);
  arguments.set(kDkey, data.dkey);
  arguments.set(kDvalue, data.dvalue);
  arguments.set(kRowSums, data.row_sums);
  arguments.set(kDqueryAccumulator, data.dquery_accumulator);
  arguments.set(kDkeyByQueryHead, data.dkey_by_query_head);
  arguments.set(kDvalueByQueryHead, data.dvalue_by_query_head);
  use_stream(stream);
  backward_plan.execute(handle_, arguments.of(backward_plan.ids()), workspace);
}

}  // namespace ithaca::cuda
