#include "train/backend_choice.h"

#include <fmt/format.h>

#include "backend/cpu/address_space.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace ithaca {

std::string_view backend_kind_name(BackendKind kind) {
  return kind == BackendKind::cpu ? "cpu" : "cuda";
}

BackendChoice choose_backend(const std::string& backend, const std::string& compute_dtype, bool deterministic) {
  BackendChoice choice;
  choice.deterministic = deterministic;
  const int devices = backend == "cpu" ? 0 : cuda_device_count();
  if (backend == "cuda" && devices == 0) {
    throw ConfigurationError(fmt::format(
        "train.backend cuda: no GPU can be used ({}); train.backend: cpu works everywhere", cuda_absence_reason()));
  }
  if (backend != "auto" && backend != "cpu" && backend != "cuda") {
    throw ConfigurationError(fmt::format("train.backend: '{}' is not one of auto, cpu, cuda", backend));
  }
  if (devices > 0) {
    choice.kind = BackendKind::cuda;
    choice.devices = devices;
    choice.device_name = cuda_device_info(0).name;
  }

  const bool on_cuda = choice.kind == BackendKind::cuda;
  if (compute_dtype == "auto") {
    choice.compute_dtype = on_cuda ? DType::bfloat16 : DType::float32;
  } else if (compute_dtype == "float32") {
    choice.compute_dtype = DType::float32;
  } else if (compute_dtype == "bfloat16") {
    if (!on_cuda) {
      throw ConfigurationError(
          "model.compute_dtype bfloat16: the CPU backend computes in float32; leave the option out, or compute on a "
          "GPU with train.backend: cuda");
    }
    choice.compute_dtype = DType::bfloat16;
  } else {
    throw ConfigurationError(
        fmt::format("model.compute_dtype: '{}' is not one of auto, float32, bfloat16", compute_dtype));
  }
  return choice;
}

DevicePlace device_of_rank(int rank, int ranks, int devices) {
  require(devices >= 1 && rank >= 0 && rank < ranks, fmt::format("rank {} of {} on {} GPUs", rank, ranks, devices));
  if (ranks <= devices) return {rank, 1};
  // Device d has the ranks r with r * devices / ranks == d.
  const auto device = static_cast<int>(int64_t{rank} * devices / ranks);
  DevicePlace place = {device, 0};
  for (int other = 0; other < ranks; ++other) {
    if (static_cast<int>(int64_t{other} * devices / ranks) == device) ++place.ranks_on_device;
  }
  return place;
}

std::unique_ptr<Backend> make_backend(const BackendChoice& choice, int rank, int ranks, int64_t memory_limit_bytes) {
  if (choice.kind == BackendKind::cpu) {
    CpuBackendOptions options;
    options.memory_limit_bytes = memory_limit_bytes > 0 ? memory_limit_bytes : cpu::physical_memory_bytes() / ranks;
    return make_cpu_backend(options);
  }
  const DevicePlace place = device_of_rank(rank, ranks, choice.devices);
  CudaBackendOptions options;
  options.device = place.device;
  options.ranks_on_device = place.ranks_on_device;
  options.memory_limit_bytes = memory_limit_bytes;
  options.compute_dtype = choice.compute_dtype;
  options.deterministic = choice.deterministic;
  return make_cuda_backend(options);
}

}  // namespace ithaca
