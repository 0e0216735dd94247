// Parameters: what the model asks for, and the store that gives them.
//
// The model describes its parameters as a list of ParameterSpec, grouped in units that are gathered and released
// together (embedding, one decoder layer each, head). It is GIVEN a ParameterStore and never knows whether the tensors
// it gets are replicated, sharded, offloaded or split over tp ranks. Thread-safety: the rank's own thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/stream.h"
#include "tensor/tensor.h"

namespace ithaca {

// 0: embedding; 1 + l: decoder layer l; 1 + layers: head.
using UnitId = int32_t;

enum class Initialization : uint8_t { normal, zeros, ones };

struct ParameterSpec {
  std::string name;  // as in the Hugging Face checkpoint
  Extents extents;
  UnitId unit = 0;
  // This parameter lies directly behind the previous one of the unit, so that both can be read as one taller matrix (q,
  // k, v; gate, up).
  bool joined_to_previous = false;
  int tp_dimension = -1;  // dimension that tensor parallelism splits; -1: replicated
  bool is_matrix = true;  // two-dimensional: what `weight_decay_on: matrices` decays
  bool trainable = true;
  Initialization initialization = Initialization::normal;
};

// The tensors of one unit, in the order of its specs.
struct UnitTensors {
  std::span<const Tensor> tensors;
  // Tensors first, first + 1, ..., last, which are joined, as one with their outer extents summed.
  Tensor joined(int first, int last) const;
  const Tensor& operator[](int index) const { return tensors[static_cast<size_t>(index)]; }
};

class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  virtual ~ParameterStore() = default;

  // A hint that acquire(unit) comes soon.
  virtual void prefetch(UnitId unit) = 0;
  // Whole (or tp-split) tensors in compute dtype, readable by work on `stream`, until release. May nest.
  virtual UnitTensors acquire(UnitId unit, Stream& stream) = 0;
  virtual void release(UnitId unit, Stream& stream) = 0;
  // float32 gradients to add to, for work on `stream`.
  virtual UnitTensors gradients(UnitId unit, Stream& stream) = 0;
  // All of this micro-batch's contributions to the unit have happened once `event` has: the store may now reduce, shard
  // or offload them.
  virtual void gradients_ready(UnitId unit, const Event& event) = 0;
};

}  // namespace ithaca
