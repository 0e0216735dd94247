#include "backend/cuda/attention.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/check.h"
#include "backend/cuda/attention_engine.h"

namespace ithaca::cuda {
namespace {

// Output and log-sum-exp over some of the keys, for the queries that `covered` holds (for others the log-sum-exp is
// -inf, or nobody has looked yet).
struct Partial {
  Tensor output;       // [query tokens, query heads, value size]
  Tensor log_sum_exp;  // [query tokens, query heads] float32
  std::shared_ptr<void> output_memory, log_sum_exp_memory;
  std::vector<TokenRange> covered;
  bool is_cleared = false;  // the log-sum-exp was -inf everywhere before the first call
};

// The running softmax. Calls write into `open` while their queries are disjoint; then it is closed, and closed partials
// are merged in float32.
class State final : public AttentionState {
 public:
  State(const AttentionShape& shape, AttentionDestination destination)
      : shape_(shape), destination_(std::move(destination)) {}

  AttentionShape shape_;
  AttentionDestination destination_;
  std::optional<Partial> open;
  std::optional<Partial> closed;       // the first one, until there are two
  std::optional<Partial> accumulated;  // float32
};

bool same_view(const Tensor& left, const Tensor& right) {
  return left.data == right.data && left.extents == right.extents && left.strides == right.strides;
}

}  // namespace

class CudaAttention::Implementation {
 public:
  Implementation(WorkspaceProvider workspace, const Options& options) : engine_(std::move(workspace), options) {}

  AttentionEngine& engine() { return engine_; }

  void forward(cudaStream_t stream, const AttentionForward& arguments) {
    State& state = state_of(arguments.state);
    check(arguments, state.shape_, arguments.query.dtype);
    if (arguments.tasks.empty() || state.shape_.query_tokens == 0 || state.shape_.query_heads == 0) return;
    const AttentionCallRules rules = engine_.rules(arguments.query, arguments.key, arguments.value, true);
    for (PreparedCall& prepared : engine_.lists().find(arguments.tasks, rules)) {
      Partial& partial = partial_for(state, prepared, arguments, stream);
      run(prepared, arguments, partial, stream);
      partial.covered = joined_ranges(partial.covered, prepared.queries);
    }
  }

  void finish(cudaStream_t stream, AttentionState& base, const Tensor& output, const Tensor& log_sum_exp) {
    State& state = state_of(&base);
    check_attention_results(state.shape_, output, log_sum_exp, output.dtype);
    check_attention_destination(state.destination_, output, log_sum_exp);
    if (state.shape_.query_tokens == 0 || state.shape_.query_heads == 0) return;
    if (!state.open) {
      clear_log_sum_exp(log_sum_exp, stream);
      finish_partial(output, log_sum_exp, output, log_sum_exp, stream);
      return;
    }
    if (state.closed || state.accumulated) {
      merge_open(state, output, log_sum_exp, stream);
      state.closed.reset();
      state.accumulated.reset();
      state.open.reset();
      return;
    }
    const Partial& only = *state.open;
    const bool is_whole = only.covered.size() == 1 && only.covered[0] == TokenRange{0, state.shape_.query_tokens};
    if (!is_whole || !same_view(only.output, output)) {
      finish_partial(only.output, only.log_sum_exp, output, log_sum_exp, stream);
    }
    state.open.reset();
  }

 private:
  static State& state_of(AttentionState* base) {
    auto* state = dynamic_cast<State*>(base);
    require(state != nullptr, "attention: the state is missing, or of another backend");
    return *state;
  }

  // The partial that a call may write into.
  Partial& partial_for(State& state, const PreparedCall& prepared, const AttentionForward& arguments,
                       cudaStream_t stream) {
    if (state.open && are_disjoint(state.open->covered, prepared.queries)) {
      const bool is_complete = !state.open->is_cleared;
      require(!is_complete, "attention: a complete partial result has room for further queries");
      return *state.open;
    }
    const bool is_first = !state.open;
    if (state.open) close(state, stream);
    Partial partial;
    const AttentionShape& shape = state.shape_;
    const DType dtype = arguments.query.dtype;
    const AttentionDestination& destination = state.destination_;
    const bool fits = !destination.output.is_absent() && destination.output.dtype == dtype &&
                      (dtype != DType::bfloat16 || AttentionEngine::is_aligned(destination.output));
    if (is_first && fits) {
      partial.output = destination.output;
      partial.log_sum_exp = destination.log_sum_exp;
    } else {
      OwnTensor output = engine_.allocate("attention.partial_output", dtype,
                                          {shape.query_tokens, shape.query_heads, shape.value_size}, stream);
      OwnTensor log_sum_exp = engine_.allocate("attention.partial_log_sum_exp", DType::float32,
                                               {shape.query_tokens, shape.query_heads}, stream);
      partial.output = output.tensor;
      partial.log_sum_exp = log_sum_exp.tensor;
      partial.output_memory = std::move(output.memory);
      partial.log_sum_exp_memory = std::move(log_sum_exp.memory);
    }
    const bool is_whole = prepared.queries.size() == 1 && prepared.queries[0] == TokenRange{0, shape.query_tokens};
    if (!is_whole) {
      clear_log_sum_exp(partial.log_sum_exp, stream);
      partial.is_cleared = true;
    }
    state.open = std::move(partial);
    return *state.open;
  }

  // Merges the open partial into what is there.
  void close(State& state, cudaStream_t stream) {
    if (!state.closed && !state.accumulated) {
      state.closed = std::move(state.open);
    } else {
      if (!state.accumulated) {
        const AttentionShape& shape = state.shape_;
        OwnTensor output = engine_.allocate("attention.accumulator", DType::float32,
                                            {shape.query_tokens, shape.query_heads, shape.value_size}, stream);
        OwnTensor log_sum_exp = engine_.allocate("attention.accumulator_log_sum_exp", DType::float32,
                                                 {shape.query_tokens, shape.query_heads}, stream);
        state.accumulated.emplace();
        state.accumulated->output = output.tensor;
        state.accumulated->log_sum_exp = log_sum_exp.tensor;
        state.accumulated->output_memory = std::move(output.memory);
        state.accumulated->log_sum_exp_memory = std::move(log_sum_exp.memory);
      }
      merge_open(state, state.accumulated->output, state.accumulated->log_sum_exp, stream);
      state.closed.reset();
    }
    state.open.reset();
  }

  // output, log_sum_exp = what was closed or accumulated, merged with the open partial.
  static void merge_open(const State& state, const Tensor& output, const Tensor& log_sum_exp, cudaStream_t stream) {
    const Partial& first = state.closed ? *state.closed : *state.accumulated;
    merge_partials(first.output, first.log_sum_exp, state.open->output, state.open->log_sum_exp, output, log_sum_exp,
                   stream);
  }

  void run(PreparedCall& prepared, const AttentionForward& arguments, const Partial& partial, cudaStream_t stream) {
    if (prepared.call.form == AttentionForm::dense && run_dense(prepared, arguments, partial, stream)) return;
    if (prepared.call.form != AttentionForm::tasks && run_ragged(prepared, arguments, partial, stream)) return;
    const AttentionLists::Tiles tiles = engine_.lists().tiles(prepared, stream);
    task_attention_forward(arguments, tiles.by_query, partial.output, partial.log_sum_exp, stream);
  }

  bool run_dense(const PreparedCall& prepared, const AttentionForward& arguments, const Partial& partial,
                 cudaStream_t stream) {
    const AttentionCall& call = prepared.call;
    const int64_t distance = query_distance(call);
    CudnnAttentionShape shape = AttentionEngine::dense_shape(prepared, arguments.query, arguments.key);
    shape.query = cudnn_strides(arguments.query, distance);
    shape.key = cudnn_strides(arguments.key, key_distance(call));
    shape.value = cudnn_strides(arguments.value, key_distance(call));
    shape.output = cudnn_strides(partial.output, distance);
    if (!engine_.admits_dense(shape)) return false;
    const AttentionEntry& first = call.entries.front();
    const OwnTensor log_sum_exp = engine_.allocate("attention.log_sum_exp_by_head", DType::float32,
                                                   {shape.batch, shape.query_heads, shape.query_length}, stream);
    CudnnForwardData data;
    data.query = arguments.query.slice(0, first.q_begin, first.q_end()).data;
    data.key = arguments.key.slice(0, first.k_begin, first.k_end()).data;
    data.value = arguments.value.slice(0, first.k_begin, first.k_end()).data;
    data.output = partial.output.slice(0, first.q_begin, first.q_end()).data;
    data.log_sum_exp = log_sum_exp.tensor.as<float>();
    data.scale = arguments.scale;
    data.window = call.window;
    const auto workspace = plan_workspace(shape, stream);
    engine_.cudnn().forward(stream, shape, data, workspace.get());
    scatter_rows(data.log_sum_exp, first.q_begin, distance, shape.batch, shape.query_length, partial.log_sum_exp,
                 stream);
    return true;
  }

  bool run_ragged(PreparedCall& prepared, const AttentionForward& arguments, const Partial& partial,
                  cudaStream_t stream) {
    CudnnAttentionShape shape = AttentionEngine::ragged_shape(prepared, arguments.query, arguments.key);
    shape.query = cudnn_strides(arguments.query, shape.query_length);
    shape.key = cudnn_strides(arguments.key, shape.key_length);
    shape.value = cudnn_strides(arguments.value, shape.key_length);
    shape.output = cudnn_strides(partial.output, shape.query_length);
    if (!engine_.cudnn().prepare(shape)) return false;
    // cuDNN writes [tokens, heads] without gaps, aligned.
    const int64_t tokens = arguments.query.extent(0);
    const Tensor& target = partial.log_sum_exp;
    const bool in_place = target.is_contiguous() && std::bit_cast<uintptr_t>(target.data) % 16 == 0;
    OwnTensor own;
    if (!in_place) {
      own = engine_.allocate("attention.log_sum_exp", DType::float32, {tokens, shape.query_heads}, stream);
      copy_rows(target, own.tensor, stream);
    }
    CudnnForwardData data;
    data.query = arguments.query.data;
    data.key = arguments.key.data;
    data.value = arguments.value.data;
    data.output = partial.output.data;
    data.log_sum_exp = (in_place ? target : own.tensor).as<float>();
    data.scale = arguments.scale;
    data.window = prepared.call.window;
    const RaggedTokenStrides strides = {arguments.query.stride(0), arguments.key.stride(0), arguments.value.stride(0),
                                        partial.output.stride(0), shape.query_heads};
    data.ragged = engine_.lists().ragged_arrays(prepared, strides, shape.batch, 0, 0, stream);
    const auto workspace = plan_workspace(shape, stream);
    engine_.cudnn().forward(stream, shape, data, workspace.get());
    if (!in_place) copy_rows(own.tensor, target, stream);
    return true;
  }

  std::shared_ptr<void> plan_workspace(const CudnnAttentionShape& shape, cudaStream_t stream) {
    return engine_.allocate_bytes("attention.cudnn_forward", engine_.cudnn().workspace_bytes(shape), stream);
  }

  AttentionEngine engine_;
};

CudaAttention::CudaAttention(WorkspaceProvider workspace, const Options& options)
    : implementation_(std::make_unique<Implementation>(std::move(workspace), options)) {}

CudaAttention::CudaAttention(WorkspaceProvider workspace) : CudaAttention(std::move(workspace), Options{}) {}

CudaAttention::~CudaAttention() = default;

std::unique_ptr<AttentionState> CudaAttention::begin(cudaStream_t /*stream*/, const AttentionShape& shape,
                                                     const AttentionDestination& destination) {
  check(shape);
  check(destination, shape, destination.output.dtype);
  return std::make_unique<State>(shape, destination);
}

void CudaAttention::forward(cudaStream_t stream, const AttentionForward& arguments) {
  implementation_->forward(stream, arguments);
}

void CudaAttention::finish(cudaStream_t stream, AttentionState& state, const Tensor& output,
                           const Tensor& log_sum_exp) {
  implementation_->finish(stream, state, output, log_sum_exp);
}

void CudaAttention::backward(cudaStream_t stream, const AttentionBackward& arguments) {
  check(arguments, arguments.query.dtype);
  attention_backward(implementation_->engine(), arguments, stream);
}

int64_t CudaAttention::plans_built() const {
  return implementation_->engine().plans_built();
}

int64_t CudaAttention::index_uploads() const {
  return implementation_->engine().lists().uploads();
}

}  // namespace ithaca::cuda
