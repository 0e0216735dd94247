// ShardedParameters: the ParameterStore of ZeRO stages 0 and 1.
//
// Every rank holds whole blocks of each unit (shard/unit_layout.h): the weights in the compute dtype, and float32
// gradients. The float32 master weights, and what an optimizer keeps for them, exist for the rank's own slice alone:
// all of the block at stage 0, one of dp_shard x cp slices at stage 1. Where the compute dtype is float32 the masters
// are the own slice of the weights themselves.
//
// When a unit's gradients of the step's last micro-batch are ready, the own slice of their sum is made on the
// communication stream, while the backward of the next unit runs. When the optimizer has updated the own slice, the
// unit's new weights are gathered there, while the optimizer goes on and the next forward begins: acquire makes its
// stream wait for that one unit. So whatever reads weights through acquire reads the new ones.
// Thread-safety: the rank's own thread. Functions said to be collective are called by all ranks of the mesh together.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/mesh.h"
#include "model/parameter_store.h"
#include "shard/unit_layout.h"
#include "shard/zero_stage.h"

namespace ithaca {

// This rank's part of a unit, as the optimizer sees it.
struct OwnSlice {
  Tensor weights;          // [n] float32 masters
  Tensor gradients;        // [n] float32
  Tensor compute_weights;  // [n] compute dtype; absent when that is float32
};

// Elements [begin, end) of the own slice that belong to one parameter.
struct OwnRange {
  int64_t spec = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

class ShardedParameters final : public ParameterStore {
 public:
  // `specs` in unit order (parameter_specs). Contents are undefined until set_weights has been called for every
  // parameter.
  ShardedParameters(std::vector<ParameterSpec> specs, Backend& backend, Mesh& mesh, ZeroStage stage);

  void prefetch(UnitId unit) override;
  UnitTensors acquire(UnitId unit, Stream& stream) override;
  void release(UnitId unit, Stream& stream) override;
  UnitTensors gradients(UnitId unit, Stream& stream) override;
  void gradients_ready(UnitId unit, const Event& event) override;

  std::span<const ParameterSpec> specs() const { return specs_; }
  int64_t unit_count() const { return static_cast<int64_t>(units_.size()); }

  // ---- the step ----

  // Clears all gradients, on the compute stream.
  void begin_step();
  // Gradients that become ready from now on are the step's last: they are summed over the ranks.
  void begin_last_micro_batch();
  // The compute stream waits until the own slice of the unit's gradients is summed. Those of the step's last
  // micro-batch must be ready.
  void wait_for_gradients(UnitId unit);

  // ---- the optimizer, on the compute stream ----

  const OwnSlice& own_slice(UnitId unit) const { return units_[static_cast<size_t>(unit)].own; }
  // In order; what lies between them is padding.
  std::span<const OwnRange> own_ranges(UnitId unit) const { return units_[static_cast<size_t>(unit)].own_ranges; }
  // number [1] = its sum over the ranks whose slices make up the model: each slice counts once. Collective.
  void sum_over_slices(const Tensor& number);
  // The own slice has been updated by what is enqueued so far: the unit's new weights go to all ranks. Collective.
  void weights_updated(UnitId unit);

  // ---- whole parameters on the host, for import, export and comparisons; blocking ----

  // Every rank gives the same values of all elements.
  void set_weights(int64_t spec, std::span<const float> values);
  // All elements of the masters, or of the summed gradients. Collective; a rank that gives no room (an empty span) only
  // takes part. Device memory for kTransferElements at most is taken meanwhile.
  void get_weights(int64_t spec, std::span<float> values);
  void get_gradients(int64_t spec, std::span<float> values);
  static constexpr int64_t kTransferElements = int64_t{1} << 24;

 private:
  struct Unit {
    UnitLayout layout;
    Buffer weights, gradients;  // whole, compute dtype and float32
    Buffer masters;             // the own slice; none where the compute dtype is float32
    OwnSlice own;
    std::vector<OwnRange> own_ranges;
    bool is_final = false;  // this step's gradients are ready
    Event summed;           // the own slice of them is in place
    Event gathered;         // the weights are those of the last update
  };
  // Of a parameter inside its unit's block.
  struct Place {
    size_t unit = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };

  static Tensor slice_of(const Tensor& block, const UnitLayout& layout, int shard);
  std::vector<Tensor> slices_of(const Tensor& block, const UnitLayout& layout) const;
  std::span<const Tensor> of_unit(const std::vector<Tensor>& views, UnitId unit) const;
  // What `shard` owns of elements [begin, end) of a block.
  static std::pair<int64_t, int64_t> owned(const UnitLayout& layout, int shard, int64_t begin, int64_t end);
  void get_whole(int64_t spec, Tensor OwnSlice::*part, std::span<float> values);

  std::vector<ParameterSpec> specs_;
  Backend& backend_;
  Stream& stream_;
  Communicator* shard_group_ = nullptr;    // whose ranks own a slice each; null where the own slice is all
  Communicator* replica_group_ = nullptr;  // whose ranks own the same slice; null where nobody else does
  int shards_ = 1;
  int shard_ = 0;
  std::vector<Unit> units_;
  std::vector<Place> places_;                          // by spec
  std::vector<Tensor> weight_views_, gradient_views_;  // by spec
  bool last_micro_batch_ = false;
};

}  // namespace ithaca
