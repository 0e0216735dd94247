// Operation graphs and execution plans of cuDNN's backend API (the C interface), with owners and exceptions.
//
// A CudnnGraph is built operation by operation; CudnnPlan turns it into something that runs. Tensors are known by ids:
// the caller gives ids to real tensors and their addresses at execution; virtual tensors exist only inside a kernel.
// Thread-safety: one thread; a handle belongs to one thread and device.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ithaca::cuda {

// cuDNN refused something; the text holds its last message.
class CudnnError : public Error {
 public:
  using Error::Error;
};

// Throws CudnnError, naming `what`, unless `status` is success.
void require_cudnn(cudnnStatus_t status, const std::string& what);

// Owner of one backend descriptor.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* name);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)), name_(other.name_) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;
  ~CudnnDescriptor();

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  template <typename T>
  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, const T& value) {
    set(attribute, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t attribute, const CudnnDescriptor& value);
  void set(cudnnBackendAttributeName_t attribute, std::span<const int64_t> values);
  // Number of elements written to `values`, which has room for `capacity`; with capacity 0: number of elements there.
  int64_t get_many(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t capacity,
                   void* values) const;
  int64_t get_int64(cudnnBackendAttributeName_t attribute) const;
  void finalize();

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  const char* name_ = "";
};

// A tensor of a graph. The descriptor belongs to the graph.
struct CudnnTensor {
  std::vector<int64_t> extents;
  const CudnnDescriptor* descriptor = nullptr;
};

class CudnnGraph {
 public:
  using Extents = std::vector<int64_t>;

  // A real tensor, aligned to 16 bytes. With `ragged`, a tensor of one offset per batch index and one more (in
  // elements), those take the place of the batch stride.
  CudnnTensor tensor(int64_t id, const Extents& extents, const Extents& strides, cudnnDataType_t type,
                     const CudnnTensor* ragged = nullptr);
  // One value in host memory, read when the plan is executed.
  CudnnTensor scalar(int64_t id, cudnnDataType_t type);
  // An intermediate, row-major or with strides.
  CudnnTensor intermediate(const Extents& extents, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  CudnnTensor intermediate(const Extents& extents, const Extents& strides, cudnnDataType_t type,
                           const CudnnTensor* ragged = nullptr);

  // result = a * b. rows, columns, depth: int32 tensors of the sizes per batch index where they are not the tensors'.
  void matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& result, const CudnnTensor* rows = nullptr,
              const CudnnTensor* columns = nullptr, const CudnnTensor* depth = nullptr);
  void pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& result, const CudnnTensor& x,
                 const CudnnTensor* b = nullptr, const CudnnTensor* choice = nullptr,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT, int64_t axis = -1);
  // x (operation) b and operation(x) in a fresh intermediate of x's extents.
  CudnnTensor binary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
                     cudnnDataType_t compute = CUDNN_DATA_FLOAT, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  CudnnTensor unary(cudnnPointwiseMode_t mode, const CudnnTensor& x);
  // The int32 index along an axis of every element of x.
  CudnnTensor index(const CudnnTensor& x, int64_t axis);
  // where(condition, x, otherwise).
  CudnnTensor select(const CudnnTensor& condition, const CudnnTensor& x, const CudnnTensor& otherwise);
  // Over the dimensions in which result has extent 1, or over groups of heads where it has fewer.
  void reduce(cudnnReduceTensorOp_t mode, const CudnnTensor& x, const CudnnTensor& result);
  // x with the last two dimensions exchanged, without moving anything. `strides` are those of x.
  CudnnTensor transpose(const CudnnTensor& x, const Extents& strides, cudnnDataType_t type,
                        const CudnnTensor* ragged = nullptr);

  // `handle` may be null: then a plan can be made for described devices, but not run.
  CudnnDescriptor finalize(cudnnHandle_t handle) const;
  // Ids of the real tensors and scalars.
  const std::vector<int64_t>& ids() const { return ids_; }

 private:
  CudnnTensor make(int64_t id, const Extents& extents, const Extents& strides, cudnnDataType_t type, bool is_virtual,
                   bool is_by_value, const CudnnTensor* ragged);
  void add(CudnnDescriptor operation, CudnnDescriptor detail);

  int64_t next_id_ = 1000;  // of intermediates
  std::vector<int64_t> ids_;
  std::vector<std::unique_ptr<CudnnDescriptor>> tensors_;
  std::vector<CudnnDescriptor> operations_;
  std::vector<CudnnDescriptor> details_;
};

// A graph that runs: the first configuration of cuDNN's heuristics for which a plan can be made. Building takes tenths
// of a second.
class CudnnPlan {
 public:
  // `device_properties`: null, or a descriptor of a device that is not here. Throws CudnnError when nothing runs the
  // graph.
  CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, const CudnnDescriptor* device_properties);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Enqueues. addresses[i] belongs to ids()[i]; those of scalars are host addresses. Workspace is aligned to 256 bytes.
  void execute(cudnnHandle_t handle, std::span<void* const> addresses, void* workspace) const;
  const std::vector<int64_t>& ids() const { return graph_.ids(); }

 private:
  bool choose(cudnnBackendHeurMode_t mode, const CudnnDescriptor* device_properties, std::string& errors);

  CudnnGraph graph_;
  CudnnDescriptor operation_graph_;
  CudnnDescriptor configuration_;
  CudnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace ithaca::cuda
