#include "train/backend_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cpu/address_space.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace ithaca {

std::string_view backend_kind_name(BackendKind kind) {
  return kind == BackendKind::cpu ? "cpu" : "cuda";
}

int64_t preferred_attention_rows(BackendKind kind) {
  return kind == BackendKind::cpu ? kCpuAttentionRows : kCudaAttentionRows;
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

void choose_transport(BackendChoice& choice, const char* option, const std::string& transport,
                      const TransportFacts& facts) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigurationError(fmt::format("{} {}: {}", option, transport, why));
  };
  const bool has_nccl = facts.nccl_absence.empty();
  const bool shares_devices = facts.ranks > facts.devices;
  const bool spans_devices = facts.backend == BackendKind::cuda && facts.ranks > 1 && facts.devices > 1;
  choice.transport_reason.clear();
  if (transport == "peer") {
    choice.transport = Transport::peer;
    if (!spans_devices || facts.are_peers) return;
    refuse(fmt::format("these GPUs cannot read each other's memory; {}",
                       shares_devices ? fmt::format("with at most {} ranks, nccl moves it", facts.devices)
                       : has_nccl     ? "nccl moves it"
                                      : facts.nccl_absence));
  }
  if (transport == "nccl") {
    choice.transport = Transport::nccl;
    if (facts.backend == BackendKind::cpu) {
      refuse("NCCL moves the memory of GPUs, and the CPU backend's ranks read each other's; auto and peer work");
    }
    if (shares_devices) {
      refuse(fmt::format("NCCL takes one rank per GPU, but {} ranks are to share {} GPU{}; auto works, or fewer ranks",
                         facts.ranks, facts.devices, facts.devices == 1 ? "" : "s"));
    }
    if (!has_nccl) refuse(facts.nccl_absence + (facts.are_peers ? "; auto and peer work without it" : ""));
    return;
  }
  if (transport != "auto") {
    throw ConfigurationError(fmt::format("{}: '{}' is not one of auto, peer, nccl", option, transport));
  }
  choice.transport = Transport::peer;
  if (!spans_devices) return;
  if (facts.are_peers) {
    choice.transport_reason = "peer: the GPUs read each other's memory";
    return;
  }
  if (shares_devices || !has_nccl) {
    refuse(fmt::format(
        "these GPUs cannot read each other's memory, and NCCL {}; CUDA_VISIBLE_DEVICES=0 lets all ranks share one GPU",
        shares_devices ? fmt::format("takes one rank per GPU: at most {}, not {}", facts.devices, facts.ranks)
                       : "is not there: " + facts.nccl_absence));
  }
  choice.transport = Transport::nccl;
  choice.transport_reason = "nccl: the GPUs cannot read each other's memory";
}

void settle_transport(BackendChoice& choice, const char* option, const std::string& transport, int ranks) {
  TransportFacts facts;
  facts.backend = choice.kind;
  facts.ranks = ranks;
  facts.devices = choice.devices;
  facts.are_peers = choice.kind == BackendKind::cuda && cuda_devices_are_peers(std::min(ranks, choice.devices));
  // Loaded only where it is asked for, or where nothing else works.
  if (transport == "nccl" || !facts.are_peers) facts.nccl_absence = cuda_nccl_absence_reason();
  choose_transport(choice, option, transport, facts);
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
  options.devices_in_use = std::min(ranks, choice.devices);
  options.memory_limit_bytes = memory_limit_bytes;
  options.compute_dtype = choice.compute_dtype;
  options.deterministic = choice.deterministic;
  return make_cuda_backend(options);
}

}  // namespace ithaca
