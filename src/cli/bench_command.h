// `ithaca bench step|attention|exchange|gemm`: speed on this machine, as tables.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ithaca {

struct BenchArguments {
  std::string model;  // a directory with config.json
  std::string shape;  // or a published shape
  std::vector<int64_t> tokens;
  std::string backend = "auto";
  std::string compute_dtype = "auto";
  bool deterministic = false;
  int ranks = 1;
  std::vector<std::string> documents = {"0"};  // mixes
  int64_t window = 0;
  std::vector<std::string> transports;  // exchange; empty: all that are possible
  std::string transport = "auto";       // the others
  std::string schedule = "auto";
  std::string layout = "auto";
  int64_t ulysses_size = 0;
  int64_t ring_size = 0;
  std::string zero = "1";
  std::vector<std::string> recompute = {"attention"};
  int steps = 3;
  int warmup = 2;
  bool phases = false;
  int64_t attention_layers = 0;
  bool longest = false;
  double limit_gib = 0.0;
  int64_t query_heads = 32;
  int64_t key_heads = 8;
  int64_t head_size = 128;
  std::vector<std::string> schedules;
  std::vector<int> predicted_ranks;
  std::vector<std::string> sizes;
  double seconds = 0.5;
  std::string output;  // empty: none
};

void declare_bench(CLI::App& app, BenchArguments& arguments);

// Whether a file that begins so is of --output.
bool is_benchmark_rows_beginning(std::string_view bytes);

// Exit status 0, or 1 when a row could not run.
int bench_command(const CLI::App& app, const BenchArguments& arguments, std::ostream& out);

}  // namespace ithaca
