// One program for machines with a GPU and nothing else: ithaca itself, all GPU tests and the kernels' benchmarks.
//
//   ithaca_gpu [--gtest_...]                                  the tests
//   ithaca_gpu bench-operations [memory] [gemm] [loss] ...    operations beside their limits
//   ithaca_gpu bench-attention [dense] [documents] [ring]     the attention kernels beside cuDNN
//   ithaca_gpu COMMAND ...                                    as ithaca COMMAND ...
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <span>
#include <string_view>

#include "cli/program.h"

namespace ithaca {
int run_cuda_operations_bench(std::span<char* const> arguments);
}
int attention_bench_main(int argument_count, char** arguments);

int main(int argument_count, char** arguments) {
  try {
    const std::string_view first = argument_count > 1 ? arguments[1] : "";
    if (first == "bench-operations") {
      return ithaca::run_cuda_operations_bench({arguments + 2, static_cast<size_t>(argument_count - 2)});
    }
    if (first == "bench-attention") return attention_bench_main(argument_count - 1, arguments + 1);
    if (first.empty() || first.starts_with("--gtest")) {
      testing::InitGoogleTest(&argument_count, arguments);
      return RUN_ALL_TESTS();
    }
    return ithaca::run_program(argument_count, arguments, std::cout, std::cerr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ithaca_gpu: %s\n", error.what());
    return 1;
  }
}
