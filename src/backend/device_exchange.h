// DeviceExchange: bytes between the devices of one process's ranks, one device each, moved by a library (NCCL).
//
// A send ends on the device when its receive has taken it, and a receive when it is there, so a rank that never comes
// leaves the others' devices waiting: abort() ends that. Made by DeviceMovement::make_exchange; used through
// DeviceIssuer::exchange. Thread-safety: any thread. Destroyed when all that was issued has run or been aborted.
#pragma once

#include <optional>
#include <string>

#include "backend/stream.h"
#include "tensor/tensor.h"

namespace ithaca {

// One block for `peer`, or from it: contiguous, at least one element.
struct DeviceMessage {
  int peer = 0;
  Tensor data;
};

class DeviceExchange {
 public:
  // What has gone wrong by itself, on a device or between two of them, and on which rank's side.
  struct Failure {
    int rank = 0;
    std::string text;
  };

  DeviceExchange() = default;
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;
  virtual ~DeviceExchange() = default;

  virtual std::optional<Failure> failure() = 0;
  // Whether a point that DeviceIssuer::record has given lies behind. Never waits.
  virtual bool has_happened(const Event& event) = 0;
  // Ends, on every rank, what waits on a device now, with whatever it has got; what comes later throws
  // CommunicationError.
  virtual void abort() noexcept = 0;
};

}  // namespace ithaca
