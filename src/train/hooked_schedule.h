// Test support: a rank's attention that tells when the host comes to it, which divides a step into pieces. For test
// sources only. Thread-safety: the rank's own thread.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "attention/schedule.h"

namespace ithaca::testing {

class HookedSchedule final : public AttentionSchedule {
 public:
  using Hook = std::function<void(std::string_view place)>;

  // `hook` outlives it, and may be empty and may change between the calls.
  HookedSchedule(std::unique_ptr<AttentionSchedule> inner, const Hook& hook) : inner_(std::move(inner)), hook_(hook) {}

  ScheduleKind kind() const override { return inner_->kind(); }
  std::unique_ptr<AttentionPlan> plan(const Documents& documents, const MaskRule& mask) const override {
    return inner_->plan(documents, mask);
  }
  void forward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
               const Tensor& log_sum_exp) override {
    tell("before attention");
    inner_->forward(plan, qkv, output, log_sum_exp);
    tell("behind attention");
  }
  void backward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output, const Tensor& log_sum_exp,
                const Tensor& doutput, const ShardedQkvGradient& gradient) override {
    tell("before the backward pass of attention");
    inner_->backward(plan, qkv, output, log_sum_exp, doutput, gradient);
    tell("behind the backward pass of attention");
  }
  CommunicationCost cost(int64_t tokens_per_rank) const override { return inner_->cost(tokens_per_rank); }

 private:
  void tell(std::string_view place) {
    if (hook_) hook_(place);
  }

  std::unique_ptr<AttentionSchedule> inner_;
  const Hook& hook_;
};

}  // namespace ithaca::testing
