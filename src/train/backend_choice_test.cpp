#include "train/backend_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace ithaca {
namespace {

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
