// The backward half of CudaAttention. Each call's gradients come in bfloat16 from cuDNN and are added to the caller's
// float32 tensors, or written there when nothing is in them yet; own kernels add directly.
#include <bit>
#include <initializer_list>
#include <vector>

#include "backend/cuda/attention_engine.h"
#include "backend/cuda/cuda_check.h"

namespace ithaca::cuda {
namespace {

// Backward calls of one list.
class BackwardCalls {
 public:
  BackwardCalls(AttentionEngine& engine, const AttentionBackward& arguments, cudaStream_t stream)
      : engine_(engine), arguments_(arguments), stream_(stream) {}

  // `overwrites`: the call's gradients are all there is, and go over what the caller's tensors hold.
  struct Overwrites {
    bool dquery = false;
    bool dkey_dvalue = false;
  };

  void run(PreparedCall& prepared, Overwrites overwrites) {
    overwrites_ = overwrites;
    if (prepared.call.form == AttentionForm::dense && run_dense(prepared)) return;
    if (prepared.call.form != AttentionForm::tasks && run_ragged(prepared)) return;
    run_tasks(prepared);
  }

 private:
  // bfloat16 gradients of a call.
  struct Gradients {
    OwnTensor dquery, dkey, dvalue;
  };

  Gradients allocate_gradients(int64_t query_tokens, int64_t key_tokens) {
    const int64_t size = arguments_.query.extent(2);
    const int64_t key_heads = arguments_.key.extent(1);
    return {allocate("attention.dquery", DType::bfloat16, {query_tokens, arguments_.query.extent(1), size}),
            allocate("attention.dkey", DType::bfloat16, {key_tokens, key_heads, size}),
            allocate("attention.dvalue", DType::bfloat16, {key_tokens, key_heads, size})};
  }

  // Adds a dense [batch * length, heads, size] gradient to the tokens it belongs to.
  void add_batch(const Tensor& from, int64_t first, int64_t distance, int64_t length, int64_t batch, const Tensor& to,
                 bool overwrites) {
    if (distance == length) {
      add_gradient(from, to.slice(0, first, first + batch * length), overwrites, stream_);
      return;
    }
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t begin = first + i * distance;
      add_gradient(from.slice(0, i * length, (i + 1) * length), to.slice(0, begin, begin + length), overwrites,
                   stream_);
    }
  }

  bool run_dense(const PreparedCall& prepared) {
    const AttentionCall& call = prepared.call;
    const int64_t q_distance = query_distance(call);
    const int64_t k_distance = key_distance(call);
    CudnnAttentionShape shape = AttentionEngine::dense_shape(prepared, arguments_.query, arguments_.key);
    shape.backward = true;
    shape.query = cudnn_strides(arguments_.query, q_distance);
    shape.key = cudnn_strides(arguments_.key, k_distance);
    shape.value = cudnn_strides(arguments_.value, k_distance);
    shape.output = cudnn_strides(arguments_.output, q_distance);
    shape.doutput = cudnn_strides(arguments_.doutput, q_distance);
    const int64_t query_row = shape.query_heads * shape.head_size;
    const int64_t key_row = shape.key_heads * shape.head_size;
    shape.dquery = {shape.query_length * query_row, shape.head_size, query_row};
    shape.dkey = {shape.key_length * key_row, shape.head_size, key_row};
    shape.dvalue = shape.dkey;
    if (!engine_.admits_dense(shape)) return false;

    const Extents rows = {shape.batch, shape.query_heads, shape.query_length};
    const OwnTensor log_sum_exp = allocate("attention.log_sum_exp_by_head", DType::float32, rows);
    const OwnTensor sums = allocate("attention.row_sums", DType::float32, rows);
    const OwnTensor accumulator = allocate("attention.dquery_accumulator", DType::float32,
                                           {shape.batch, shape.query_heads, shape.query_length, shape.head_size});
    const Gradients gradients = allocate_gradients(shape.batch * shape.query_length, shape.batch * shape.key_length);
    const AttentionEntry& first = call.entries.front();
    gather_rows(arguments_.log_sum_exp, first.q_begin, q_distance, shape.batch, shape.query_length,
                log_sum_exp.tensor.as<float>(), stream_);
    CudnnBackwardData data;
    data.query = data_from(arguments_.query, first.q_begin);
    data.key = data_from(arguments_.key, first.k_begin);
    data.value = data_from(arguments_.value, first.k_begin);
    data.output = data_from(arguments_.output, first.q_begin);
    data.doutput = data_from(arguments_.doutput, first.q_begin);
    data.log_sum_exp = log_sum_exp.tensor.as<float>();
    data.row_sums = sums.tensor.as<float>();
    data.dquery_accumulator = accumulator.tensor.as<float>();
    execute(shape, data, gradients, call.window);
    add_batch(gradients.dquery.tensor, first.q_begin, q_distance, shape.query_length, shape.batch, arguments_.dquery,
              overwrites_.dquery);
    add_batch(gradients.dkey.tensor, first.k_begin, k_distance, shape.key_length, shape.batch, arguments_.dkey,
              overwrites_.dkey_dvalue);
    add_batch(gradients.dvalue.tensor, first.k_begin, k_distance, shape.key_length, shape.batch, arguments_.dvalue,
              overwrites_.dkey_dvalue);
    return true;
  }

  // Gradients share the offsets, and so the strides, of what they are gradients of: inputs with gaps between their
  // heads are copied first.
  bool run_ragged(PreparedCall& prepared) {
    CudnnAttentionShape shape = AttentionEngine::ragged_shape(prepared, arguments_.query, arguments_.key);
    shape.backward = true;
    const int64_t query_row = shape.query_heads * shape.head_size;
    const int64_t key_row = shape.key_heads * shape.head_size;
    const CudnnStrides query_strides = {shape.query_length * query_row, shape.head_size, query_row};
    const CudnnStrides key_strides = {shape.key_length * key_row, shape.head_size, key_row};
    shape.query = shape.dquery = shape.output = shape.doutput = query_strides;
    shape.key = shape.value = shape.dkey = shape.dvalue = key_strides;
    if (!engine_.cudnn().prepare(shape)) return false;

    const TokenRange queries = prepared.query_span();
    const TokenRange keys = prepared.key_span();
    const int64_t query_tokens = queries.end - queries.begin;
    const int64_t key_tokens = keys.end - keys.begin;
    const PackedInput query = packed("attention.packed_query", arguments_.query, queries);
    const PackedInput key = packed("attention.packed_key", arguments_.key, keys);
    const PackedInput value = packed("attention.packed_value", arguments_.value, keys);
    const PackedInput output = packed("attention.packed_output", arguments_.output, queries);
    const PackedInput doutput = packed("attention.packed_doutput", arguments_.doutput, queries);
    const PackedInput log_sum_exp = packed_rows("attention.log_sum_exp", arguments_.log_sum_exp, queries);
    const OwnTensor sums = allocate("attention.row_sums", DType::float32, {query_tokens, shape.query_heads});
    const OwnTensor accumulator =
        allocate("attention.dquery_accumulator", DType::float32, {query_tokens, shape.query_heads, shape.head_size});
    const Gradients gradients = allocate_gradients(query_tokens, key_tokens);
    OwnTensor dkey_by_query_head, dvalue_by_query_head;
    CudnnBackwardData data;
    if (shape.query_heads != shape.key_heads) {
      const Extents extents = {key_tokens, shape.query_heads, shape.head_size};
      dkey_by_query_head = allocate("attention.dkey_by_query_head", DType::bfloat16, extents);
      dvalue_by_query_head = allocate("attention.dvalue_by_query_head", DType::bfloat16, extents);
      data.dkey_by_query_head = dkey_by_query_head.tensor.data;
      data.dvalue_by_query_head = dvalue_by_query_head.tensor.data;
    }
    // cuDNN writes the tokens of the rectangles only, and all of the span is read below.
    if (!prepared.covers_query_span()) {
      clear(accumulator);
      clear(gradients.dquery);
    }
    if (!prepared.covers_key_span()) {
      for (const OwnTensor* tensor : std::initializer_list<const OwnTensor*>{
               &gradients.dkey, &gradients.dvalue, &dkey_by_query_head, &dvalue_by_query_head}) {
        clear(*tensor);
      }
    }
    data.query = query.data;
    data.key = key.data;
    data.value = value.data;
    data.output = output.data;
    data.doutput = doutput.data;
    data.log_sum_exp = static_cast<const float*>(log_sum_exp.data);
    data.row_sums = sums.tensor.as<float>();
    data.dquery_accumulator = accumulator.tensor.as<float>();
    const RaggedTokenStrides strides = {query_row, key_row, key_row, query_row, shape.query_heads};
    data.ragged = engine_.lists().ragged_arrays(prepared, strides, shape.batch, queries.begin, keys.begin, stream_);
    execute(shape, data, gradients, prepared.call.window);
    add_gradient(gradients.dquery.tensor, arguments_.dquery.slice(0, queries.begin, queries.end), overwrites_.dquery,
                 stream_);
    add_gradient(gradients.dkey.tensor, arguments_.dkey.slice(0, keys.begin, keys.end), overwrites_.dkey_dvalue,
                 stream_);
    add_gradient(gradients.dvalue.tensor, arguments_.dvalue.slice(0, keys.begin, keys.end), overwrites_.dkey_dvalue,
                 stream_);
    return true;
  }

  void run_tasks(PreparedCall& prepared) {
    if (overwrites_.dquery) clear_gradient(arguments_.dquery, stream_);
    if (overwrites_.dkey_dvalue) {
      clear_gradient(arguments_.dkey, stream_);
      clear_gradient(arguments_.dvalue, stream_);
    }
    const OwnTensor sums =
        allocate("attention.row_sums", DType::float32, {arguments_.query.extent(0), arguments_.query.extent(1)});
    output_gradient_sums(arguments_.output, arguments_.doutput, sums.tensor.as<float>(), stream_);
    const AttentionLists::Tiles tiles = engine_.lists().tiles(prepared, stream_);
    task_attention_backward(arguments_, tiles.by_query, tiles.by_key, sums.tensor.as<float>(), stream_);
  }

  void execute(const CudnnAttentionShape& shape, CudnnBackwardData& data, const Gradients& gradients, int64_t window) {
    data.dquery = gradients.dquery.tensor.data;
    data.dkey = gradients.dkey.tensor.data;
    data.dvalue = gradients.dvalue.tensor.data;
    data.scale = arguments_.scale;
    data.window = window;
    const auto workspace =
        engine_.allocate_bytes("attention.cudnn_backward", engine_.cudnn().workspace_bytes(shape), stream_);
    engine_.cudnn().backward(stream_, shape, data, workspace.get());
  }

  // Some tokens of an input as cuDNN reads them: [tokens, heads, size] without gaps.
  struct PackedInput {
    const void* data = nullptr;
    OwnTensor copy;
  };
  PackedInput packed(std::string_view name, const Tensor& input, TokenRange tokens) {
    const Tensor part = input.slice(0, tokens.begin, tokens.end);
    if (part.is_contiguous() && AttentionEngine::is_aligned(part)) return {part.data, {}};
    OwnTensor copy = allocate(name, input.dtype, part.extents);
    copy_heads(part, copy.tensor, stream_);
    return {copy.tensor.data, copy};
  }
  PackedInput packed_rows(std::string_view name, const Tensor& input, TokenRange tokens) {
    const Tensor part = input.slice(0, tokens.begin, tokens.end);
    if (part.is_contiguous() && std::bit_cast<uintptr_t>(part.data) % 16 == 0) return {part.data, {}};
    OwnTensor copy = allocate(name, input.dtype, part.extents);
    copy_rows(part, copy.tensor, stream_);
    return {copy.tensor.data, copy};
  }

  OwnTensor allocate(std::string_view name, DType dtype, const Extents& extents) {
    return engine_.allocate(name, dtype, extents, stream_);
  }
  void clear(const OwnTensor& own) {
    if (own.is_empty()) return;
    const auto bytes = static_cast<size_t>(own.tensor.byte_count());
    ITHACA_CUDA_CHECK(cudaMemsetAsync(own.tensor.data, 0, bytes, stream_));
  }
  static const void* data_from(const Tensor& tensor, int64_t token) {
    return tensor.slice(0, token, tensor.extent(0)).data;
  }

  AttentionEngine& engine_;
  const AttentionBackward& arguments_;
  cudaStream_t stream_;
  Overwrites overwrites_;  // of the call at hand
};

// Whether the ranges are all of `tokens`.
bool are_all(const std::vector<TokenRange>& ranges, int64_t tokens) {
  return ranges.size() == 1 && ranges[0] == TokenRange{0, tokens};
}

}  // namespace

void attention_backward(AttentionEngine& engine, const AttentionBackward& arguments, cudaStream_t stream) {
  BackwardCalls::Overwrites overwrites{arguments.overwrites_dquery, arguments.overwrites_dkey_dvalue};
  const auto clear = [&](bool dquery, bool dkey_dvalue) {
    if (dquery) clear_gradient(arguments.dquery, stream);
    if (!dkey_dvalue) return;
    clear_gradient(arguments.dkey, stream);
    clear_gradient(arguments.dvalue, stream);
  };
  if (arguments.tasks.empty() || arguments.query.element_count() == 0 || arguments.key.element_count() == 0) {
    clear(overwrites.dquery, overwrites.dkey_dvalue);
    return;
  }
  const bool fused = !engine.options().deterministic && AttentionEngine::is_aligned(arguments.output) &&
                     AttentionEngine::is_aligned(arguments.doutput);
  const AttentionCallRules rules =
      engine.rules(arguments.query, arguments.key, arguments.value, fused, engine.options().longest_own_backward);
  BackwardCalls calls(engine, arguments, stream);
  std::vector<PreparedCall>& list = engine.lists().find(arguments.tasks, rules);
  // A single call that writes all tokens of a gradient can overwrite it; otherwise it is cleared and added to.
  const bool is_single = list.size() == 1;
  const bool all_queries = is_single && are_all(list[0].queries, arguments.query.extent(0));
  const bool all_keys = is_single && are_all(list[0].keys, arguments.key.extent(0));
  clear(overwrites.dquery && !all_queries, overwrites.dkey_dvalue && !all_keys);
  overwrites = {overwrites.dquery && all_queries, overwrites.dkey_dvalue && all_keys};
  for (PreparedCall& prepared : list) calls.run(prepared, overwrites);
}

}  // namespace ithaca::cuda
