// ReplicatedParameters: the ParameterStore where every rank holds all parameters (ZeRO stage 0).
//
// Each unit is one contiguous block of float32 master weights and one of float32 gradients; where the backend computes
// in another dtype, a copy in that dtype as well. When a unit's gradients of the step's last micro-batch are ready they
// are summed over the mesh's gradient group on the communication stream, while the backward of the next unit runs.
// Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/mesh.h"
#include "model/parameter_store.h"

namespace ithaca {

// One unit as the optimizer sees it.
struct UnitBlock {
  Tensor weights;          // [n] float32
  Tensor gradients;        // [n] float32
  Tensor compute_weights;  // [n] compute dtype; absent when that is float32
};

class ReplicatedParameters final : public ParameterStore {
 public:
  // `specs` in unit order (parameter_specs). Contents are undefined until set_weights has been called for every
  // parameter.
  ReplicatedParameters(std::vector<ParameterSpec> specs, Backend& backend, Mesh& mesh);

  void prefetch(UnitId unit) override;
  UnitTensors acquire(UnitId unit, Stream& stream) override;
  void release(UnitId unit, Stream& stream) override;
  UnitTensors gradients(UnitId unit, Stream& stream) override;
  void gradients_ready(UnitId unit, const Event& event) override;

  std::span<const ParameterSpec> specs() const { return specs_; }
  int64_t unit_count() const { return static_cast<int64_t>(units_.size()); }
  const UnitBlock& block(UnitId unit) const { return units_[static_cast<size_t>(unit)].block; }
  // Specs [first, last) of a unit, and the tensors in the same order.
  std::pair<int64_t, int64_t> unit_specs(UnitId unit) const;
  const Tensor& master(int64_t spec) const { return masters_[static_cast<size_t>(spec)]; }
  const Tensor& gradient(int64_t spec) const { return gradient_views_[static_cast<size_t>(spec)]; }

  // Clears all gradients, on the compute stream.
  void begin_step();
  // Gradients that become ready from now on are the step's last: they are summed over the ranks.
  void begin_last_micro_batch();
  // The compute stream waits until all sums are in place.
  void finish_gradients();

  // Host <-> device, for import, export and checkpoints. Blocking.
  void set_weights(int64_t spec, std::span<const float> values);
  void get_weights(int64_t spec, std::span<float> values) const;

 private:
  struct Unit {
    int64_t first_spec = 0;
    int64_t last_spec = 0;
    Buffer master, gradient, compute;
    UnitBlock block;
    bool reduced = false;
  };

  std::vector<ParameterSpec> specs_;
  Backend& backend_;
  Mesh& mesh_;
  std::vector<Unit> units_;
  std::vector<Tensor> masters_, gradient_views_, compute_views_;
  bool last_micro_batch_ = false;
};

// Bytes that ReplicatedParameters takes for weights and gradients with float32 compute, without building it.
struct ReplicatedBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
};
ReplicatedBytes replicated_parameter_bytes(std::span<const ParameterSpec> specs, DType compute_dtype);

}  // namespace ithaca
