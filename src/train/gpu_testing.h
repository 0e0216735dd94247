// What the GPU tests of training share: a model of real attention shapes, and the backend choice.
#pragma once

#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "model/description.h"
#include "train/backend_choice.h"
#include "train/exactness_testing.h"

namespace ithaca::testing {

// All GPUs of this machine.
inline BackendChoice cuda_choice(DType compute_dtype, bool deterministic = false) {
  BackendChoice choice;
  choice.kind = BackendKind::cuda;
  choice.compute_dtype = compute_dtype;
  choice.devices = cuda_device_count();
  choice.deterministic = deterministic;
  return choice;
}

// Skips without a GPU. The model has heads that the fused attention takes, and more of them than a fixture's.
class GpuModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_absence_reason();
    model_ = random_model(8, 2, 0);
    model_.head_size = 64;
    model_.hidden_size = 256;
    model_.intermediate_size = 512;
  }

  ModelDescription model_;
};

}  // namespace ithaca::testing
