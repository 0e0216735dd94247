#include "backend/kernel_name.h"

#include <gtest/gtest.h>

#include <string>

namespace ithaca {
namespace {

// Symbols as c++filt reads them.
TEST(KernelName, IsWhatPeopleWouldCallIt) {
  // void ithaca::cuda::(anonymous namespace)::fill_kernel<float>(float*, long, float)
  EXPECT_EQ(kernel_name("_ZN6ithaca4cuda12_GLOBAL__N_111fill_kernelIfEEvPT_lS3_"), "fill_kernel<float>");
  // ithaca::cuda::scale(float*, long)
  EXPECT_EQ(kernel_name("_ZN6ithaca4cuda5scaleEPfl"), "scale");
  // void other::apply<void (*)(int)>(void (*)(int))
  EXPECT_EQ(kernel_name("_ZN5other5applyIPFviEEEvT_"), "other::apply<void (*)(int)>");
  // Libraries' kernels have plain names.
  EXPECT_EQ(kernel_name("nvjet_tst_128x256_64x4_2x1_v_bz_TNT"), "nvjet_tst_128x256_64x4_2x1_v_bz_TNT");
  EXPECT_EQ(kernel_name(""), "");
}

TEST(KernelName, HasAnEnd) {
  const std::string name = kernel_name(std::string(5000, 'k').c_str());
  EXPECT_EQ(name.size(), 203u);
}

}  // namespace
}  // namespace ithaca
