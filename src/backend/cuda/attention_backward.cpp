// The backward half of CudaAttention. cuDNN makes bfloat16 gradients of each call, own kernels add in float32.
//
// A gradient that is to be overwritten, and whose tokens belong to one call each, is written by those calls: bfloat16
// ones where cuDNN makes them. Everything else is added up in float32, in the caller's tensor or, when that is
// bfloat16, in workspace that is rounded at the end.
#include <bit>
#include <initializer_list>
#include <vector>

#include "backend/cuda/attention_engine.h"
#include "backend/cuda/cuda_check.h"

namespace ithaca::cuda {
namespace {

// A gradient as the calls of one list see it.
struct Target {
  Tensor tensor;            // float32, or bfloat16 when `overwrites`
  bool overwrites = false;  // each call writes the tokens that it covers; otherwise it adds to them
};

bool is_bfloat16(const Tensor& tensor) {
  return tensor.dtype == DType::bfloat16;
}

// Backward calls of one list.
class BackwardCalls {
 public:
  BackwardCalls(AttentionEngine& engine, const AttentionBackward& arguments, const Target& dquery, const Target& dkey,
                const Target& dvalue, cudaStream_t stream)
      : engine_(engine), arguments_(arguments), dquery_(dquery), dkey_(dkey), dvalue_(dvalue), stream_(stream) {}

  void run(PreparedCall& prepared) {
    // With so much to do the document kernel is quicker than cuDNN; with less its blocks would not end together.
    constexpr int64_t kFewestTasksOfABlock = 3;
    if (prepared.call.form != AttentionForm::tasks && run_documents(prepared, kFewestTasksOfABlock)) return;
    if (prepared.call.form == AttentionForm::dense && run_dense(prepared)) return;
    if (prepared.call.form != AttentionForm::tasks && run_ragged(prepared)) return;
    run_tasks(prepared);
  }

 private:
  // Where cuDNN writes a gradient of some tokens: in its place, or in memory of its own.
  struct Written {
    Tensor tensor;  // bfloat16
    OwnTensor own;  // empty: in its place
  };

  // A dense [batch * length, heads, size] gradient that is not in its place, to the tokens it belongs to.
  void place_batch(const Written& from, int64_t first, int64_t distance, int64_t length, int64_t batch,
                   const Target& to) {
    if (from.own.is_empty()) return;
    if (distance == length) {
      place_gradient(from.tensor, to.tensor.slice(0, first, first + batch * length), to.overwrites, stream_);
      return;
    }
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t begin = first + i * distance;
      place_gradient(from.tensor.slice(0, i * length, (i + 1) * length), to.tensor.slice(0, begin, begin + length),
                     to.overwrites, stream_);
    }
  }

  static bool takes_dense(const Target& target) {
    return target.overwrites && is_bfloat16(target.tensor) && AttentionEngine::is_aligned(target.tensor);
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
    // In place where that is possible, in rows without gaps otherwise.
    const auto choose = [&](const Target& target, int64_t distance, int64_t length, bool in_place) {
      const int64_t heads = target.tensor.extent(1);
      const CudnnStrides packed_rows = {length * heads * shape.head_size, shape.head_size, heads * shape.head_size};
      return in_place && takes_dense(target) ? cudnn_strides(target.tensor, distance) : packed_rows;
    };
    bool in_place = true;
    for (;; in_place = false) {
      shape.dquery = choose(dquery_, q_distance, shape.query_length, in_place);
      shape.dkey = choose(dkey_, k_distance, shape.key_length, in_place);
      shape.dvalue = choose(dvalue_, k_distance, shape.key_length, in_place);
      if (engine_.admits_dense(shape)) break;
      if (!in_place) return false;
    }

    const AttentionEntry& first = call.entries.front();
    const auto written = [&](std::string_view name, const Target& target, int64_t first_token, int64_t length) {
      Written result;
      if (in_place && takes_dense(target)) {
        result.tensor = target.tensor.slice(0, first_token, target.tensor.extent(0));
      } else {
        result.own =
            allocate(name, DType::bfloat16, {shape.batch * length, target.tensor.extent(1), target.tensor.extent(2)});
        result.tensor = result.own.tensor;
      }
      return result;
    };
    const Extents rows = {shape.batch, shape.query_heads, shape.query_length};
    const OwnTensor log_sum_exp = allocate("attention.log_sum_exp_by_head", DType::float32, rows);
    const OwnTensor sums = allocate("attention.row_sums", DType::float32, rows);
    const OwnTensor accumulator = allocate("attention.dquery_accumulator", DType::float32,
                                           {shape.batch, shape.query_heads, shape.query_length, shape.head_size});
    const Written dquery = written("attention.dquery", dquery_, first.q_begin, shape.query_length);
    const Written dkey = written("attention.dkey", dkey_, first.k_begin, shape.key_length);
    const Written dvalue = written("attention.dvalue", dvalue_, first.k_begin, shape.key_length);
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
    data.dquery = dquery.tensor.data;
    data.dkey = dkey.tensor.data;
    data.dvalue = dvalue.tensor.data;
    execute(shape, data, call.window);
    place_batch(dquery, first.q_begin, q_distance, shape.query_length, shape.batch, dquery_);
    place_batch(dkey, first.k_begin, k_distance, shape.key_length, shape.batch, dkey_);
    place_batch(dvalue, first.k_begin, k_distance, shape.key_length, shape.batch, dvalue_);
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
    const Written dquery = written_ragged("attention.dquery", dquery_, prepared.queries);
    const Written dkey = written_ragged("attention.dkey", dkey_, prepared.keys);
    const Written dvalue = written_ragged("attention.dvalue", dvalue_, prepared.keys);
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
      clear(dquery.own);
    }
    if (!prepared.covers_key_span()) {
      for (const OwnTensor* tensor : std::initializer_list<const OwnTensor*>{
               &dkey.own, &dvalue.own, &dkey_by_query_head, &dvalue_by_query_head}) {
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
    data.dquery = dquery.tensor.data;
    data.dkey = dkey.tensor.data;
    data.dvalue = dvalue.tensor.data;
    execute(shape, data, prepared.call.window);
    place_ranges(dquery, prepared.queries, dquery_);
    place_ranges(dkey, prepared.keys, dkey_);
    place_ranges(dvalue, prepared.keys, dvalue_);
    return true;
  }

  // `ranges`: the tokens of the call, which in place have no gaps in memory.
  Written written_ragged(std::string_view name, const Target& target, const std::vector<TokenRange>& ranges) {
    const Tensor span = target.tensor.slice(0, ranges.front().begin, ranges.back().end);
    const bool in_place = takes_dense(target) && ranges.size() == 1 && span.is_contiguous();
    if (in_place) return {span, {}};
    Written result;
    result.own = allocate(name, DType::bfloat16, span.extents);
    result.tensor = result.own.tensor;
    return result;
  }

  // The tokens of `ranges`, counted from the first of them in `from`, to where they belong.
  void place_ranges(const Written& from, const std::vector<TokenRange>& ranges, const Target& to) {
    if (from.own.is_empty()) return;
    const int64_t first = ranges.front().begin;
    if (!to.overwrites) {  // zeros between the ranges add nothing
      place_gradient(from.tensor, to.tensor.slice(0, first, ranges.back().end), false, stream_);
      return;
    }
    for (const TokenRange& range : ranges) {
      place_gradient(from.tensor.slice(0, range.begin - first, range.end - first),
                     to.tensor.slice(0, range.begin, range.end), true, stream_);
    }
  }

  // Tasks that share neither queries nor keys, all of them short: gradients are written once. Only where each of the
  // kernel's blocks has at least the work of so many tasks as large as the largest one.
  bool run_documents(PreparedCall& prepared, int64_t fewest_tasks_of_a_block) {
    if (prepared.longest_document == 0) return false;
    AttentionBackward arguments = arguments_;
    // The kernel makes gradients of one dtype.
    const bool is_mixed = is_bfloat16(dquery_.tensor) != is_bfloat16(dkey_.tensor) ||
                          is_bfloat16(dquery_.tensor) != is_bfloat16(dvalue_.tensor);
    const auto made = [&](Tensor& gradient, const Target& target) {
      gradient = target.tensor;
      return is_mixed ? in_float32(gradient) : OwnTensor();
    };
    const OwnTensor dquery = made(arguments.dquery, dquery_);
    const OwnTensor dkey = made(arguments.dkey, dkey_);
    const OwnTensor dvalue = made(arguments.dvalue, dvalue_);
    arguments.overwrites_dquery = dquery_.overwrites;
    arguments.overwrites_dkey_dvalue = dkey_.overwrites;
    if (!takes_documents(arguments)) return false;
    const int64_t blocks = document_blocks(arguments, prepared.task_count);
    const int64_t work = prepared.pairs * arguments.key.extent(1);
    if (work < fewest_tasks_of_a_block * blocks * prepared.largest_task_pairs) return false;
    const DocumentTasks documents = engine_.lists().documents(prepared, stream_);
    const OwnTensor sums =
        allocate("attention.row_sums", DType::float32, {arguments.query.extent(0), arguments.query.extent(1)});
    const auto queue = engine_.allocate_bytes("attention.document_queue", static_cast<int64_t>(sizeof(int)), stream_);
    const auto workspace = engine_.allocate_bytes(
        "attention.document_dquery", document_workspace_bytes(arguments, documents.longest, blocks), stream_);
    document_attention_backward(arguments, documents, sums.tensor.as<float>(), static_cast<int*>(queue.get()),
                                workspace.get(), blocks, stream_);
    round(dquery, dquery_, prepared.queries);
    round(dkey, dkey_, prepared.keys);
    round(dvalue, dvalue_, prepared.keys);
    return true;
  }

  // Own kernels add in float32.
  void run_tasks(PreparedCall& prepared) {
    if (run_documents(prepared, 0)) return;
    AttentionBackward arguments = arguments_;
    const OwnTensor dquery = added_to(arguments.dquery, dquery_, prepared.queries);
    const OwnTensor dkey = added_to(arguments.dkey, dkey_, prepared.keys);
    const OwnTensor dvalue = added_to(arguments.dvalue, dvalue_, prepared.keys);
    const OwnTensor sums =
        allocate("attention.row_sums", DType::float32, {arguments_.query.extent(0), arguments_.query.extent(1)});
    output_gradient_sums(arguments_.output, arguments_.doutput, sums.tensor.as<float>(), stream_);
    const AttentionLists::Tiles tiles = engine_.lists().tiles(prepared, stream_);
    task_attention_backward(arguments, tiles.by_query, tiles.by_key, sums.tensor.as<float>(), stream_);
    round(dquery, dquery_, prepared.queries);
    round(dkey, dkey_, prepared.keys);
    round(dvalue, dvalue_, prepared.keys);
  }

  // Makes `gradient` what own kernels add to: the target, or float32 memory in its place, with zeros where it is to be
  // overwritten.
  OwnTensor added_to(Tensor& gradient, const Target& target, const std::vector<TokenRange>& ranges) {
    gradient = target.tensor;
    const OwnTensor own = in_float32(gradient);
    if (target.overwrites) {
      for (const TokenRange& range : ranges) clear_gradient(gradient.slice(0, range.begin, range.end), stream_);
    }
    return own;
  }
  // Puts float32 memory in the place of a bfloat16 gradient, for round().
  OwnTensor in_float32(Tensor& gradient) {
    if (!is_bfloat16(gradient)) return {};
    OwnTensor own = allocate("attention.float32_gradient", DType::float32, gradient.extents);
    gradient = own.tensor;
    return own;
  }
  void round(const OwnTensor& from, const Target& to, const std::vector<TokenRange>& ranges) {
    if (from.is_empty()) return;
    for (const TokenRange& range : ranges) {
      round_gradient(from.tensor.slice(0, range.begin, range.end), to.tensor.slice(0, range.begin, range.end), stream_);
    }
  }

  void execute(const CudnnAttentionShape& shape, CudnnBackwardData& data, int64_t window) {
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
  Target dquery_, dkey_, dvalue_;
  cudaStream_t stream_;
};

// Which tokens the calls of a list cover on one side.
struct Coverage {
  bool is_direct = true;            // every token belongs to one call, in few enough ranges to write them one by one
  std::vector<TokenRange> covered;  // all of them

  static Coverage of(const std::vector<PreparedCall>& calls, std::vector<TokenRange> PreparedCall::*side) {
    constexpr size_t kMostRanges = 16;
    Coverage coverage;
    size_t ranges = 0;
    for (const PreparedCall& call : calls) {
      coverage.is_direct = coverage.is_direct && are_disjoint(coverage.covered, call.*side);
      coverage.covered = joined_ranges(coverage.covered, call.*side);
      ranges += (call.*side).size();
    }
    coverage.is_direct = coverage.is_direct && ranges <= kMostRanges;
    return coverage;
  }
  // What is left of [0, tokens), some of it possibly empty.
  std::vector<TokenRange> gaps(int64_t tokens) const {
    std::vector<TokenRange> result;
    int64_t begin = 0;
    for (const TokenRange& range : covered) {
      result.push_back({begin, range.begin});
      begin = range.end;
    }
    result.push_back({begin, tokens});
    return result;
  }
};

// Makes the target of a gradient for the time of a list, and what is left to do afterwards.
class TargetScope {
 public:
  TargetScope(AttentionEngine& engine, const Tensor& gradient, bool overwrites, const Coverage& coverage,
              cudaStream_t stream)
      : gradient_(gradient), target_{gradient, overwrites && coverage.is_direct}, stream_(stream) {
    if (overwrites && !target_.overwrites && is_bfloat16(gradient)) {
      sum_ = engine.allocate("attention.float32_gradient", DType::float32, gradient.extents, stream);
      target_.tensor = sum_.tensor;
    }
    if (target_.overwrites) {
      for (const TokenRange& gap : coverage.gaps(gradient.extent(0))) {
        clear_gradient(gradient.slice(0, gap.begin, gap.end), stream);
      }
    } else if (overwrites) {
      clear_gradient(target_.tensor, stream);
    }
  }
  const Target& target() const { return target_; }
  void finish() const {
    if (!sum_.is_empty()) round_gradient(sum_.tensor, gradient_, stream_);
  }

 private:
  Tensor gradient_;
  Target target_;
  OwnTensor sum_;
  cudaStream_t stream_;
};

}  // namespace

void attention_backward(AttentionEngine& engine, const AttentionBackward& arguments, cudaStream_t stream) {
  if (arguments.tasks.empty() || arguments.query.element_count() == 0 || arguments.key.element_count() == 0) {
    if (arguments.overwrites_dquery) clear_gradient(arguments.dquery, stream);
    if (arguments.overwrites_dkey_dvalue) {
      clear_gradient(arguments.dkey, stream);
      clear_gradient(arguments.dvalue, stream);
    }
    return;
  }
  const bool fused = !engine.options().deterministic && AttentionEngine::is_aligned(arguments.output) &&
                     AttentionEngine::is_aligned(arguments.doutput);
  const AttentionCallRules rules = engine.rules(arguments.query, arguments.key, arguments.value, fused);
  std::vector<PreparedCall>& list = engine.lists().find(arguments.tasks, rules);
  const Coverage queries = Coverage::of(list, &PreparedCall::queries);
  const Coverage keys = Coverage::of(list, &PreparedCall::keys);
  const TargetScope dquery(engine, arguments.dquery, arguments.overwrites_dquery, queries, stream);
  const TargetScope dkey(engine, arguments.dkey, arguments.overwrites_dkey_dvalue, keys, stream);
  const TargetScope dvalue(engine, arguments.dvalue, arguments.overwrites_dkey_dvalue, keys, stream);
  BackwardCalls calls(engine, arguments, dquery.target(), dkey.target(), dvalue.target(), stream);
  for (PreparedCall& prepared : list) calls.run(prepared);
  for (const TargetScope* scope : {&dquery, &dkey, &dvalue}) scope->finish();
}

}  // namespace ithaca::cuda
