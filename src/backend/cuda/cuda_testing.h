// Test support: a CUDA backend, and pairs of the same random tensor: on the device in any dtype and stride, on the host
// in float64 for the reference.
//
// The gaps around the device tensor's rows hold a mark that guards_intact() looks for. Tests are skipped, aloud, where
// there is no GPU. Thread-safety: one thread.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/reference.h"
#include "backend/test_tensors.h"
#include "base/random.h"

namespace ithaca::testing_support {

inline std::unique_ptr<Backend> make_test_backend(DType compute_dtype, int64_t memory_bytes = int64_t{1} << 30,
                                                  bool synchronous = true) {
  CudaBackendOptions options;
  options.memory_limit_bytes = memory_bytes;
  options.host_memory_limit_bytes = 1 << 20;
  options.compute_dtype = compute_dtype;
  options.synchronous = synchronous;
  return make_cuda_backend(options);
}

// How a device tensor lies in memory: elements between its rows, and before the first.
struct Placement {
  int64_t gap = 0;
  int64_t offset = 0;
};

class CudaTensors {
 public:
  struct Pair {
    Tensor device;
    Tensor exact;  // float64, contiguous, on the host
    size_t index = 0;
  };

  explicit CudaTensors(Backend& backend, uint64_t seed = 1) : backend_(backend), seed_(seed) {}

  // Normal numbers of this deviation around `mean`, rounded to `dtype` on both sides.
  Pair normal(DType dtype, const Extents& extents, const Placement& placement = {}, double deviation = 1.0,
              double mean = 0.0) {
    const RandomStream random(seed_++, "test tensor");
    uint64_t index = 0;
    return make(dtype, extents, placement, [&] { return mean + deviation * random.normal(index++); });
  }

  Pair filled(DType dtype, const Extents& extents, double value, const Placement& placement = {}) {
    return make(dtype, extents, placement, [&] { return value; });
  }

  // For outputs: NaN (0x7F bytes in integers), so that whatever is not written shows.
  Pair undefined(DType dtype, const Extents& extents, const Placement& placement = {}) {
    return filled(dtype, extents, std::numeric_limits<double>::quiet_NaN(), placement);
  }

  // On the device; the host side for the reference is integer_pair.exact.
  Pair integers(const std::vector<int64_t>& values) {
    Pair pair = filled(DType::int64, {static_cast<int64_t>(values.size())}, 0.0);
    // Not as doubles, which have 53 bits.
    backend_.copy_from_host(backend_.compute_stream(), std::as_bytes(std::span(values)), pair.device);
    std::vector<int64_t>& kept = integers_.emplace_back(values);
    kept.push_back(0);
    pair.exact = Tensor::contiguous(kept.data(), DType::int64, {static_cast<int64_t>(values.size())});
    return pair;
  }

  // The elements as the device has them now, in float64.
  std::vector<double> values(const Pair& pair) {
    const Storage& storage = storages_[pair.index];
    const std::vector<std::byte> bytes = download(storage);
    Tensor view = pair.device;
    view.data = const_cast<std::byte*>(bytes.data()) + storage.offset_bytes;
    std::vector<double> result;
    result.reserve(static_cast<size_t>(view.element_count()));
    for_each_index(view, view, [&](int64_t offset, int64_t) { result.push_back(reference::load(view, offset)); });
    return result;
  }

  // ||device - exact|| / ||exact||.
  double error(const Pair& pair) { return error(pair, pair.exact); }
  double error(const Pair& pair, const Tensor& exact) {
    std::vector<double> found = values(pair);
    found.push_back(0.0);
    return relative_error(Tensor::contiguous(found.data(), DType::float64, pair.device.extents), exact);
  }

  // The bytes of the tensor's whole memory, gaps included.
  std::vector<std::byte> bytes(const Pair& pair) { return download(storages_[pair.index]); }

  bool guards_intact() {
    for (Storage& storage : storages_) {
      const std::vector<std::byte> now = download(storage);
      for (size_t i = 0; i < now.size(); ++i) {
        if (!storage.is_element[i] && now[i] != kMark) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::byte kMark{0x7B};
  struct Storage {
    Buffer buffer;
    int64_t offset_bytes = 0;
    std::vector<bool> is_element;  // by byte
  };

  template <typename Next>
  Pair make(DType dtype, const Extents& extents, const Placement& placement, const Next& next) {
    const int64_t element = element_size(dtype);
    const int rank = extents.rank();
    Tensor view = Tensor::contiguous(nullptr, dtype, extents);
    const int64_t width = rank > 0 ? extents[rank - 1] : 1;
    int64_t stride = width + placement.gap;
    int64_t rows = 1;
    for (int dimension = rank - 2; dimension >= 0; --dimension) {
      view.strides[dimension] = stride;
      stride *= extents[dimension];
      rows *= extents[dimension];
    }
    Storage storage;
    storage.offset_bytes = placement.offset * element;
    const auto total = static_cast<size_t>((placement.offset + rows * (width + placement.gap) + 2) * element);
    std::vector<std::byte> host(total, kMark);
    storage.is_element.assign(total, false);
    view.data = host.data() + storage.offset_bytes;
    std::vector<double>& doubles = doubles_.emplace_back(static_cast<size_t>(extents.product() + 1), 0.0);
    const Tensor exact = Tensor::contiguous(doubles.data(), DType::float64, extents);
    for_each_index(view, exact, [&](int64_t offset, int64_t exact_offset) {
      reference::store(view, offset, next());
      exact.as<double>()[exact_offset] = reference::load(view, offset);
      const int64_t begin = storage.offset_bytes + offset * element;
      for (int64_t byte = begin; byte < begin + element; ++byte) storage.is_element[static_cast<size_t>(byte)] = true;
    });
    storage.buffer = backend_.arena(Tier::device)
                         .allocate("test tensor", MemoryClass::workspace, DType::uint8, {static_cast<int64_t>(total)},
                                   backend_.compute_stream());
    backend_.copy_from_host(backend_.compute_stream(), host, storage.buffer.tensor());
    Tensor device = view;
    device.data = static_cast<std::byte*>(storage.buffer.tensor().data) + storage.offset_bytes;
    storages_.push_back(std::move(storage));
    return {device, exact, storages_.size() - 1};
  }

  std::vector<std::byte> download(const Storage& storage) {
    std::vector<std::byte> host(static_cast<size_t>(storage.buffer.tensor().element_count()));
    backend_.copy_to_host(backend_.compute_stream(), storage.buffer.tensor(), host);
    backend_.finish(backend_.record(backend_.compute_stream()));
    return host;
  }

  Backend& backend_;
  uint64_t seed_;
  std::deque<Storage> storages_;
  std::deque<std::vector<double>> doubles_;
  std::deque<std::vector<int64_t>> integers_;
};

// The relative error ||found - exact|| / ||exact|| that `roundings` roundings to bfloat16 may leave in `elements`
// elements.
//
// bfloat16 has 8 significant bits, so the numbers of [1, 2) lie 2^-7 apart and a rounding moves a value by at most 2^-8
// of it: that bounds the error of a single element, and so of any number of them. Of many independent elements the
// error is a mean square: half a distance, 2^-8, over the square root of 3 (uniform errors), over the mean square of
// what is rounded, whose mantissas are spread over [1, 2): 2^-8 / sqrt(3) / sqrt(7 / 3) = 0.0015, under 2^-9 with room
// for the spread of mantissas and of magnitudes. Roundings add up at worst. Two per cent are for the float32 arithmetic
// before the rounding, which decides ties.
inline double bfloat_bound(int64_t elements, int roundings = 1) {
  constexpr int64_t kMany = 2048;
  return 1.02 * roundings * (elements >= kMany ? 0x1p-9 : 0x1p-8);
}

// Every operation waits for the device, so that a fault is found where it was made.
class CudaTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
    backend_ = make_test_backend(compute());
    tensors_ = std::make_unique<CudaTensors>(*backend_);
  }
  void TearDown() override {
    if (tensors_ == nullptr) return;
    EXPECT_TRUE(tensors_->guards_intact()) << "an operation wrote between or behind rows";
  }

  static DType compute() { return GetParam(); }
  static bool is_bfloat() { return compute() == DType::bfloat16; }
  // Of `result` in the compute dtype, which in bfloat16 has been rounded `roundings` times on its way.
  static double bound(const CudaTensors::Pair& result, double float32_bound = 2e-6, int roundings = 1) {
    return is_bfloat() ? bfloat_bound(result.exact.element_count(), roundings) : float32_bound;
  }

  Backend& backend() { return *backend_; }
  CudaTensors& tensors() { return *tensors_; }
  Stream& stream() { return backend_->compute_stream(); }

  // Inputs and outputs in the compute dtype.
  CudaTensors::Pair normal(const Extents& extents, const Placement& placement = {}, double deviation = 1.0,
                           double mean = 0.0) {
    return tensors().normal(compute(), extents, placement, deviation, mean);
  }
  CudaTensors::Pair undefined(const Extents& extents, const Placement& placement = {}) {
    return tensors().undefined(compute(), extents, placement);
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<CudaTensors> tensors_;
};

inline std::string dtype_test_name(const testing::TestParamInfo<DType>& info) {
  return std::string(dtype_name(info.param));
}

}  // namespace ithaca::testing_support
