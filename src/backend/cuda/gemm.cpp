#include "backend/cuda/gemm.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "base/random.h"

namespace ithaca::cuda {
namespace {

// What a product may use beside its arguments; how much it does is the library's choice.
constexpr int64_t kMostWorkspaceBytes = int64_t{32} << 20;

void check_cublas(cublasStatus_t status, const char* call, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("CUDA: {} failed with {}, at src/backend/cuda/gemm.cpp:{}", call,
                              cublasLtGetStatusName(status), line));
}
#define ITHACA_CUBLAS_CHECK(call) check_cublas((call), #call, __LINE__)

// Owners of the library's descriptions.
struct Destroy {
  void operator()(cublasLtMatmulDesc_t value) const { static_cast<void>(cublasLtMatmulDescDestroy(value)); }
  void operator()(cublasLtMatrixLayout_t value) const { static_cast<void>(cublasLtMatrixLayoutDestroy(value)); }
  void operator()(cublasLtMatmulPreference_t value) const { static_cast<void>(cublasLtMatmulPreferenceDestroy(value)); }
  void operator()(cublasLtHandle_t value) const { static_cast<void>(cublasLtDestroy(value)); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

// A row-major matrix [rows, columns] is a column-major one [columns, rows] with the same distance between its lines.
struct Lines {
  int64_t count = 0;     // rows
  int64_t length = 0;    // columns
  int64_t distance = 0;  // elements from row to row

  static Lines of(const Tensor& tensor) {
    const int64_t rows = tensor.extent(0);
    const int64_t columns = tensor.extent(1);
    return {rows, columns, rows > 1 ? tensor.stride(0) : columns};  // a single row's stride means nothing
  }
};

Owned<cublasLtMatrixLayout_t> make_layout(DType dtype, const Lines& lines) {
  cublasLtMatrixLayout_t layout = nullptr;
  ITHACA_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(lines.length),
                                                 static_cast<uint64_t>(lines.count), lines.distance));
  return Owned<cublasLtMatrixLayout_t>(layout);
}

// The largest power of two up to 256 that divides the address.
uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

template <typename Value>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  ITHACA_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)));
}
template <typename Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  ITHACA_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

// Everything that the choice of algorithm may depend on.
struct Key {
  std::array<int64_t, 16> values{};
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (const int64_t value : key.values) hash = mix_bits(hash ^ static_cast<uint64_t>(value));
    return hash;
  }
};

// A product as cuBLASLt has it: c^T = op(b)^T op(a)^T in column-major terms.
struct Product {
  Owned<cublasLtMatmulDesc_t> description;
  Owned<cublasLtMatrixLayout_t> b, a, c;
  cublasLtMatmulAlgo_t algorithm{};
  int64_t workspace_bytes = 0;
  bool is_refused = false;
};

}  // namespace

class CudaGemm::Implementation {
 public:
  explicit Implementation(WorkspaceProvider workspace) : workspace_(std::move(workspace)) {
    cublasLtHandle_t handle = nullptr;
    ITHACA_CUBLAS_CHECK(cublasLtCreate(&handle));
    handle_.reset(handle);
  }

  void run(const Gemm& arguments, cudaStream_t stream) {
    const auto& [a, b, c, transpose_a, transpose_b, alpha, beta, bias] = arguments;
    if (c.element_count() == 0) return;
    if (a.element_count() == 0) {  // nothing is added: k is 0
      scale_rows(c, beta, stream);
      if (!bias.is_absent()) add_bias(bias, c, stream);
      return;
    }
    // The library's epilogue takes a bias of c's type, and reads it in words.
    const bool fused_bias = !bias.is_absent() && bias.dtype == c.dtype && alignment_of(bias.data) >= 16;
    Product& product = product_for(arguments, fused_bias);
    if (product.is_refused) {
      if (!fused_bias) {
        plain_gemm(arguments, stream);
        return;
      }
      Gemm without_bias = arguments;
      without_bias.bias = {};
      run(without_bias, stream);
      add_bias(bias, c, stream);
      return;
    }
    if (fused_bias) {
      const void* const data = bias.data;
      set(product.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, data);
    }
    std::shared_ptr<void> workspace;
    if (product.workspace_bytes > 0) workspace = workspace_("gemm.workspace", product.workspace_bytes, stream);
    ITHACA_CUBLAS_CHECK(cublasLtMatmul(handle_.get(), product.description.get(), &alpha, b.data, product.b.get(),
                                       a.data, product.a.get(), &beta, c.data, product.c.get(), c.data, product.c.get(),
                                       &product.algorithm, workspace.get(),
                                       static_cast<size_t>(product.workspace_bytes), stream));
    if (!bias.is_absent() && !fused_bias) add_bias(bias, c, stream);
  }

  int64_t refused_shapes() const {
    return std::count_if(products_.begin(), products_.end(), [](const auto& entry) { return entry.second.is_refused; });
  }

 private:
  Product& product_for(const Gemm& arguments, bool fused_bias) {
    const auto& [a, b, c, transpose_a, transpose_b, alpha, beta, bias] = arguments;
    const Lines a_lines = Lines::of(a);
    const Lines b_lines = Lines::of(b);
    const Lines c_lines = Lines::of(c);
    const uint32_t bias_alignment = fused_bias ? alignment_of(bias.data) : 0;
    const Key key{{a_lines.count, a_lines.length, a_lines.distance, b_lines.count, b_lines.length, b_lines.distance,
                   c_lines.distance, static_cast<int64_t>(a.dtype), static_cast<int64_t>(c.dtype),
                   static_cast<int64_t>(transpose_a) + 2 * static_cast<int64_t>(transpose_b),
                   static_cast<int64_t>(beta == 0.0f), static_cast<int64_t>(bias_alignment), alignment_of(a.data),
                   alignment_of(b.data), alignment_of(c.data)}};
    const auto found = products_.find(key);
    if (found != products_.end()) return found->second;
    return products_.emplace(key, choose(arguments, fused_bias, a_lines, b_lines, c_lines)).first->second;
  }

  Product choose(const Gemm& arguments, bool fused_bias, const Lines& a_lines, const Lines& b_lines,
                 const Lines& c_lines) {
    Product product;
    cublasLtMatmulDesc_t description = nullptr;
    ITHACA_CUBLAS_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    product.description.reset(description);
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, arguments.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, arguments.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (fused_bias) {
      const void* const data = arguments.bias.data;
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(arguments.bias.dtype));
      set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, data);
    }
    product.b = make_layout(arguments.b.dtype, b_lines);
    product.a = make_layout(arguments.a.dtype, a_lines);
    product.c = make_layout(arguments.c.dtype, c_lines);

    cublasLtMatmulPreference_t preference = nullptr;
    ITHACA_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const Owned<cublasLtMatmulPreference_t> owned(preference);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kMostWorkspaceBytes));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(arguments.b.data));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(arguments.a.data));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(arguments.c.data));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(arguments.c.data));
    cublasLtMatmulHeuristicResult_t result{};
    int results = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), description, product.b.get(), product.a.get(), product.c.get(),
                                       product.c.get(), preference, 1, &result, &results);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
        (status == CUBLAS_STATUS_SUCCESS && (results == 0 || result.state != CUBLAS_STATUS_SUCCESS))) {
      product.is_refused = true;
      return product;
    }
    check_cublas(status, "cublasLtMatmulAlgoGetHeuristic", __LINE__);
    product.algorithm = result.algo;
    product.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
    return product;
  }

  WorkspaceProvider workspace_;
  Owned<cublasLtHandle_t> handle_;
  std::unordered_map<Key, Product, KeyHash> products_;
};

CudaGemm::CudaGemm(WorkspaceProvider workspace)
    : implementation_(std::make_unique<Implementation>(std::move(workspace))) {}
CudaGemm::~CudaGemm() = default;

void CudaGemm::run(const Gemm& arguments, cudaStream_t stream) {
  implementation_->run(arguments, stream);
}

int64_t CudaGemm::refused_shapes() const {
  return implementation_->refused_shapes();
}

}  // namespace ithaca::cuda
