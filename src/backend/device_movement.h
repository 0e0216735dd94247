// DeviceMovement: how ranks of one process whose memory lies on devices read each other's tensors.
//
// Implemented by backends whose memory the host cannot read, beside Backend. An exchange waits for other ranks before
// it knows what to copy, so it is given as work that is issued to a stream in its turn: after everything that was
// enqueued on the stream before, and before everything that follows. The work may wait for other threads (the compute
// stream issues on the calling thread, which waits then, as it would on the CPU backend; other streams have a thread
// for that). Thread-safety: as Backend.
#pragma once

#include <functional>
#include <span>

#include "backend/stream.h"
#include "tensor/tensor.h"

namespace ithaca {

// What the work of one stream may enqueue on it. Valid while the work runs, on its thread.
class DeviceIssuer {
 public:
  DeviceIssuer() = default;
  DeviceIssuer(const DeviceIssuer&) = delete;
  DeviceIssuer& operator=(const DeviceIssuer&) = delete;
  virtual ~DeviceIssuer() = default;

  // to = from: same dtype and element count, any strides; elements correspond in row-major order of their views, whose
  // shapes may differ. Nothing is done when both are the same view; otherwise they must not overlap. `from` may belong
  // to another rank, on the same or on another device.
  virtual void copy_elements(const Tensor& from, const Tensor& to) = 0;
  // to = ((parts[0] + parts[1]) + parts[2]) + ...: float32, float64 or int64, in the arithmetic of that type. Parts may
  // belong to other ranks; `to` may be the same view as one of them.
  virtual void sum_elements(std::span<const Tensor> parts, const Tensor& to) = 0;
  // This point of the stream, for other ranks.
  virtual Event record() = 0;
  // The stream waits for a point of another rank's.
  virtual void wait(const Event& event) = 0;
};

class DeviceMovement {
 public:
  DeviceMovement() = default;
  DeviceMovement(const DeviceMovement&) = delete;
  DeviceMovement& operator=(const DeviceMovement&) = delete;
  virtual ~DeviceMovement() = default;

  // Issues `work` to the stream; may return before it has run. It may throw: that fails the stream.
  virtual void issue(Stream& stream, std::function<void(DeviceIssuer&)> work) = 0;
  // The most parts that one sum can have.
  virtual int most_sum_parts() const = 0;
};

}  // namespace ithaca
