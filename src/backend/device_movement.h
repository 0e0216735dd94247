// DeviceMovement: how ranks of one process whose memory lies on devices read each other's tensors, or send them.
//
// Implemented by backends whose memory the host cannot read, beside Backend. An exchange waits for other ranks before
// it knows what to copy, so it is given as work that is issued to a stream in its turn: after everything that was
// enqueued on the stream before, and before everything that follows. The work may wait for other threads (the compute
// stream issues on the calling thread, which waits then, as it would on the CPU backend; other streams have a thread
// for that). Thread-safety: as Backend.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "backend/device_exchange.h"
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
  // `sends` and `receives` of `rank`, all at once: they wait for each other on the device in no order. Between two
  // ranks the messages of later calls follow those of earlier ones. Throws CommunicationError when the library fails.
  virtual void exchange(DeviceExchange& exchange, int rank, std::span<const DeviceMessage> sends,
                        std::span<const DeviceMessage> receives) = 0;
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
  // Keeps this backend's device memory from being given back, also when the backend has gone: a rank that fails must
  // not take it away from others whose devices are reading it.
  virtual std::shared_ptr<const void> hold_memory() = 0;

  // Connects the devices of all ranks, whose movements `ranks` are; one thread does it for all of them. Throws
  // ConfigurationError when two ranks share a device, or when there is no library for it.
  virtual std::unique_ptr<DeviceExchange> make_exchange(std::span<DeviceMovement* const> ranks) = 0;
  // Fails this rank's backend from any thread: its next finish() or operation throws the exception, unless it has
  // failed already. May be called after the backend has gone.
  virtual std::function<void(std::exception_ptr)> failure_handle() = 0;
};

}  // namespace ithaca
