// DeviceMovement: how ranks of one process whose memory lies on devices read each other's tensors.
//
// Implemented by backends whose memory the host cannot read, beside Backend. Everything is enqueued on a stream of the
// rank that calls; its own tensors and those of other ranks of the same kind of backend may be named, on the same or on
// other devices. Order with the other ranks' streams is the caller's: Backend::wait() of such a backend takes events
// that another rank's backend has recorded. Thread-safety: as Backend.
#pragma once

#include <span>

#include "backend/stream.h"
#include "tensor/tensor.h"

namespace ithaca {

class DeviceMovement {
 public:
  DeviceMovement() = default;
  DeviceMovement(const DeviceMovement&) = delete;
  DeviceMovement& operator=(const DeviceMovement&) = delete;
  virtual ~DeviceMovement() = default;

  // to = from: same dtype and element count, any strides; elements correspond in row-major order of their views, whose
  // shapes may differ. Nothing is done when both are the same view; otherwise they must not overlap.
  virtual void copy_elements(Stream& stream, const Tensor& from, const Tensor& to) = 0;
  // to = ((parts[0] + parts[1]) + parts[2]) + ...: float32, float64 or int64, in the arithmetic of that type. `to` may
  // be the same view as one of the parts.
  virtual void sum_elements(Stream& stream, std::span<const Tensor> parts, const Tensor& to) = 0;
  // The most parts that one sum can have.
  virtual int most_sum_parts() const = 0;
};

}  // namespace ithaca
