#include "backend/cuda/cudnn_graph.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace ithaca::cuda {

void require_cudnn(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 2048> message{};
  cudnnGetLastErrorString(message.data(), message.size());
  throw CudnnError(fmt::format("cuDNN: {} failed: {} ({}). {}", what, cudnnGetErrorString(status),
                               static_cast<int>(status), message.data()));
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* name) : name_(name) {
  require_cudnn(cudnnBackendCreateDescriptor(type, &descriptor_), fmt::format("creating the {}", name));
}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(name_, other.name_);
  return *this;
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t count,
                          const void* values) {
  const cudnnStatus_t status = cudnnBackendSetAttribute(descriptor_, attribute, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS) {
    require_cudnn(status, fmt::format("setting attribute {} of the {}", static_cast<int>(attribute), name_));
  }
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t attribute, const CudnnDescriptor& value) {
  set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t attribute, std::span<const int64_t> values) {
  set(attribute, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
}

int64_t CudnnDescriptor::get_many(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                                  int64_t capacity, void* values) const {
  int64_t count = 0;
  require_cudnn(cudnnBackendGetAttribute(descriptor_, attribute, type, capacity, &count, values),
                fmt::format("reading attribute {} of the {}", static_cast<int>(attribute), name_));
  return count;
}

int64_t CudnnDescriptor::get_int64(cudnnBackendAttributeName_t attribute) const {
  int64_t value = 0;
  get_many(attribute, CUDNN_TYPE_INT64, 1, &value);
  return value;
}

void CudnnDescriptor::finalize() {
  require_cudnn(cudnnBackendFinalize(descriptor_), fmt::format("finalizing the {}", name_));
}

CudnnTensor CudnnGraph::tensor(int64_t id, const Extents& extents, const Extents& strides, cudnnDataType_t type,
                               const CudnnTensor* ragged) {
  ids_.push_back(id);
  return make(id, extents, strides, type, false, false, ragged);
}

CudnnTensor CudnnGraph::scalar(int64_t id, cudnnDataType_t type) {
  ids_.push_back(id);
  return make(id, {1, 1, 1, 1}, {1, 1, 1, 1}, type, false, true, nullptr);
}

CudnnTensor CudnnGraph::intermediate(const Extents& extents, cudnnDataType_t type) {
  Extents strides(extents.size(), 1);
  for (size_t i = extents.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * extents[i];
  return intermediate(extents, strides, type);
}

CudnnTensor CudnnGraph::intermediate(const Extents& extents, const Extents& strides, cudnnDataType_t type,
                                     const CudnnTensor* ragged) {
  return make(next_id_++, extents, strides, type, true, false, ragged);
}

CudnnTensor CudnnGraph::make(int64_t id, const Extents& extents, const Extents& strides, cudnnDataType_t type,
                             bool is_virtual, bool is_by_value, const CudnnTensor* ragged) {
  constexpr int64_t kAlignment = 16;
  auto descriptor = std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  descriptor->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  descriptor->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  descriptor->set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents);
  descriptor->set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  descriptor->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  if (is_virtual) descriptor->set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
  if (is_by_value) descriptor->set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  if (ragged != nullptr) descriptor->set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, *ragged->descriptor);
  descriptor->finalize();
  tensors_.push_back(std::move(descriptor));
  return {extents, tensors_.back().get()};
}

void CudnnGraph::add(CudnnDescriptor operation, CudnnDescriptor detail) {
  operation.finalize();
  operations_.push_back(std::move(operation));
  details_.push_back(std::move(detail));
}

void CudnnGraph::matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& result, const CudnnTensor* rows,
                        const CudnnTensor* columns, const CudnnTensor* depth) {
  CudnnDescriptor detail(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matrix product");
  detail.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  detail.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matrix product operation");
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *result.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, detail);
  if (rows != nullptr) operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, *rows->descriptor);
  if (columns != nullptr) operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, *columns->descriptor);
  if (depth != nullptr) operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, *depth->descriptor);
  add(std::move(operation), std::move(detail));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& result, const CudnnTensor& x,
                           const CudnnTensor* b, const CudnnTensor* choice, cudnnDataType_t compute, int64_t axis) {
  CudnnDescriptor detail(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise function");
  detail.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  detail.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) detail.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  detail.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation");
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *result.descriptor);
  if (b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->descriptor);
  if (choice != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *choice->descriptor);
  add(std::move(operation), std::move(detail));
}

CudnnTensor CudnnGraph::binary(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
                               cudnnDataType_t compute, cudnnDataType_t type) {
  CudnnTensor result = intermediate(x.extents, type);
  pointwise(mode, result, x, &b, nullptr, compute);
  return result;
}

CudnnTensor CudnnGraph::unary(cudnnPointwiseMode_t mode, const CudnnTensor& x) {
  CudnnTensor result = intermediate(x.extents);
  pointwise(mode, result, x);
  return result;
}

CudnnTensor CudnnGraph::index(const CudnnTensor& x, int64_t axis) {
  CudnnTensor result = intermediate(x.extents, CUDNN_DATA_INT32);
  pointwise(CUDNN_POINTWISE_GEN_INDEX, result, x, nullptr, nullptr, CUDNN_DATA_FLOAT, axis);
  return result;
}

CudnnTensor CudnnGraph::select(const CudnnTensor& condition, const CudnnTensor& x, const CudnnTensor& otherwise) {
  CudnnTensor result = intermediate(x.extents);
  pointwise(CUDNN_POINTWISE_BINARY_SELECT, result, x, &otherwise, &condition);
  return result;
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t mode, const CudnnTensor& x, const CudnnTensor& result) {
  CudnnDescriptor detail(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction");
  detail.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  detail.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
  detail.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction operation");
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *result.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, detail);
  add(std::move(operation), std::move(detail));
}

CudnnTensor CudnnGraph::transpose(const CudnnTensor& x, const Extents& strides, cudnnDataType_t type,
                                  const CudnnTensor* ragged) {
  const auto swapped = [](Extents values) {
    std::swap(values[values.size() - 2], values[values.size() - 1]);
    return values;
  };
  CudnnTensor result = intermediate(swapped(x.extents), swapped(strides), type, ragged);
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape operation");
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *result.descriptor);
  add(std::move(operation), CudnnDescriptor());
  return result;
}

CudnnDescriptor CudnnGraph::finalize(cudnnHandle_t handle) const {
  std::vector<cudnnBackendDescriptor_t> operations;
  operations.reserve(operations_.size());
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.get());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations.size()),
            operations.data());
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.finalize();
  return graph;
}

CudnnPlan::CudnnPlan(CudnnGraph graph, cudnnHandle_t handle, const CudnnDescriptor* device_properties)
    : graph_(std::move(graph)), operation_graph_(graph_.finalize(handle)) {
  std::string errors;
  if (!choose(CUDNN_HEUR_MODE_A, device_properties, errors) &&
      !choose(CUDNN_HEUR_MODE_FALLBACK, device_properties, errors)) {
    throw CudnnError("cuDNN: no engine runs this graph." + errors);
  }
  workspace_bytes_ = plan_.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
}

bool CudnnPlan::choose(cudnnBackendHeurMode_t mode, const CudnnDescriptor* device_properties, std::string& errors) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "engine heuristics");
  std::vector<CudnnDescriptor> configurations;
  try {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph_);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (device_properties != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device_properties);
    heuristics.finalize();
    const int64_t count = heuristics.get_many(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    std::vector<cudnnBackendDescriptor_t> descriptors;
    for (int64_t i = 0; i < count; ++i) {
      configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
      descriptors.push_back(configurations.back().get());
    }
    if (count > 0) {
      const int64_t found =
          heuristics.get_many(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, descriptors.data());
      configurations.resize(static_cast<size_t>(found));
    }
  } catch (const CudnnError& error) {
    errors += std::string(" ") + error.what();
  }
  for (CudnnDescriptor& configuration : configurations) {
    try {
      CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      plan.finalize();
      plan_ = std::move(plan);
      configuration_ = std::move(configuration);
      return true;
    } catch (const CudnnError& error) {
      errors += std::string(" ") + error.what();
    }
  }
  return false;
}

void CudnnPlan::execute(cudnnHandle_t handle, std::span<void* const> addresses, void* workspace) const {
  require(addresses.size() == ids().size(), "cuDNN plan: one address for each id");
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(addresses.size()),
           addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  require_cudnn(cudnnBackendExecute(handle, plan_.get(), pack.get()), "executing an attention plan");
}

}  // namespace ithaca::cuda
