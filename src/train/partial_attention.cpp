#include "train/partial_attention.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/error.h"

namespace ithaca {

PartialAttention::PartialAttention(std::unique_ptr<AttentionSchedule> inner, Backend& backend, int64_t layers,
                                   int64_t computed)
    : inner_(std::move(inner)), backend_(backend), layers_(layers), computed_(computed), backward_left_(layers) {
  require(computed >= 1 && computed <= layers, fmt::format("attention of {} of {} layers", computed, layers));
}

void PartialAttention::forward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
                               const Tensor& log_sum_exp) {
  // Once all layers have been called, a forward recomputes for the backward that comes next.
  const int64_t layer = forward_done_ < layers_ ? forward_done_++ : backward_left_ - 1;
  if (is_computed(layer)) {
    timed([&] { inner_->forward(plan, qkv, output, log_sum_exp); });
    return;
  }
  clear(output);
  clear(log_sum_exp);
}

void PartialAttention::backward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
                                const Tensor& log_sum_exp, const Tensor& doutput, const ShardedQkvGradient& gradient) {
  require(forward_done_ == layers_, "the backward pass of attention begins when all layers have been through forward");
  const int64_t layer = --backward_left_;
  if (backward_left_ == 0) {
    forward_done_ = 0;
    backward_left_ = layers_;
  }
  if (is_computed(layer)) {
    timed([&] { inner_->backward(plan, qkv, output, log_sum_exp, doutput, gradient); });
    return;
  }
  for (const Tensor& each : {gradient.dquery, gradient.dkey, gradient.dvalue}) clear(each);
}

template <typename Work>
void PartialAttention::timed(const Work& work) {
  using Clock = std::chrono::steady_clock;
  Stream& stream = backend_.compute_stream();
  backend_.finish(backend_.record(stream));
  const auto start = Clock::now();
  work();
  backend_.finish(backend_.record(stream));
  seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
}

void PartialAttention::clear(const Tensor& tensor) {
  backend_.fill(backend_.compute_stream(), {tensor, 0.0});
}

}  // namespace ithaca
