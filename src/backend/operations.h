// The arguments of every Backend operation.
//
// Plain structs of views. "Compute dtype" is Backend::compute_dtype(): float32 on CPU, bfloat16 on CUDA. An absent
// Tensor ({}) means that an optional argument is not used. Unless said otherwise an operation overwrites its outputs,
// outputs do not overlap inputs, and the last dimension of every tensor has stride 1 while other dimensions may be
// strided. Extents may be 0. Sums over tokens that end in weight gradients accumulate in float32 and ADD to their
// output; loss sums are float64.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "tensor/tensor.h"

namespace ithaca {

// c = alpha * op(a) * op(b) + beta * c (+ bias added to every row). Accumulates in float32.
struct Gemm {
  Tensor a;  // [m, k], or [k, m] when transpose_a; compute dtype or float32
  Tensor b;  // [k, n], or [n, k] when transpose_b; same dtype as a
  Tensor c;  // [m, n]; same dtype, or float32
  bool transpose_a = false;
  bool transpose_b = false;
  float alpha = 1.0f;
  float beta = 0.0f;  // 0: c is not read
  Tensor bias;        // [n], optional
};

// ---- attention ----

inline constexpr int64_t kNoLower = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kNoUpper = std::numeric_limits<int64_t>::max();

// A rectangle of queries x keys (local indices, half-open) with a band of visible diagonals: key k is visible to query
// q iff
//   lower < (k - k_begin) - (q - q_begin) <= upper.
// Full rectangle: kNoLower, kNoUpper. Causal square: upper 0. Window of W keys: lower -W.
struct AttentionTask {
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t k_begin = 0;
  int64_t k_end = 0;
  int64_t lower = kNoLower;
  int64_t upper = kNoUpper;
  bool operator==(const AttentionTask&) const = default;
};

// The shape of one running softmax: what Backend::begin_attention needs to know.
struct AttentionShape {
  int64_t query_tokens = 0;
  int64_t query_heads = 0;
  int64_t value_size = 0;  // of one head
};

// Where finish_attention is going to write, when the caller knows it beforehand: a backend may write there from the
// first forward call on and save a pass over the output. The memory must live until finish_attention and hold nothing
// that attention_forward reads.
struct AttentionDestination {
  Tensor output;       // [query tokens, query heads, value size], compute dtype
  Tensor log_sum_exp;  // [query tokens, query heads] float32
};

// The running softmax of a set of queries, owned by the backend that made it (float32 output and log-sum-exp on CPU).
// Movable through unique_ptr only; destroying it gives its memory back in compute-stream order.
class AttentionState {
 public:
  AttentionState() = default;
  AttentionState(const AttentionState&) = delete;
  AttentionState& operator=(const AttentionState&) = delete;
  virtual ~AttentionState() = default;
};

// Adds the keys of `tasks` to a running softmax. Tasks of one query row, over all calls until finish_attention, must
// cover disjoint keys.
struct AttentionForward {
  Tensor query;  // [query tokens, query heads, key size], compute dtype; any strides but the last
  Tensor key;  // [key tokens, key heads, key size]; query heads % key heads == 0, query head h uses key head h / (query
               // heads / key heads)
  Tensor value;  // [key tokens, key heads, value size]
  std::span<const AttentionTask> tasks;
  float scale = 1.0f;
  AttentionState* state = nullptr;
};

// Adds to dquery, dkey, dvalue what `tasks` contribute, or overwrites them with it (with zeros where no task
// contributes): the first list of a gradient writes what would have to be cleared. `output` and `log_sum_exp` are the
// FINAL ones, over all keys of the whole sequence, so tasks can be computed one by one anywhere (Dao et al. 2022,
// section 3; natural log-sum-exp of the scaled scores).
struct AttentionBackward {
  Tensor query, key, value;  // as in AttentionForward
  Tensor output;             // [query tokens, query heads, value size], compute dtype
  Tensor log_sum_exp;        // [query tokens, query heads] float32; -inf where a query saw no key
  Tensor doutput;            // like output
  std::span<const AttentionTask> tasks;
  float scale = 1.0f;
  // float32; compute dtype is allowed where the gradient is overwritten (it is rounded once).
  Tensor dquery;  // [query tokens, query heads, key size]
  Tensor dkey;    // [key tokens, key heads, key size]
  Tensor dvalue;  // [key tokens, key heads, value size]
  bool overwrites_dquery = false;
  bool overwrites_dkey_dvalue = false;
};

// ---- normalisation, positions, activation ----

// sum = input (+ residual);  inverse_rms = 1 / sqrt(mean(sum^2) + epsilon);  output = sum * inverse_rms * weight.
// Arithmetic in float32.
struct RmsNormForward {
  Tensor input;        // [tokens, size]
  Tensor residual;     // [tokens, size], optional
  Tensor sum;          // [tokens, size]: required with `residual`, where it may be either input itself
  Tensor weight;       // [size]
  Tensor output;       // [tokens, size]
  Tensor inverse_rms;  // [tokens] float32, optional
  float epsilon = 1e-6f;
};

// dinput = gradient of the normalisation (+ dresidual: the gradient that reaches `sum` around the normalisation);
// dweight += ...
struct RmsNormBackward {
  Tensor doutput;      // [tokens, size]
  Tensor input;        // [tokens, size]: what was normalised (`sum`)
  Tensor weight;       // [size]
  Tensor inverse_rms;  // [tokens] float32
  Tensor dresidual;    // [tokens, size], optional; may be dinput itself
  Tensor dinput;       // [tokens, size]
  Tensor dweight;      // [size] float32, added to; absent when the weight is frozen
};

// cosine/sine of every token's rotation: angle = float32(position) * inverse_frequency in float32, full range
// reduction, times `attention_factor`.
struct RopeTable {
  Tensor position_ids;         // [tokens] int64
  Tensor inverse_frequencies;  // [half] float32
  float attention_factor = 1.0f;
  Tensor cosine;  // [tokens, half] float32
  Tensor sine;    // [tokens, half] float32
};

// Per head: optional RMS normalisation over the head, then rotation of (x[i], x[i + half]) by the table. With
// sine/cosine absent only the norm is applied.
struct HeadRopeForward {
  Tensor input;        // [tokens, heads, size], size = 2 * half
  Tensor norm_weight;  // [size], optional: no normalisation when absent
  float epsilon = 1e-6f;
  Tensor inverse_rms;   // [tokens, heads] float32; written when norm_weight is given and this is not absent
  Tensor cosine, sine;  // [tokens, half] float32
  Tensor output;        // [tokens, heads, size]; may be `input` itself
};

struct HeadRopeBackward {
  Tensor doutput;       // [tokens, heads, size]; float32 or compute dtype
  Tensor input;         // [tokens, heads, size] before normalisation; read only with norm_weight
  Tensor norm_weight;   // [size], optional
  Tensor inverse_rms;   // [tokens, heads] float32, with norm_weight
  Tensor cosine, sine;  // as in forward
  Tensor dinput;        // [tokens, heads, size] compute dtype; may be doutput itself when the dtypes agree
  Tensor dnorm_weight;  // [size] float32, added to; optional
};

// output = silu(gate) * up.
struct SwigluForward {
  Tensor gate, up;  // [tokens, size]
  Tensor output;    // [tokens, size]; may be `gate` or `up`
};
struct SwigluBackward {
  Tensor doutput, gate, up;  // [tokens, size]
  Tensor dgate, dup;         // [tokens, size]; may be `gate` and `up` themselves
};

// ---- embedding and loss ----

struct EmbeddingForward {
  Tensor table;      // [vocabulary, size]
  Tensor token_ids;  // [tokens] int64, each in [0, vocabulary)
  Tensor output;     // [tokens, size]
};
// Adds each token's gradient to its row, in token order (repeatable).
struct EmbeddingBackward {
  Tensor doutput;    // [tokens, size]
  Tensor token_ids;  // [tokens] int64
  Tensor dtable;     // [vocabulary, size] float32, added to
};

// One tile of the loss. For each row with label >= 0: loss_sum += weight * -log softmax(logits)[label]. With
// `with_gradient` the logits are overwritten by their gradient: (softmax - onehot) * weight * gradient_scale;
// rows with label -100 or weight 0 get zeros. Any other label outside of the vocabulary is an error. NaN logits of a
// row that counts make the loss NaN.
struct CrossEntropy {
  Tensor logits;                // [tokens, vocabulary], compute dtype or float32
  Tensor labels;                // [tokens] int64; -100 = no label
  Tensor weights;               // [tokens] float32, optional: 1
  bool with_gradient = false;   // overwrite logits
  double gradient_scale = 0.0;  // usually 1 / (sum of all label weights of the step)
  Tensor loss_sum;              // [1] float64, added to
};

// ---- simple tensor operations ----

// to = from, element by element, with conversion of dtype (round to nearest even; once, also from float64). Any
// strides, up to 5 dimensions, same extents. Integers become other integers only when they fit; floating point numbers
// do not become integers.
struct Copy {
  Tensor from;
  Tensor to;
};
// to += scale * from. Any strides; float32, float64 or compute dtype.
struct Add {
  Tensor from;
  Tensor to;
  float scale = 1.0f;
};
struct Fill {
  Tensor to;
  double value = 0.0;
};
// sum[c] += sum over rows of input[r][c]. Bias gradients.
struct ColumnSum {
  Tensor input;  // [rows, columns]
  Tensor sum;    // [columns] float32
};
// sum += sum of squares, in float64.
struct SquareSum {
  Tensor input;  // any contiguous float32
  Tensor sum;    // [1] float64
};

// ---- optimizer ----

// Turns the gradient's square sum into the numbers of this step, all on the device (one element each):
//   gradient_norm = sqrt(square_sum); skipped = 1 if the norm or the loss is not finite or `label_weight_sum` is 0,
//   else 0; clip_factor = min(1, max_norm / (gradient_norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does; 1 when
//   max_norm is 0; applied_steps += 1 unless skipped.
struct StepNumbers {
  Tensor square_sum;              // [1] float64
  Tensor loss_sum;                // [1] float64: of all ranks
  double label_weight_sum = 0.0;  // of all ranks
  double max_norm = 0.0;          // 0: no clipping
  Tensor gradient_norm;           // [1] float64, written
  Tensor clip_factor;             // [1] float32, written
  Tensor skipped;                 // [1] int64, written
  Tensor applied_steps;           // [1] int64, in and out
};

// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW computes it, on one contiguous piece of parameters:
//   g = clip_factor * gradient; w -= lr * decay * w; m, v; w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) +
//   epsilon), t = applied_steps.
// Does nothing when *skipped is not 0.
struct AdamW {
  Tensor weights;          // [n] float32
  Tensor gradients;        // [n] float32
  Tensor first_moment;     // [n] float32
  Tensor second_moment;    // [n] float32
  Tensor compute_weights;  // [n] compute dtype: a copy for the next forward; absent where compute dtype is float32
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  Tensor clip_factor;    // [1] float32
  Tensor skipped;        // [1] int64
  Tensor applied_steps;  // [1] int64, >= 1
};

}  // namespace ithaca
