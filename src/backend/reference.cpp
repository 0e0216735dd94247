#include "backend/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "base/error.h"

namespace ithaca::reference {
namespace {

double at(const Tensor& tensor, int64_t i) {
  return load(tensor, i * tensor.stride(0));
}
double at(const Tensor& tensor, int64_t i, int64_t j) {
  return load(tensor, i * tensor.stride(0) + j * tensor.stride(1));
}
double at(const Tensor& tensor, int64_t i, int64_t j, int64_t k) {
  return load(tensor, i * tensor.stride(0) + j * tensor.stride(1) + k * tensor.stride(2));
}
void set(const Tensor& tensor, int64_t i, double value) {
  store(tensor, i * tensor.stride(0), value);
}
void set(const Tensor& tensor, int64_t i, int64_t j, double value) {
  store(tensor, i * tensor.stride(0) + j * tensor.stride(1), value);
}
void set(const Tensor& tensor, int64_t i, int64_t j, int64_t k, double value) {
  store(tensor, i * tensor.stride(0) + j * tensor.stride(1) + k * tensor.stride(2), value);
}

double only(const Tensor& tensor) {
  return load(tensor, 0);
}
void set_only(const Tensor& tensor, double value) {
  store(tensor, 0, value);
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// Calls visit(offset in a, offset in b) for every element of two tensors of the same extents.
void for_each_pair(const Tensor& a, const Tensor& b, const std::function<void(int64_t, int64_t)>& visit) {
  const int64_t count = a.element_count();
  for (int64_t index = 0; index < count; ++index) {
    int64_t rest = index;
    int64_t a_offset = 0;
    int64_t b_offset = 0;
    for (int dimension = a.rank() - 1; dimension >= 0; --dimension) {
      const int64_t coordinate = rest % a.extent(dimension);
      rest /= a.extent(dimension);
      a_offset += coordinate * a.stride(dimension);
      b_offset += coordinate * b.stride(dimension);
    }
    visit(a_offset, b_offset);
  }
}

}  // namespace

double load(const Tensor& tensor, int64_t offset) {
  switch (tensor.dtype) {
    case DType::float32:
      return static_cast<double>(tensor.as<float>()[offset]);
    case DType::float64:
      return tensor.as<double>()[offset];
    case DType::bfloat16:
      return static_cast<double>(to_float(tensor.as<BFloat16>()[offset]));
    case DType::float16:
      return static_cast<double>(to_float(tensor.as<Float16>()[offset]));
    case DType::int32:
      return static_cast<double>(tensor.as<int32_t>()[offset]);
    case DType::int64:
      return static_cast<double>(tensor.as<int64_t>()[offset]);
    case DType::uint8:
      return static_cast<double>(tensor.as<uint8_t>()[offset]);
  }
  throw ContractError("reference: unknown dtype");
}

void store(const Tensor& tensor, int64_t offset, double value) {
  switch (tensor.dtype) {
    case DType::float32:
      tensor.as<float>()[offset] = static_cast<float>(value);
      return;
    case DType::float64:
      tensor.as<double>()[offset] = value;
      return;
    case DType::bfloat16:
      tensor.as<BFloat16>()[offset] = to_bfloat16(static_cast<float>(value));
      return;
    case DType::float16:
      tensor.as<Float16>()[offset] = to_float16(static_cast<float>(value));
      return;
    case DType::int32:
      tensor.as<int32_t>()[offset] = static_cast<int32_t>(value);
      return;
    case DType::int64:
      tensor.as<int64_t>()[offset] = static_cast<int64_t>(value);
      return;
    case DType::uint8:
      tensor.as<uint8_t>()[offset] = static_cast<uint8_t>(value);
      return;
  }
  throw ContractError("reference: unknown dtype");
}

void gemm(const Gemm& arguments) {
  const auto& [a, b, c, transpose_a, transpose_b, alpha, beta, bias] = arguments;
  const int64_t inner = a.extent(transpose_a ? 0 : 1);
  for (int64_t row = 0; row < c.extent(0); ++row) {
    for (int64_t column = 0; column < c.extent(1); ++column) {
      double sum = 0.0;
      for (int64_t k = 0; k < inner; ++k) {
        sum += (transpose_a ? at(a, k, row) : at(a, row, k)) * (transpose_b ? at(b, column, k) : at(b, k, column));
      }
      double result = static_cast<double>(alpha) * sum;
      if (beta != 0.0f) result += static_cast<double>(beta) * at(c, row, column);
      if (!bias.is_absent()) result += at(bias, column);
      set(c, row, column, result);
    }
  }
}

void rms_norm_forward(const RmsNormForward& arguments) {
  const auto& [input, residual, sum, weight, output, inverse_rms, epsilon] = arguments;
  const int64_t size = input.extent(1);
  std::vector<double> row(static_cast<size_t>(size));
  for (int64_t token = 0; token < input.extent(0); ++token) {
    double square_sum = 0.0;
    for (int64_t i = 0; i < size; ++i) {
      double value = at(input, token, i);
      if (!residual.is_absent()) value += at(residual, token, i);
      if (!sum.is_absent()) set(sum, token, i, value);
      row[static_cast<size_t>(i)] = value;
      square_sum += value * value;
    }
    const double inverse = 1.0 / std::sqrt(square_sum / static_cast<double>(size) + static_cast<double>(epsilon));
    for (int64_t i = 0; i < size; ++i) set(output, token, i, row[static_cast<size_t>(i)] * inverse * at(weight, i));
    if (!inverse_rms.is_absent()) set(inverse_rms, token, inverse);
  }
}

// With y = x r w, r = (mean(x^2) + epsilon)^(-1/2):  dx = r (w dy - x r^2 mean(x w dy)),  dw = sum of x r dy.
void rms_norm_backward(const RmsNormBackward& arguments) {
  const auto& [doutput, input, weight, inverse_rms, dresidual, dinput, dweight] = arguments;
  const int64_t size = input.extent(1);
  std::vector<double> weight_sum(static_cast<size_t>(size), 0.0);
  for (int64_t token = 0; token < input.extent(0); ++token) {
    const double inverse = at(inverse_rms, token);
    double projection = 0.0;
    for (int64_t i = 0; i < size; ++i) projection += at(input, token, i) * at(weight, i) * at(doutput, token, i);
    projection *= inverse * inverse / static_cast<double>(size);
    for (int64_t i = 0; i < size; ++i) {
      weight_sum[static_cast<size_t>(i)] += at(input, token, i) * inverse * at(doutput, token, i);
      double gradient = inverse * (at(weight, i) * at(doutput, token, i) - at(input, token, i) * projection);
      if (!dresidual.is_absent()) gradient += at(dresidual, token, i);
      set(dinput, token, i, gradient);
    }
  }
  if (dweight.is_absent()) return;
  for (int64_t i = 0; i < size; ++i) set(dweight, i, at(dweight, i) + weight_sum[static_cast<size_t>(i)]);
}

// The angle is rounded to float32, as Hugging Face models were trained with; everything after it is exact.
void rope_table(const RopeTable& arguments) {
  for (int64_t token = 0; token < arguments.position_ids.extent(0); ++token) {
    const auto position =
        static_cast<float>(arguments.position_ids.as<int64_t>()[token * arguments.position_ids.stride(0)]);
    for (int64_t i = 0; i < arguments.inverse_frequencies.extent(0); ++i) {
      const float angle = position * static_cast<float>(at(arguments.inverse_frequencies, i));
      const auto factor = static_cast<double>(arguments.attention_factor);
      set(arguments.cosine, token, i, std::cos(static_cast<double>(angle)) * factor);
      set(arguments.sine, token, i, std::sin(static_cast<double>(angle)) * factor);
    }
  }
}

void head_rope_forward(const HeadRopeForward& arguments) {
  const auto& [input, norm_weight, epsilon, inverse_rms, cosine, sine, output] = arguments;
  const int64_t size = input.extent(2);
  const int64_t half = size / 2;
  std::vector<double> x(static_cast<size_t>(size));
  for (int64_t token = 0; token < input.extent(0); ++token) {
    for (int64_t head = 0; head < input.extent(1); ++head) {
      double square_sum = 0.0;
      for (int64_t i = 0; i < size; ++i) {
        x[static_cast<size_t>(i)] = at(input, token, head, i);
        square_sum += x[static_cast<size_t>(i)] * x[static_cast<size_t>(i)];
      }
      if (!norm_weight.is_absent()) {
        const double inverse = 1.0 / std::sqrt(square_sum / static_cast<double>(size) + static_cast<double>(epsilon));
        for (int64_t i = 0; i < size; ++i) x[static_cast<size_t>(i)] *= inverse * at(norm_weight, i);
        if (!inverse_rms.is_absent()) set(inverse_rms, token, head, inverse);
      }
      if (cosine.is_absent()) {
        for (int64_t i = 0; i < size; ++i) set(output, token, head, i, x[static_cast<size_t>(i)]);
        continue;
      }
      for (int64_t i = 0; i < half; ++i) {
        const double first = x[static_cast<size_t>(i)];
        const double second = x[static_cast<size_t>(i + half)];
        set(output, token, head, i, first * at(cosine, token, i) - second * at(sine, token, i));
        set(output, token, head, i + half, second * at(cosine, token, i) + first * at(sine, token, i));
      }
    }
  }
}

void head_rope_backward(const HeadRopeBackward& arguments) {
  const auto& [doutput, input, norm_weight, inverse_rms, cosine, sine, dinput, dnorm_weight] = arguments;
  const int64_t size = doutput.extent(2);
  const int64_t half = size / 2;
  std::vector<double> gradient(static_cast<size_t>(size));
  std::vector<double> weight_sum(static_cast<size_t>(size), 0.0);
  for (int64_t token = 0; token < doutput.extent(0); ++token) {
    for (int64_t head = 0; head < doutput.extent(1); ++head) {
      for (int64_t i = 0; i < size; ++i) gradient[static_cast<size_t>(i)] = at(doutput, token, head, i);
      for (int64_t i = 0; i < half && !cosine.is_absent(); ++i) {
        const double first = gradient[static_cast<size_t>(i)];
        const double second = gradient[static_cast<size_t>(i + half)];
        gradient[static_cast<size_t>(i)] = first * at(cosine, token, i) + second * at(sine, token, i);
        gradient[static_cast<size_t>(i + half)] = second * at(cosine, token, i) - first * at(sine, token, i);
      }
      if (!norm_weight.is_absent()) {
        const double inverse = at(inverse_rms, token, head);
        double projection = 0.0;
        for (int64_t i = 0; i < size; ++i) {
          const double x = at(input, token, head, i);
          weight_sum[static_cast<size_t>(i)] += x * inverse * gradient[static_cast<size_t>(i)];
          gradient[static_cast<size_t>(i)] *= at(norm_weight, i);
          projection += x * gradient[static_cast<size_t>(i)];
        }
        projection *= inverse * inverse / static_cast<double>(size);
        for (int64_t i = 0; i < size; ++i) {
          gradient[static_cast<size_t>(i)] =
              inverse * (gradient[static_cast<size_t>(i)] - at(input, token, head, i) * projection);
        }
      }
      for (int64_t i = 0; i < size; ++i) set(dinput, token, head, i, gradient[static_cast<size_t>(i)]);
    }
  }
  if (dnorm_weight.is_absent()) return;
  for (int64_t i = 0; i < size; ++i) set(dnorm_weight, i, at(dnorm_weight, i) + weight_sum[static_cast<size_t>(i)]);
}

void swiglu_forward(const SwigluForward& arguments) {
  for (int64_t token = 0; token < arguments.gate.extent(0); ++token) {
    for (int64_t i = 0; i < arguments.gate.extent(1); ++i) {
      const double gate = at(arguments.gate, token, i);
      set(arguments.output, token, i, gate * sigmoid(gate) * at(arguments.up, token, i));
    }
  }
}

void swiglu_backward(const SwigluBackward& arguments) {
  for (int64_t token = 0; token < arguments.gate.extent(0); ++token) {
    for (int64_t i = 0; i < arguments.gate.extent(1); ++i) {
      const double gate = at(arguments.gate, token, i);
      const double up = at(arguments.up, token, i);
      const double doutput = at(arguments.doutput, token, i);
      const double s = sigmoid(gate);
      set(arguments.dgate, token, i, doutput * up * s * (1.0 + gate * (1.0 - s)));
      set(arguments.dup, token, i, doutput * gate * s);
    }
  }
}

void embedding_forward(const EmbeddingForward& arguments) {
  for (int64_t token = 0; token < arguments.token_ids.extent(0); ++token) {
    const auto id = static_cast<int64_t>(at(arguments.token_ids, token));
    require(id >= 0 && id < arguments.table.extent(0), "embedding_forward: token id outside of the vocabulary");
    for (int64_t i = 0; i < arguments.table.extent(1); ++i) set(arguments.output, token, i, at(arguments.table, id, i));
  }
}

void embedding_backward(const EmbeddingBackward& arguments) {
  for (int64_t token = 0; token < arguments.token_ids.extent(0); ++token) {
    const auto id = static_cast<int64_t>(at(arguments.token_ids, token));
    require(id >= 0 && id < arguments.dtable.extent(0), "embedding_backward: token id outside of the vocabulary");
    for (int64_t i = 0; i < arguments.dtable.extent(1); ++i) {
      set(arguments.dtable, id, i, at(arguments.dtable, id, i) + at(arguments.doutput, token, i));
    }
  }
}

void cross_entropy(const CrossEntropy& arguments) {
  const Tensor& logits = arguments.logits;
  const int64_t vocabulary = logits.extent(1);
  double loss = only(arguments.loss_sum);
  for (int64_t token = 0; token < logits.extent(0); ++token) {
    const auto label = static_cast<int64_t>(at(arguments.labels, token));
    require(label == -100 || (label >= 0 && label < vocabulary), "cross_entropy: label outside of the vocabulary");
    const double weight = label == -100 ? 0.0 : arguments.weights.is_absent() ? 1.0 : at(arguments.weights, token);
    if (weight == 0.0) {
      for (int64_t i = 0; i < vocabulary && arguments.with_gradient; ++i) set(logits, token, i, 0.0);
      continue;
    }
    double highest = at(logits, token, 0);
    for (int64_t i = 1; i < vocabulary; ++i) highest = std::max(highest, at(logits, token, i));
    double sum = 0.0;
    for (int64_t i = 0; i < vocabulary; ++i) sum += std::exp(at(logits, token, i) - highest);
    const double log_sum_exp = highest + std::log(sum);
    loss += weight * (log_sum_exp - at(logits, token, label));
    for (int64_t i = 0; i < vocabulary && arguments.with_gradient; ++i) {
      const double probability = std::exp(at(logits, token, i) - log_sum_exp);
      set(logits, token, i, (probability - (i == label ? 1.0 : 0.0)) * weight * arguments.gradient_scale);
    }
  }
  set_only(arguments.loss_sum, loss);
}

void copy(const Copy& arguments) {
  for_each_pair(arguments.from, arguments.to, [&](int64_t from, int64_t to) {
    if (arguments.from.dtype == DType::int64 && arguments.to.dtype == DType::int64) {
      arguments.to.as<int64_t>()[to] = arguments.from.as<int64_t>()[from];  // not every int64 is a double
    } else {
      store(arguments.to, to, load(arguments.from, from));
    }
  });
}

void add(const Add& arguments) {
  for_each_pair(arguments.from, arguments.to, [&](int64_t from, int64_t to) {
    store(arguments.to, to, load(arguments.to, to) + static_cast<double>(arguments.scale) * load(arguments.from, from));
  });
}

void fill(const Fill& arguments) {
  for_each_pair(arguments.to, arguments.to,
                [&](int64_t to, int64_t /*same*/) { store(arguments.to, to, arguments.value); });
}

void column_sum(const ColumnSum& arguments) {
  for (int64_t column = 0; column < arguments.input.extent(1); ++column) {
    double sum = at(arguments.sum, column);
    for (int64_t row = 0; row < arguments.input.extent(0); ++row) sum += at(arguments.input, row, column);
    set(arguments.sum, column, sum);
  }
}

void square_sum(const SquareSum& arguments) {
  double sum = only(arguments.sum);
  for (int64_t i = 0; i < arguments.input.element_count(); ++i)
    sum += load(arguments.input, i) * load(arguments.input, i);
  set_only(arguments.sum, sum);
}

void step_numbers(const StepNumbers& arguments) {
  const double norm = std::sqrt(only(arguments.square_sum));
  const bool skip =
      !std::isfinite(norm) || !std::isfinite(only(arguments.loss_sum)) || arguments.label_weight_sum == 0.0;
  set_only(arguments.gradient_norm, norm);
  set_only(arguments.clip_factor, arguments.max_norm == 0.0 ? 1.0 : std::min(1.0, arguments.max_norm / (norm + 1e-6)));
  set_only(arguments.skipped, skip ? 1.0 : 0.0);
  if (!skip) set_only(arguments.applied_steps, only(arguments.applied_steps) + 1.0);
}

void adamw(const AdamW& arguments) {
  if (only(arguments.skipped) != 0.0) return;
  const double step = only(arguments.applied_steps);
  const double clip_factor = only(arguments.clip_factor);
  const double correction1 = 1.0 - std::pow(arguments.beta1, step);
  const double correction2 = 1.0 - std::pow(arguments.beta2, step);
  for (int64_t i = 0; i < arguments.weights.element_count(); ++i) {
    const double gradient = clip_factor * load(arguments.gradients, i);
    const double first = arguments.beta1 * load(arguments.first_moment, i) + (1.0 - arguments.beta1) * gradient;
    const double second =
        arguments.beta2 * load(arguments.second_moment, i) + (1.0 - arguments.beta2) * gradient * gradient;
    double weight = load(arguments.weights, i);
    weight -= arguments.learning_rate * arguments.weight_decay * weight;
    weight -= arguments.learning_rate / correction1 * first /
              (std::sqrt(second) / std::sqrt(correction2) + arguments.epsilon);
    store(arguments.first_moment, i, first);
    store(arguments.second_moment, i, second);
    store(arguments.weights, i, weight);
    if (!arguments.compute_weights.is_absent()) store(arguments.compute_weights, i, weight);
  }
}

}  // namespace ithaca::reference
