// One program for machines with a GPU and nothing else: all GPU tests and benchmarks.
//
//   ithaca_gpu [GoogleTest options]          the tests
//   ithaca_gpu bench [memory] [gemm]         operations beside their limits
//   ithaca_gpu bench-attention [dense] [documents] [ring]
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <span>

namespace ithaca {
int run_cuda_operations_bench(std::span<char* const> arguments);
}
int attention_bench_main(int argument_count, char** arguments);

int main(int argument_count, char** arguments) {
  try {
    if (argument_count > 1 && std::strcmp(arguments[1], "bench") == 0) {
      return ithaca::run_cuda_operations_bench({arguments + 2, static_cast<size_t>(argument_count - 2)});
    }
    if (argument_count > 1 && std::strcmp(arguments[1], "bench-attention") == 0) {
      return attention_bench_main(argument_count - 1, arguments + 1);
    }
    testing::InitGoogleTest(&argument_count, arguments);
    return RUN_ALL_TESTS();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ithaca_gpu: %s\n", error.what());
    return 1;
  }
}
