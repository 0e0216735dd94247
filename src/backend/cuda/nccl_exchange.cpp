#include "backend/cuda/nccl_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/nccl_library.h"
#include "base/error.h"

namespace ithaca::cuda {

namespace {

// A first exchange of a byte between all pairs takes well under a second.
constexpr std::chrono::seconds kFirstExchangeLimit{60};
// Calls into NCCL only issue work, so they end at once, unless the driver's queue is full of work that waits.
constexpr std::chrono::seconds kCallLimit{2};

// Restores the device that was the current one.
class CurrentDevice {
 public:
  CurrentDevice() { ITHACA_CUDA_CHECK(cudaGetDevice(&device_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(device_)); }

 private:
  int device_ = 0;
};

// A stream and a few bytes of a device, for the first exchange.
class FirstExchangePlace {
 public:
  FirstExchangePlace(int device, int64_t bytes) : device_(device) {
    ITHACA_CUDA_CHECK(cudaSetDevice(device_));
    memory_ = DeviceMemory(bytes);
    ITHACA_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  FirstExchangePlace(const FirstExchangePlace&) = delete;
  FirstExchangePlace& operator=(const FirstExchangePlace&) = delete;
  ~FirstExchangePlace() {
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  cudaStream_t stream() const { return stream_; }
  Tensor byte(int index) const {
    return Tensor::contiguous(static_cast<std::byte*>(memory_.data()) + index, DType::uint8, {1});
  }

 private:
  int device_;
  DeviceMemory memory_;
  cudaStream_t stream_ = nullptr;
};

class NcclExchange final : public DeviceExchange {
 public:
  explicit NcclExchange(std::span<const int> devices) : nccl_(nccl_library()), members_(devices.size()) {
    const CurrentDevice current;
    std::vector<ncclComm_t> communicators(devices.size());
    const ncclResult_t result = nccl_.init_all(communicators.data(), static_cast<int>(devices.size()), devices.data());
    if (result != ncclSuccess) {
      throw CommunicationError(
          fmt::format("NCCL cannot connect the GPUs {}: {}", fmt::join(devices, ", "), text_of(result, nullptr)));
    }
    for (size_t rank = 0; rank < devices.size(); ++rank) members_[rank].communicator = communicators[rank];
  }

  // The last of these calls frees the resources of all, and the ones before it none.
  ~NcclExchange() override {
    if (is_aborted_) return;
    for (const Member& member : members_) static_cast<void>(nccl_.destroy(member.communicator));
  }

  std::optional<Failure> failure() override {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      Member& member = members_[rank];
      const std::unique_lock lock(member.mutex, std::try_to_lock);
      if (!lock.owns_lock() || is_aborted_) continue;
      ncclResult_t state = ncclSuccess;
      const ncclResult_t result = nccl_.get_async_error(member.communicator, &state);
      const ncclResult_t worse = result != ncclSuccess ? result : state;
      if (worse != ncclSuccess && worse != ncclInProgress) {
        return Failure{static_cast<int>(rank), text_of(worse, member.communicator)};
      }
    }
    return std::nullopt;
  }

  bool has_happened(const Event& event) override { return cuda::has_happened(event); }

  void abort() noexcept override {
    if (is_aborted_.exchange(true)) return;
    // Communicators must not be freed while a rank is inside of a call; calls that come now end before they begin. One
    // that the driver holds up is set free by the abort itself.
    for (Member& member : members_) {
      if (member.mutex.try_lock_for(kCallLimit)) member.mutex.unlock();
    }
    for (const Member& member : members_) static_cast<void>(nccl_.abort(member.communicator));
  }

  void run(int rank, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
           cudaStream_t stream) {
    Member& member = members_.at(static_cast<size_t>(rank));
    const std::lock_guard lock(member.mutex);
    if (is_aborted_) throw CommunicationError("NCCL has been aborted");
    ncclResult_t result = nccl_.group_start();
    if (result == ncclSuccess) {
      result = add(member.communicator, sends, receives, stream);
      const ncclResult_t end = nccl_.group_end();
      if (result == ncclSuccess) result = end;
    }
    if (result != ncclSuccess) throw CommunicationError(text_of(result, member.communicator));
  }

  // Exchanges a byte between all pairs, so that all connections exist.
  void connect_all(std::span<const int> devices) {
    const CurrentDevice current;
    const auto ranks = static_cast<int>(devices.size());
    std::deque<FirstExchangePlace> places;
    for (const int device : devices) places.emplace_back(device, int64_t{2} * ranks);
    ncclResult_t result = nccl_.group_start();
    if (result == ncclSuccess) {
      for (int rank = 0; rank < ranks && result == ncclSuccess; ++rank) {
        const FirstExchangePlace& place = places[static_cast<size_t>(rank)];
        std::vector<DeviceMessage> sends;
        std::vector<DeviceMessage> receives;
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == rank) continue;
          sends.push_back({peer, place.byte(peer)});
          receives.push_back({peer, place.byte(ranks + peer)});
        }
        result = add(members_[static_cast<size_t>(rank)].communicator, sends, receives, place.stream());
      }
      const ncclResult_t end = nccl_.group_end();
      if (result == ncclSuccess) result = end;
    }
    const bool has_run = result == ncclSuccess && wait_for(places);
    if (has_run) return;
    abort();  // before the streams are waited for
    throw CommunicationError(
        fmt::format("NCCL cannot exchange a first byte between the GPUs {}: {}", fmt::join(devices, ", "),
                    result != ncclSuccess ? text_of(result, nullptr) : "it has not come within a minute"));
  }

 private:
  struct Member {
    ncclComm_t communicator = nullptr;
    std::timed_mutex mutex;  // held by who calls NCCL with it
  };

  // "NCCL: unhandled cuda error (what it says itself)".
  std::string text_of(ncclResult_t result, ncclComm_t communicator) const {
    const char* const detail = nccl_.get_last_error(communicator);
    const bool has_detail = detail != nullptr && detail[0] != '\0';
    return fmt::format("NCCL: {}{}", nccl_.get_error_string(result),
                       has_detail ? fmt::format(" ({})", detail) : std::string());
  }

  // Inside of a group.
  ncclResult_t add(ncclComm_t communicator, std::span<const DeviceMessage> sends,
                   std::span<const DeviceMessage> receives, cudaStream_t stream) const {
    const auto bytes = [](const DeviceMessage& message) { return static_cast<size_t>(message.data.byte_count()); };
    for (const DeviceMessage& message : sends) {
      const ncclResult_t result =
          nccl_.send(message.data.data, bytes(message), ncclInt8, message.peer, communicator, stream);
      if (result != ncclSuccess) return result;
    }
    for (const DeviceMessage& message : receives) {
      const ncclResult_t result =
          nccl_.receive(message.data.data, bytes(message), ncclInt8, message.peer, communicator, stream);
      if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
  }

  // Whether all streams have come to their end in time.
  static bool wait_for(const std::deque<FirstExchangePlace>& places) {
    const auto limit = std::chrono::steady_clock::now() + kFirstExchangeLimit;
    for (const FirstExchangePlace& place : places) {
      cudaError_t status = cudaStreamQuery(place.stream());
      while (status == cudaErrorNotReady) {
        if (std::chrono::steady_clock::now() > limit) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        status = cudaStreamQuery(place.stream());
      }
      check_cuda(status, "cudaStreamQuery of the first exchange", __FILE__, __LINE__);
    }
    static_cast<void>(cudaGetLastError());  // "not ready" stays behind otherwise
    return true;
  }

  const NcclLibrary& nccl_;
  std::deque<Member> members_;
  std::atomic<bool> is_aborted_{false};
};

}  // namespace

std::string nccl_absence_reason() {
  try {
    static_cast<void>(nccl_library());
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return {};
}

std::unique_ptr<DeviceExchange> make_nccl_exchange(std::span<const int> devices) {
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (devices[rank] != devices[other]) continue;
      throw ConfigurationError(
          fmt::format("NCCL takes one rank per GPU, but ranks {} and {} share GPU {}; transport: peer works there, or "
                      "as many ranks "
                      "as GPUs",
                      other, rank, devices[rank]));
    }
  }
  auto exchange = std::make_unique<NcclExchange>(devices);
  exchange->connect_all(devices);
  return exchange;
}

void run_nccl_exchange(DeviceExchange& exchange, int rank, std::span<const DeviceMessage> sends,
                       std::span<const DeviceMessage> receives, cudaStream_t stream) {
  auto* const nccl = dynamic_cast<NcclExchange*>(&exchange);
  require(nccl != nullptr, "the CUDA backend was given an exchange of another kind");
  nccl->run(rank, sends, receives, stream);
}

}  // namespace ithaca::cuda
