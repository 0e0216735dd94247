// PartialAttention: a schedule of which only the last layers of a model compute attention.
//
// For benchmarks of memory: a step whose other layers leave attention out allocates what a whole step does, at the same
// moments, and takes a fraction of its time. The layers left out give zeros. Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <memory>

#include "attention/schedule.h"
#include "backend/backend.h"

namespace ithaca {

class PartialAttention final : public AttentionSchedule {
 public:
  // `computed` of `layers` layers, 1 or more. Must be called as a training step calls a schedule: forward of layers 0,
  // 1, ...; then for the last layer and back to the first: forward again where attention is recomputed, and backward.
  PartialAttention(std::unique_ptr<AttentionSchedule> inner, Backend& backend, int64_t layers, int64_t computed);

  ScheduleKind kind() const override { return inner_->kind(); }
  std::unique_ptr<AttentionPlan> plan(const Documents& documents, const MaskRule& mask) const override {
    return inner_->plan(documents, mask);
  }
  void forward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output,
               const Tensor& log_sum_exp) override;
  void backward(const AttentionPlan& plan, const ShardedQkv& qkv, const Tensor& output, const Tensor& log_sum_exp,
                const Tensor& doutput, const ShardedQkvGradient& gradient) override;
  CommunicationCost cost(int64_t tokens_per_rank) const override { return inner_->cost(tokens_per_rank); }

  // Seconds that one computed layer took in all of its calls so far, on average over the computed layers; the host
  // waits for each call, so it is the call's own time.
  double seconds_of_a_layer() const { return seconds_ / static_cast<double>(computed_); }
  int64_t layers_left_out() const { return layers_ - computed_; }

 private:
  bool is_computed(int64_t layer) const { return layer >= layers_ - computed_; }
  template <typename Work>
  void timed(const Work& work);
  void clear(const Tensor& tensor);

  std::unique_ptr<AttentionSchedule> inner_;
  Backend& backend_;
  int64_t layers_;
  int64_t computed_;
  int64_t forward_done_ = 0;  // layers of the step whose first forward has been called
  int64_t backward_left_;     // layers of the step whose backward has not been called
  double seconds_ = 0.0;
};

}  // namespace ithaca
