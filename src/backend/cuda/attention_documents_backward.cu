// Backward attention of short documents on the tensor cores: lists of tasks that share neither queries nor keys. The
// kernel around attention_documents.cuh, for devices of compute capability 9.0.
#include <algorithm>

#include "backend/cuda/attention_documents.cuh"

namespace ithaca::cuda {
namespace {

template <int kSize, typename D>
__global__ void __launch_bounds__(kDocumentThreads, 1)
    document_gradient_kernel(const __grid_constant__ DocumentArguments arguments,
                             const __grid_constant__ GradientView<D> dquery,
                             const __grid_constant__ GradientView<D> dkey,
                             const __grid_constant__ GradientView<D> dvalue) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 shared[];
  document_gradients<kSize, D>(arguments, dquery, dkey, dvalue, shared);
#endif
}

// Calls function(integral constant) with the elements that heads have room for.
template <typename Function>
void with_document_size(const AttentionBackward& arguments, const Function& function) {
  if (std::max(arguments.query.extent(2), arguments.value.extent(2)) <= 64) {
    function(std::integral_constant<int, 64>{});
  } else {
    function(std::integral_constant<int, 128>{});
  }
}

// Of the current device. Warpgroup products are there on 9.0 and nowhere else, and only in code for 9.0a.
bool has_warpgroup_products() {
  int device = 0;
  int major = 0;
  int minor = 0;
  ITHACA_CUDA_CHECK(cudaGetDevice(&device));
  ITHACA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  ITHACA_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes attributes = {};
  ITHACA_CUDA_CHECK(cudaFuncGetAttributes(&attributes, document_gradient_kernel<128, float>));
  return attributes.numRegs > 128;  // in code for other architectures the kernel is empty
}

template <typename D>
GradientView<D> gradient_view(const Tensor& tensor, bool adds) {
  return {heads_view<D>(tensor), adds};
}

}  // namespace

bool takes_documents(const AttentionBackward& arguments) {
  const Tensor& dquery = arguments.dquery;
  const auto is_input = [](const Tensor& tensor) { return is_mma_input(tensor, 128); };
  // Rows of words of 8 bytes.
  const auto is_output = [&](const Tensor& tensor) {
    return tensor.dtype == dquery.dtype &&
           (tensor.dtype == DType::float32 ? is_pair_output(tensor) : rows_are_vectors(tensor, 8));
  };
  return is_input(arguments.query) && is_input(arguments.key) && is_input(arguments.value) &&
         is_input(arguments.output) && is_input(arguments.doutput) && is_output(dquery) && is_output(arguments.dkey) &&
         is_output(arguments.dvalue) && has_warpgroup_products();
}

int64_t document_blocks(const AttentionBackward& arguments, int64_t task_count) {
  int64_t blocks = 0;
  with_document_size(arguments, [&](auto padded) {
    constexpr int kSize = decltype(padded)::value;
    with_float_type(arguments.dquery.dtype, [&](auto type) {
      const auto kernel = document_gradient_kernel<kSize, decltype(type)>;
      constexpr int kBytes = DocumentMemory<kSize>::kAllocatedBytes;
      allow_shared_memory(kernel, kBytes);
      blocks = resident_blocks(kernel, kDocumentThreads, kBytes);
    });
  });
  return std::min(blocks, task_count * arguments.key.extent(1));
}

int64_t document_workspace_bytes(const AttentionBackward& arguments, int64_t longest, int64_t blocks) {
  int64_t size = 0;
  with_document_size(arguments, [&](auto padded) { size = padded; });
  const int64_t group = arguments.query.extent(1) / arguments.key.extent(1);
  const int64_t rows = divide_up(longest, kDocumentTile) * kDocumentTile;
  return blocks * group * rows * size * static_cast<int64_t>(sizeof(float));
}

void document_attention_backward(const AttentionBackward& arguments, const DocumentTasks& documents, float* sums,
                                 int* queue, void* workspace, int64_t blocks, cudaStream_t stream) {
  ITHACA_CUDA_CHECK(cudaMemsetAsync(queue, 0, sizeof(int), stream));
  const int64_t query_heads = arguments.query.extent(1);
  const int64_t key_heads = arguments.key.extent(1);
  const DocumentArguments call = {heads_view<const BFloat>(arguments.query),
                                  heads_view<const BFloat>(arguments.key),
                                  heads_view<const BFloat>(arguments.value),
                                  heads_view<const BFloat>(arguments.output),
                                  heads_view<const BFloat>(arguments.doutput),
                                  rows_view(arguments.log_sum_exp),
                                  {sums, query_heads, 1},
                                  documents.tasks,
                                  documents.count,
                                  key_heads,
                                  static_cast<int>(query_heads / key_heads),
                                  arguments.scale,
                                  queue,
                                  static_cast<float4*>(workspace),
                                  divide_up(documents.longest, kDocumentTile)};
  with_document_size(arguments, [&](auto padded) {
    constexpr int kSize = decltype(padded)::value;
    with_float_type(arguments.dquery.dtype, [&](auto type) {
      using D = decltype(type);
      document_gradient_kernel<kSize, D>
          <<<static_cast<unsigned>(blocks), kDocumentThreads, DocumentMemory<kSize>::kAllocatedBytes, stream>>>(
              call, gradient_view<D>(arguments.dquery, !arguments.overwrites_dquery),
              gradient_view<D>(arguments.dkey, !arguments.overwrites_dkey_dvalue),
              gradient_view<D>(arguments.dvalue, !arguments.overwrites_dkey_dvalue));
      ITHACA_CUDA_CHECK_LAUNCH("document_gradient_kernel");
    });
  });
}

}  // namespace ithaca::cuda
