// The order of tokens by their ids against std::stable_sort.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_testing.h"
#include "backend/cuda/token_sort.h"

namespace ithaca {
namespace {

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceBytes = std::unique_ptr<void, FreeDevice>;

// To the byte, so that memcheck sees what lies beyond.
DeviceBytes device_bytes(int64_t bytes) {
  void* memory = nullptr;
  ITHACA_CUDA_CHECK(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  return DeviceBytes(memory);
}

std::vector<uint32_t> download(const uint32_t* from, int64_t count) {
  std::vector<uint32_t> values(static_cast<size_t>(count));
  if (count > 0) {
    ITHACA_CUDA_CHECK(cudaMemcpy(values.data(), from, values.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
  }
  return values;
}

class CudaTokenSort : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU here: " << cuda_absence_reason();
  }

  // `token_ids`, `stride` elements apart on the device.
  static void compare(const std::vector<int64_t>& token_ids, int64_t vocabulary, int64_t stride = 1) {
    const auto count = static_cast<int64_t>(token_ids.size());
    SCOPED_TRACE(std::to_string(count) + " tokens, vocabulary " + std::to_string(vocabulary));
    std::vector<int64_t> spread(static_cast<size_t>(count * stride), -1);
    std::vector<uint32_t> ids;
    for (size_t i = 0; i < token_ids.size(); ++i) {
      spread[i * static_cast<size_t>(stride)] = token_ids[i];
      const bool is_valid = token_ids[i] >= 0 && token_ids[i] < vocabulary;
      ids.push_back(static_cast<uint32_t>(is_valid ? token_ids[i] : vocabulary));
    }
    const DeviceBytes on_device = device_bytes(count * stride * int64_t{sizeof(int64_t)});
    if (count > 0) {
      ITHACA_CUDA_CHECK(
          cudaMemcpy(on_device.get(), spread.data(), spread.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
    }
    Tensor view = Tensor::contiguous(on_device.get(), DType::int64, {count});
    view.strides[0] = stride;
    const int64_t bytes = cuda::token_sort_workspace_bytes(count, vocabulary);
    const DeviceBytes workspace = device_bytes(bytes);
    ITHACA_CUDA_CHECK(cudaMemset(workspace.get(), 0xa5, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
    const cuda::SortedTokens sorted = cuda::sort_tokens(view, vocabulary, workspace.get(), nullptr);

    std::vector<uint32_t> tokens(ids.size());
    std::iota(tokens.begin(), tokens.end(), 0U);
    std::stable_sort(tokens.begin(), tokens.end(), [&](uint32_t a, uint32_t b) { return ids[a] < ids[b]; });
    EXPECT_TRUE(download(sorted.tokens, count) == tokens);
    std::sort(ids.begin(), ids.end());
    EXPECT_TRUE(download(sorted.ids, count) == ids);
  }

  static std::vector<int64_t> ids_of(int64_t count, const std::function<int64_t(double, int64_t)>& id) {
    const RandomStream random(3, "ids");
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(id(random.uniform(static_cast<uint64_t>(i)), i));
    return ids;
  }
};

// Around a block's tile; more tiles than blocks, the last of them not full; one digit, two, three.
TEST_F(CudaTokenSort, OfAnyNumberOfTokensAndIds) {
  for (const int64_t count : {0, 1, 7, 511, 512, 513, 5000, 70'001}) {
    for (const int64_t vocabulary : {1, 511, 512, 151'936, 262'144}) {
      const auto top = static_cast<double>(vocabulary);
      compare(ids_of(count, [&](double place, int64_t) { return static_cast<int64_t>(place * top); }), vocabulary);
    }
  }
}

TEST_F(CudaTokenSort, OfFrequentAndRareIds) {
  constexpr int64_t kVocabulary = 151'936;
  constexpr int64_t kCount = 20'000;
  compare(std::vector<int64_t>(kCount, kVocabulary - 1), kVocabulary);
  compare(ids_of(kCount, [](double, int64_t i) { return i % 2 == 0 ? 9 : 9 + (i % 7) * 512; }), kVocabulary);
  compare(ids_of(kCount, [](double place, int64_t) { return static_cast<int64_t>(std::pow(151'935.0, place)); }),
          kVocabulary);
  compare(ids_of(kCount, [](double, int64_t i) { return kVocabulary - 1 - i; }), kVocabulary, 3);
}

TEST_F(CudaTokenSort, IdsOutsideOfTheVocabularyComeLast) {
  using Limits = std::numeric_limits<int64_t>;
  for (const int64_t vocabulary : {int64_t{3}, int64_t{511}, int64_t{4'294'967'294}}) {
    compare({0, -1, vocabulary, 2, Limits::max(), Limits::min(), 1, vocabulary - 1, int64_t{1} << 32, 2}, vocabulary);
  }
}

TEST_F(CudaTokenSort, MoreThanNumbersCanSayIsRefused) {
  EXPECT_THROW(cuda::token_sort_workspace_bytes(int64_t{1} << 31, 8), Error);
  EXPECT_THROW(cuda::token_sort_workspace_bytes(8, int64_t{1} << 32), Error);
}

}  // namespace
}  // namespace ithaca
