#include "train/backend_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string complaint(const std::string& backend, const std::string& compute_dtype) {
  try {
    static_cast<void>(choose_backend(backend, compute_dtype, false));
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "";
}

TEST(BackendChoice, CpuComputesInFloat32) {
  for (const char* dtype : {"auto", "float32"}) {
    const BackendChoice choice = choose_backend("cpu", dtype, false);
    EXPECT_EQ(choice.kind, BackendKind::cpu);
    EXPECT_EQ(choice.compute_dtype, DType::float32);
    EXPECT_EQ(choice.devices, 0);
  }
  EXPECT_THAT(complaint("cpu", "bfloat16"), HasSubstr("model.compute_dtype bfloat16: the CPU backend"));
  EXPECT_THAT(complaint("cpu", "float16"), HasSubstr("'float16' is not one of auto, float32, bfloat16"));
  EXPECT_THAT(complaint("tpu", "auto"), HasSubstr("'tpu' is not one of auto, cpu, cuda"));
}

TEST(BackendChoice, AutoTakesGpusWhereThereAreAny) {
  const BackendChoice choice = choose_backend("auto", "auto", true);
  EXPECT_TRUE(choice.deterministic);
  if (cuda_device_count() > 0) {
    EXPECT_EQ(choice.kind, BackendKind::cuda);
    EXPECT_EQ(choice.compute_dtype, DType::bfloat16);
    EXPECT_EQ(choice.devices, cuda_device_count());
    EXPECT_NE(choice.device_name, "");
  } else {
    EXPECT_EQ(choice.kind, BackendKind::cpu);
    EXPECT_EQ(choice.compute_dtype, DType::float32);
    EXPECT_THAT(complaint("cuda", "auto"), HasSubstr("no GPU can be used"));
  }
}

// ---- transports ----

TransportFacts gpu_facts(int ranks, int devices, bool are_peers, const std::string& nccl_absence = "") {
  return {BackendKind::cuda, ranks, devices, are_peers, nccl_absence};
}

// The transport with its reason, or what the choice ended with.
std::string transport_of(const std::string& transport, const TransportFacts& facts) {
  BackendChoice choice;
  choice.transport_reason = "stale";
  try {
    choose_transport(choice, "parallel.transport", transport, facts);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return std::string(transport_name(choice.transport)) + "; " + choice.transport_reason;
}

TEST(TransportChoice, AutoReadsPeersWhereTheGpusAllow) {
  EXPECT_EQ(transport_of("auto", gpu_facts(2, 2, true, "none")), "peer; peer: the GPUs read each other's memory");
  EXPECT_EQ(transport_of("auto", gpu_facts(8, 2, true)), "peer; peer: the GPUs read each other's memory");
  EXPECT_EQ(transport_of("auto", gpu_facts(2, 2, false)), "nccl; nccl: the GPUs cannot read each other's memory");
  // Nothing leaves the GPU.
  EXPECT_EQ(transport_of("auto", gpu_facts(1, 4, false)), "peer; ");
  EXPECT_EQ(transport_of("auto", gpu_facts(4, 1, false)), "peer; ");
  EXPECT_EQ(transport_of("auto", TransportFacts{}), "peer; ");
}

TEST(TransportChoice, AutoSaysWhatIsMissing) {
  EXPECT_THAT(
      transport_of("auto", gpu_facts(2, 2, false, "no libnccl")),
      AllOf(HasSubstr("parallel.transport auto"), HasSubstr("no libnccl"), HasSubstr("CUDA_VISIBLE_DEVICES=0")));
  EXPECT_THAT(transport_of("auto", gpu_facts(4, 2, false)), HasSubstr("one rank per GPU: at most 2, not 4"));
}

TEST(TransportChoice, WhatIsAskedForIsTakenOrRefused) {
  EXPECT_EQ(transport_of("nccl", gpu_facts(2, 2, true)), "nccl; ");
  EXPECT_EQ(transport_of("nccl", gpu_facts(1, 1, true)), "nccl; ");
  EXPECT_EQ(transport_of("peer", gpu_facts(2, 2, true)), "peer; ");
  EXPECT_EQ(transport_of("peer", gpu_facts(4, 1, false)), "peer; ");
  EXPECT_EQ(transport_of("peer", TransportFacts{}), "peer; ");
  EXPECT_THAT(transport_of("peer", gpu_facts(2, 2, false)),
              AllOf(HasSubstr("parallel.transport peer: these GPUs cannot read"), HasSubstr("nccl moves it")));
  EXPECT_THAT(transport_of("peer", gpu_facts(3, 2, false)), HasSubstr("with at most 2 ranks, nccl moves it"));
  EXPECT_THAT(
      transport_of("nccl", TransportFacts{}),
      AllOf(HasSubstr("parallel.transport nccl: NCCL moves the memory of GPUs"), HasSubstr("auto and peer work")));
  EXPECT_THAT(transport_of("nccl", gpu_facts(4, 2, true)),
              AllOf(HasSubstr("4 ranks are to share 2 GPUs"), HasSubstr("auto works")));
  EXPECT_THAT(transport_of("nccl", gpu_facts(2, 2, true, "built without NCCL")),
              AllOf(HasSubstr("built without NCCL"), HasSubstr("auto and peer work without it")));
  EXPECT_THAT(transport_of("mpi", gpu_facts(2, 2, true)), HasSubstr("'mpi' is not one of auto, peer, nccl"));
}

TEST(BackendChoice, RanksAreDealtContiguouslyAndEvenlyToDevices) {
  EXPECT_EQ(device_of_rank(1, 2, 8).device, 1);
  EXPECT_EQ(device_of_rank(1, 2, 8).ranks_on_device, 1);
  for (int devices = 1; devices <= 8; ++devices) {
    for (int ranks = 1; ranks <= 20; ++ranks) {
      std::map<int, int> counts;
      int last = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const DevicePlace place = device_of_rank(rank, ranks, devices);
        ASSERT_LT(place.device, devices);
        EXPECT_GE(place.device, last);
        last = place.device;
        ++counts[place.device];
      }
      EXPECT_EQ(static_cast<int>(counts.size()), std::min(ranks, devices));
      for (int rank = 0; rank < ranks; ++rank) {
        const DevicePlace place = device_of_rank(rank, ranks, devices);
        EXPECT_EQ(place.ranks_on_device, counts.at(place.device)) << ranks << " ranks on " << devices;
        EXPECT_LE(place.ranks_on_device, (ranks - 1) / devices + 1);
      }
    }
  }
}

}  // namespace
}  // namespace ithaca
