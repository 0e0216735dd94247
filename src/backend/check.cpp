#include "backend/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ithaca {
namespace {

// Checks the arguments of one operation, whose name opens every error text.
class Checker {
 public:
  explicit Checker(std::string_view operation) : operation_(operation) {}

  [[noreturn]] void fail(const std::string& text) const {
    throw ContractError(fmt::format("{}: {}", operation_, text));
  }

  void that(bool condition, std::string_view text) const {
    if (!condition) fail(std::string(text));
  }

  // A tensor of exactly these extents and one of these dtypes.
  void tensor(std::string_view name, const Tensor& tensor, std::initializer_list<DType> dtypes,
              const Extents& extents) const {
    if (tensor.is_absent()) fail(fmt::format("{} is missing", name));
    if (!(tensor.extents == extents)) {
      fail(fmt::format("{} is {}, expected the extents {}", name, tensor.describe(), extents.to_string()));
    }
    dtype(name, tensor, dtypes);
    unit_stride(name, tensor);
  }

  void optional(std::string_view name, const Tensor& value, std::initializer_list<DType> dtypes,
                const Extents& extents) const {
    if (!value.is_absent()) tensor(name, value, dtypes, extents);
  }

  void rank(std::string_view name, const Tensor& tensor, int rank) const {
    if (tensor.rank() != rank) fail(fmt::format("{} is {}, expected {} dimensions", name, tensor.describe(), rank));
  }

  void dtype(std::string_view name, const Tensor& tensor, std::initializer_list<DType> dtypes) const {
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end()) return;
    std::string wanted;
    for (const DType candidate : dtypes) {
      if (!wanted.empty()) wanted += " or ";
      wanted += dtype_name(candidate);
    }
    fail(fmt::format("{} is {}, expected {}", name, tensor.describe(), wanted));
  }

  void unit_stride(std::string_view name, const Tensor& tensor) const {
    const int last = tensor.rank() - 1;
    if (last >= 0 && tensor.extent(last) > 1 && tensor.stride(last) != 1) {
      fail(fmt::format("{} is {}: its last dimension must have stride 1", name, tensor.describe()));
    }
  }

  void contiguous(std::string_view name, const Tensor& tensor) const {
    if (!tensor.is_contiguous()) fail(fmt::format("{} is {}: it must be contiguous", name, tensor.describe()));
  }

  void one_element(std::string_view name, const Tensor& tensor, DType wanted) const {
    if (tensor.is_absent()) fail(fmt::format("{} is missing", name));
    if (tensor.element_count() != 1) fail(fmt::format("{} is {}, expected one element", name, tensor.describe()));
    dtype(name, tensor, {wanted});
  }

  void finite(std::string_view name, double value) const {
    if (!std::isfinite(value)) fail(fmt::format("{} is {}, expected a finite number", name, value));
  }

 private:
  std::string_view operation_;
};

void check_tasks(const Checker& is, std::span<const AttentionTask> tasks, int64_t query_tokens, int64_t key_tokens) {
  for (const AttentionTask& task : tasks) {
    if (0 <= task.q_begin && task.q_begin <= task.q_end && task.q_end <= query_tokens && 0 <= task.k_begin &&
        task.k_begin <= task.k_end && task.k_end <= key_tokens) {
      continue;
    }
    is.fail(fmt::format("task queries [{}, {}) x keys [{}, {}) is outside of {} queries x {} keys", task.q_begin,
                        task.q_end, task.k_begin, task.k_end, query_tokens, key_tokens));
  }
}

void check_query_key_value(const Checker& is, const Tensor& query, const Tensor& key, const Tensor& value,
                           DType compute) {
  is.rank("query", query, 3);
  is.rank("key", key, 3);
  is.rank("value", value, 3);
  is.tensor("query", query, {compute}, query.extents);
  is.tensor("key", key, {compute}, {key.extent(0), key.extent(1), query.extent(2)});
  is.tensor("value", value, {compute}, {key.extent(0), key.extent(1), value.extent(2)});
  if (key.extent(1) == 0 ? query.extent(1) != 0 : query.extent(1) % key.extent(1) != 0) {
    is.fail(fmt::format("{} query heads are not a multiple of {} key heads", query.extent(1), key.extent(1)));
  }
}

}  // namespace

void check(const Gemm& arguments, DType compute) {
  const Checker is("gemm");
  const auto& [a, b, c, transpose_a, transpose_b, alpha, beta, bias] = arguments;
  is.rank("a", a, 2);
  is.rank("b", b, 2);
  is.rank("c", c, 2);
  const int64_t m = c.extent(0);
  const int64_t n = c.extent(1);
  const int64_t k = a.extent(transpose_a ? 0 : 1);
  is.tensor("a", a, {compute, DType::float32}, transpose_a ? Extents{k, m} : Extents{m, k});
  is.tensor("b", b, {a.dtype}, transpose_b ? Extents{n, k} : Extents{k, n});
  is.tensor("c", c, {a.dtype, DType::float32}, {m, n});
  is.optional("bias", bias, {compute, DType::float32}, {n});
  for (const auto& [name, tensor] : {std::pair("a", &a), std::pair("b", &b), std::pair("c", &c)}) {
    if (tensor->extent(0) > 1 && tensor->stride(0) < tensor->extent(1)) {
      is.fail(fmt::format("{} is {}: its rows overlap", name, tensor->describe()));
    }
  }
}

void check(const AttentionShape& shape) {
  const Checker is("begin_attention");
  is.that(shape.query_tokens >= 0 && shape.query_heads >= 0 && shape.value_size >= 0, "extents must not be negative");
}

void check(const AttentionForward& arguments, const AttentionShape& shape, DType compute) {
  const Checker is("attention_forward");
  check_query_key_value(is, arguments.query, arguments.key, arguments.value, compute);
  if (arguments.query.extent(0) != shape.query_tokens || arguments.query.extent(1) != shape.query_heads ||
      arguments.value.extent(2) != shape.value_size) {
    is.fail(fmt::format("query {} and value {} do not fit the state of {} queries, {} heads, value size {}",
                        arguments.query.describe(), arguments.value.describe(), shape.query_tokens, shape.query_heads,
                        shape.value_size));
  }
  is.finite("scale", arguments.scale);
  check_tasks(is, arguments.tasks, arguments.query.extent(0), arguments.key.extent(0));
}

void check(const AttentionBackward& arguments, DType compute) {
  const Checker is("attention_backward");
  const auto& [query, key, value, output, log_sum_exp, doutput, tasks, scale, dquery, dkey, dvalue, overwrites_dquery,
               overwrites_dkey_dvalue] = arguments;
  check_query_key_value(is, query, key, value, compute);
  const Extents results = {query.extent(0), query.extent(1), value.extent(2)};
  is.tensor("output", output, {compute}, results);
  is.tensor("log_sum_exp", log_sum_exp, {DType::float32}, {query.extent(0), query.extent(1)});
  is.tensor("doutput", doutput, {compute}, results);
  // A gradient that is added to is float32.
  const DType query_gradient = overwrites_dquery ? compute : DType::float32;
  const DType key_gradient = overwrites_dkey_dvalue ? compute : DType::float32;
  is.tensor("dquery", dquery, {DType::float32, query_gradient}, query.extents);
  is.tensor("dkey", dkey, {DType::float32, key_gradient}, key.extents);
  is.tensor("dvalue", dvalue, {DType::float32, key_gradient}, value.extents);
  is.finite("scale", scale);
  check_tasks(is, tasks, query.extent(0), key.extent(0));
}

void check_attention_results(const AttentionShape& shape, const Tensor& output, const Tensor& log_sum_exp,
                             DType compute) {
  const Checker is("finish_attention");
  is.tensor("output", output, {compute}, {shape.query_tokens, shape.query_heads, shape.value_size});
  is.tensor("log_sum_exp", log_sum_exp, {DType::float32}, {shape.query_tokens, shape.query_heads});
}

void check(const AttentionDestination& destination, const AttentionShape& shape, DType compute) {
  if (destination.output.is_absent() && destination.log_sum_exp.is_absent()) return;
  const Checker is("begin_attention");
  is.tensor("output", destination.output, {compute}, {shape.query_tokens, shape.query_heads, shape.value_size});
  is.tensor("log_sum_exp", destination.log_sum_exp, {DType::float32}, {shape.query_tokens, shape.query_heads});
}

void check_attention_destination(const AttentionDestination& destination, const Tensor& output,
                                 const Tensor& log_sum_exp) {
  if (destination.output.is_absent()) return;
  const auto is_same = [](const Tensor& left, const Tensor& right) {
    return left.data == right.data && left.extents == right.extents && left.strides == right.strides;
  };
  if (is_same(destination.output, output) && is_same(destination.log_sum_exp, log_sum_exp)) return;
  throw ContractError("finish_attention: output and log_sum_exp are not the destination given to begin_attention");
}

void check(const RmsNormForward& arguments, DType compute) {
  const Checker is("rms_norm_forward");
  const auto& [input, residual, sum, weight, output, inverse_rms, epsilon] = arguments;
  is.rank("input", input, 2);
  is.tensor("input", input, {compute}, input.extents);
  is.optional("residual", residual, {compute}, input.extents);
  is.that(residual.is_absent() || !sum.is_absent(), "residual needs sum, where input + residual is kept");
  is.that(!residual.is_absent() || sum.is_absent(), "sum is written only with residual");
  is.optional("sum", sum, {compute}, input.extents);
  is.tensor("weight", weight, {compute, DType::float32}, {input.extent(1)});
  is.tensor("output", output, {compute}, input.extents);
  is.optional("inverse_rms", inverse_rms, {DType::float32}, {input.extent(0)});
  is.that(epsilon >= 0.0f, "epsilon must be 0 or more");
}

void check(const RmsNormBackward& arguments, DType compute) {
  const Checker is("rms_norm_backward");
  const auto& [doutput, input, weight, inverse_rms, dresidual, dinput, dweight] = arguments;
  is.rank("input", input, 2);
  is.tensor("doutput", doutput, {compute}, input.extents);
  is.tensor("input", input, {compute}, input.extents);
  is.tensor("weight", weight, {compute, DType::float32}, {input.extent(1)});
  is.tensor("inverse_rms", inverse_rms, {DType::float32}, {input.extent(0)});
  is.optional("dresidual", dresidual, {compute}, input.extents);
  is.tensor("dinput", dinput, {compute}, input.extents);
  is.optional("dweight", dweight, {DType::float32}, {input.extent(1)});
}

void check(const RopeTable& arguments) {
  const Checker is("rope_table");
  is.rank("position_ids", arguments.position_ids, 1);
  is.rank("inverse_frequencies", arguments.inverse_frequencies, 1);
  const int64_t tokens = arguments.position_ids.extent(0);
  const int64_t half = arguments.inverse_frequencies.extent(0);
  is.tensor("position_ids", arguments.position_ids, {DType::int64}, {tokens});
  is.tensor("inverse_frequencies", arguments.inverse_frequencies, {DType::float32}, {half});
  is.tensor("cosine", arguments.cosine, {DType::float32}, {tokens, half});
  is.tensor("sine", arguments.sine, {DType::float32}, {tokens, half});
  is.finite("attention_factor", arguments.attention_factor);
}

namespace {

// The table must have half of the head size; nothing to check when there is none.
void check_rotation(const Checker& is, const Tensor& heads, const Tensor& cosine, const Tensor& sine) {
  is.that(cosine.is_absent() == sine.is_absent(), "cosine and sine are given together or not at all");
  if (cosine.is_absent()) return;
  if (heads.extent(2) % 2 != 0) is.fail(fmt::format("head size {} is odd: it cannot be rotated", heads.extent(2)));
  const Extents table = {heads.extent(0), heads.extent(2) / 2};
  is.tensor("cosine", cosine, {DType::float32}, table);
  is.tensor("sine", sine, {DType::float32}, table);
}

}  // namespace

void check(const HeadRopeForward& arguments, DType compute) {
  const Checker is("head_rope_forward");
  const auto& [input, norm_weight, epsilon, inverse_rms, cosine, sine, output] = arguments;
  is.rank("input", input, 3);
  is.tensor("input", input, {compute}, input.extents);
  is.optional("norm_weight", norm_weight, {compute, DType::float32}, {input.extent(2)});
  is.optional("inverse_rms", inverse_rms, {DType::float32}, {input.extent(0), input.extent(1)});
  is.tensor("output", output, {compute}, input.extents);
  is.that(epsilon >= 0.0f, "epsilon must be 0 or more");
  check_rotation(is, input, cosine, sine);
}

void check(const HeadRopeBackward& arguments, DType compute) {
  const Checker is("head_rope_backward");
  const auto& [doutput, input, norm_weight, inverse_rms, cosine, sine, dinput, dnorm_weight] = arguments;
  is.rank("doutput", doutput, 3);
  is.tensor("doutput", doutput, {compute, DType::float32}, doutput.extents);
  is.tensor("dinput", dinput, {compute}, doutput.extents);
  is.optional("norm_weight", norm_weight, {compute, DType::float32}, {doutput.extent(2)});
  if (!norm_weight.is_absent()) {
    is.tensor("input", input, {compute}, doutput.extents);
    is.tensor("inverse_rms", inverse_rms, {DType::float32}, {doutput.extent(0), doutput.extent(1)});
  }
  is.that(dnorm_weight.is_absent() || !norm_weight.is_absent(), "dnorm_weight needs norm_weight");
  is.optional("dnorm_weight", dnorm_weight, {DType::float32}, {doutput.extent(2)});
  check_rotation(is, doutput, cosine, sine);
}

void check(const SwigluForward& arguments, DType compute) {
  const Checker is("swiglu_forward");
  is.rank("gate", arguments.gate, 2);
  is.tensor("gate", arguments.gate, {compute}, arguments.gate.extents);
  is.tensor("up", arguments.up, {compute}, arguments.gate.extents);
  is.tensor("output", arguments.output, {compute}, arguments.gate.extents);
}

void check(const SwigluBackward& arguments, DType compute) {
  const Checker is("swiglu_backward");
  const Extents& extents = arguments.gate.extents;
  is.rank("gate", arguments.gate, 2);
  is.tensor("doutput", arguments.doutput, {compute}, extents);
  is.tensor("gate", arguments.gate, {compute}, extents);
  is.tensor("up", arguments.up, {compute}, extents);
  is.tensor("dgate", arguments.dgate, {compute}, extents);
  is.tensor("dup", arguments.dup, {compute}, extents);
}

void check(const EmbeddingForward& arguments, DType compute) {
  const Checker is("embedding_forward");
  is.rank("table", arguments.table, 2);
  is.rank("token_ids", arguments.token_ids, 1);
  is.tensor("table", arguments.table, {compute, DType::float32}, arguments.table.extents);
  is.tensor("token_ids", arguments.token_ids, {DType::int64}, arguments.token_ids.extents);
  is.tensor("output", arguments.output, {compute}, {arguments.token_ids.extent(0), arguments.table.extent(1)});
}

void check(const EmbeddingBackward& arguments, DType compute) {
  const Checker is("embedding_backward");
  is.rank("dtable", arguments.dtable, 2);
  is.rank("token_ids", arguments.token_ids, 1);
  is.tensor("token_ids", arguments.token_ids, {DType::int64}, arguments.token_ids.extents);
  is.tensor("doutput", arguments.doutput, {compute}, {arguments.token_ids.extent(0), arguments.dtable.extent(1)});
  is.tensor("dtable", arguments.dtable, {DType::float32}, arguments.dtable.extents);
}

void check(const CrossEntropy& arguments, DType compute) {
  const Checker is("cross_entropy");
  is.rank("logits", arguments.logits, 2);
  const int64_t tokens = arguments.logits.extent(0);
  is.tensor("logits", arguments.logits, {compute, DType::float32}, arguments.logits.extents);
  is.tensor("labels", arguments.labels, {DType::int64}, {tokens});
  is.optional("weights", arguments.weights, {DType::float32}, {tokens});
  is.one_element("loss_sum", arguments.loss_sum, DType::float64);
  is.that(tokens == 0 || arguments.logits.extent(1) > 0, "the vocabulary is empty");
  is.finite("gradient_scale", arguments.gradient_scale);
}

namespace {

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16 || dtype == DType::float16;
}

}  // namespace

void check(const Copy& arguments) {
  const Checker is("copy");
  if (!(arguments.from.extents == arguments.to.extents)) {
    is.fail(fmt::format("from is {}, but to is {}", arguments.from.describe(), arguments.to.describe()));
  }
  if (is_floating(arguments.from.dtype) && !is_floating(arguments.to.dtype)) {
    is.fail(fmt::format("{} cannot be converted to {}", arguments.from.describe(), arguments.to.describe()));
  }
}

void check(const Add& arguments, DType compute) {
  const Checker is("add");
  if (!(arguments.from.extents == arguments.to.extents)) {
    is.fail(fmt::format("from is {}, but to is {}", arguments.from.describe(), arguments.to.describe()));
  }
  is.dtype("from", arguments.from, {compute, DType::float32, DType::float64});
  is.dtype("to", arguments.to, {compute, DType::float32, DType::float64});
}

void check(const Fill& arguments) {
  const Checker is("fill");
  is.that(!arguments.to.is_absent(), "to is missing");
  if (is_floating(arguments.to.dtype)) return;
  // Larger integers are not exact in a double anyway.
  const bool fits = std::abs(arguments.value) <= 0x1p53 && std::trunc(arguments.value) == arguments.value &&
                    (arguments.to.dtype != DType::int32 || std::abs(arguments.value) < 0x1p31) &&
                    (arguments.to.dtype != DType::uint8 || (arguments.value >= 0.0 && arguments.value < 256.0));
  if (!fits) is.fail(fmt::format("the value {} does not fit into {}", arguments.value, arguments.to.describe()));
}

void check(const ColumnSum& arguments, DType compute) {
  const Checker is("column_sum");
  is.rank("input", arguments.input, 2);
  is.tensor("input", arguments.input, {compute, DType::float32}, arguments.input.extents);
  is.tensor("sum", arguments.sum, {DType::float32}, {arguments.input.extent(1)});
}

void check(const SquareSum& arguments) {
  const Checker is("square_sum");
  is.dtype("input", arguments.input, {DType::float32});
  is.contiguous("input", arguments.input);
  is.one_element("sum", arguments.sum, DType::float64);
}

void check(const StepNumbers& arguments) {
  const Checker is("step_numbers");
  is.one_element("square_sum", arguments.square_sum, DType::float64);
  is.one_element("loss_sum", arguments.loss_sum, DType::float64);
  is.one_element("gradient_norm", arguments.gradient_norm, DType::float64);
  is.one_element("clip_factor", arguments.clip_factor, DType::float32);
  is.one_element("skipped", arguments.skipped, DType::int64);
  is.one_element("applied_steps", arguments.applied_steps, DType::int64);
  is.that(arguments.max_norm >= 0.0, "max_norm must be 0 or more");
}

void check(const AdamW& arguments, DType compute) {
  const Checker is("adamw");
  is.rank("weights", arguments.weights, 1);
  const Extents& extents = arguments.weights.extents;
  is.tensor("weights", arguments.weights, {DType::float32}, extents);
  is.tensor("gradients", arguments.gradients, {DType::float32}, extents);
  is.tensor("first_moment", arguments.first_moment, {DType::float32}, extents);
  is.tensor("second_moment", arguments.second_moment, {DType::float32}, extents);
  is.optional("compute_weights", arguments.compute_weights, {compute}, extents);
  is.one_element("clip_factor", arguments.clip_factor, DType::float32);
  is.one_element("skipped", arguments.skipped, DType::int64);
  is.one_element("applied_steps", arguments.applied_steps, DType::int64);
  is.finite("learning_rate", arguments.learning_rate);
  is.that(arguments.beta1 >= 0.0 && arguments.beta1 < 1.0, "beta1 must be in [0, 1)");
  is.that(arguments.beta2 >= 0.0 && arguments.beta2 < 1.0, "beta2 must be in [0, 1)");
}

}  // namespace ithaca
