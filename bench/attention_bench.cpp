// Attention on one CPU core, against the rate of the same core's sgemm in the same run.
//
//   attention_bench                                   everything (about two minutes on an idle core)
//   attention_bench --benchmark_filter=causal/16384   one part
//
// Every measurement alternates with slices of sgemm (1024 x 1024 x 1024, where it is fastest), so that both see the
// same clock and the same neighbours; its ratio is the quotient of the two. Times are processor times of this thread.
// Only visible pairs count as floating point operations: 4 D per pair and query head forward, 10 D backward.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/attention.h"
#include "base/random.h"

namespace ithaca {
namespace {

constexpr int64_t kQueryHeads = 4;
constexpr int64_t kKeyHeads = 1;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<float> random_floats(int64_t count, std::string_view name) {
  const RandomStream random(1, name);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(2.0 * random.uniform(i) - 1.0);
  return values;
}

// The rate of sgemm, measured in slices between other work.
class GemmMeter {
 public:
  void run_slice() {
    const double start = thread_seconds();
    double now = start;
    while (now - start < 0.06) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1.0f, a_.data(), kSize, b_.data(),
                  kSize, 0.0f, c_.data(), kSize);
      operations_ += 2.0 * kSize * kSize * kSize;
      now = thread_seconds();
    }
    seconds_ += now - start;
  }
  double rate() const { return operations_ / seconds_; }

 private:
  static constexpr int64_t kSize = 1024;
  std::vector<float> a_ = random_floats(kSize * kSize, "a");
  std::vector<float> b_ = random_floats(kSize * kSize, "b");
  std::vector<float> c_ = std::vector<float>(kSize * kSize);
  double operations_ = 0.0;
  double seconds_ = 0.0;
};

// One attention problem with everything it needs.
class Problem {
 public:
  Problem(int64_t tokens, int64_t query_heads, int64_t key_heads, int64_t size)
      : tokens_(tokens),
        query_heads_(query_heads),
        key_heads_(key_heads),
        size_(size),
        query_(random_floats(tokens * query_heads * size, "query")),
        key_(random_floats(tokens * key_heads * size, "key")),
        value_(random_floats(tokens * key_heads * size, "value")),
        doutput_(random_floats(tokens * query_heads * size, "doutput")),
        output_(query_.size()),
        log_sum_exp_(static_cast<size_t>(tokens * query_heads)),
        dquery_(query_.size()),
        dkey_(key_.size()),
        dvalue_(key_.size()),
        accumulator_(static_cast<size_t>(cpu::attention_accumulator_elements({tokens, query_heads, size}))),
        workspace_(static_cast<size_t>(std::max(cpu::attention_forward_workspace_bytes(size, size),
                                                cpu::attention_backward_workspace_bytes(size, size)))) {}

  void forward(std::span<const AttentionTask> tasks) {
    const cpu::AttentionAccumulator accumulator = cpu::begin_attention(
        {tokens_, query_heads_, size_},
        Tensor::contiguous(accumulator_.data(), DType::float32, {static_cast<int64_t>(accumulator_.size())}));
    cpu::attention_forward(
        {view(query_, query_heads_), view(key_, key_heads_), view(value_, key_heads_), tasks, scale(), nullptr},
        accumulator, workspace_);
    cpu::finish_attention(accumulator, view(output_, query_heads_), log_sum_exp());
  }
  void backward(std::span<const AttentionTask> tasks) {
    cpu::attention_backward({view(query_, query_heads_), view(key_, key_heads_), view(value_, key_heads_),
                             view(output_, query_heads_), log_sum_exp(), view(doutput_, query_heads_), tasks, scale(),
                             view(dquery_, query_heads_), view(dkey_, key_heads_), view(dvalue_, key_heads_)},
                            workspace_);
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(size_)); }
  const float* query() const { return query_.data(); }
  const float* key() const { return key_.data(); }
  const float* value() const { return value_.data(); }
  const std::vector<float>& output() const { return output_; }
  // What the caller holds anyway: inputs, results and gradients.
  int64_t argument_bytes() const {
    return static_cast<int64_t>(4 * (4 * query_.size() + 4 * key_.size() + log_sum_exp_.size()));
  }
  int64_t accumulator_bytes() const { return static_cast<int64_t>(4 * accumulator_.size()); }
  int64_t workspace_bytes() const { return static_cast<int64_t>(workspace_.size()); }

 private:
  Tensor view(std::vector<float>& values, int64_t heads) const {
    return Tensor::contiguous(values.data(), DType::float32, {tokens_, heads, size_});
  }
  Tensor log_sum_exp() { return Tensor::contiguous(log_sum_exp_.data(), DType::float32, {tokens_, query_heads_}); }

  int64_t tokens_, query_heads_, key_heads_, size_;
  std::vector<float> query_, key_, value_, doutput_, output_, log_sum_exp_, dquery_, dkey_, dvalue_, accumulator_;
  std::vector<std::byte> workspace_;
};

std::vector<AttentionTask> causal_tasks(std::span<const int64_t> lengths) {
  std::vector<AttentionTask> tasks;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    tasks.push_back({begin, begin + length, begin, begin + length, kNoLower, 0});
    begin += length;
  }
  return tasks;
}

double visible_pairs(std::span<const int64_t> lengths) {
  double pairs = 0.0;
  for (const int64_t length : lengths) pairs += 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
  return pairs;
}

// Uniform in [1, 1023], so 512 on average; the last one is cut.
std::vector<int64_t> random_lengths(int64_t tokens) {
  const RandomStream random(512, "document lengths");
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; tokens > 0; ++i) {
    lengths.push_back(std::min(tokens, 1 + static_cast<int64_t>(random.uniform(i) * 1023.0)));
    tokens -= lengths.back();
  }
  return lengths;
}

// One line of the table at the end. Rates in operations per second.
struct Line {
  std::string name;
  double sgemm = 0.0;
  double forward = 0.0;
  double both = 0.0;
  std::string remark;
};

std::vector<Line>& lines() {
  static std::vector<Line> table;  // filled by the benchmarks, printed by main
  return table;
}

double rate_of(const std::string& name, double Line::*member) {
  for (const Line& line : lines()) {
    if (line.name == name) return line.*member;
  }
  return 0.0;
}

// Forward, then backward, between slices of sgemm, once per iteration.
Line measure(benchmark::State& state, const std::string& name, Problem& problem, std::span<const int64_t> lengths,
             int64_t size) {
  const std::vector<AttentionTask> tasks = causal_tasks(lengths);
  const double operations = 4.0 * static_cast<double>(size * kQueryHeads) * visible_pairs(lengths);
  problem.forward(std::span(tasks).first(1));  // touches everything once
  GemmMeter gemm;
  double forward = 0.0;
  double both = 0.0;
  int64_t rounds = 0;
  while (state.KeepRunning()) {
    gemm.run_slice();
    const double start = thread_seconds();
    problem.forward(tasks);
    const double middle = thread_seconds();
    gemm.run_slice();
    const double resumed = thread_seconds();
    problem.backward(tasks);
    const double end = thread_seconds();
    gemm.run_slice();
    forward += middle - start;
    both += middle - start + end - resumed;
    ++rounds;
    state.SetIterationTime(middle - start + end - resumed);
  }
  Line line{name, gemm.rate(), operations * static_cast<double>(rounds) / forward,
            3.5 * operations * static_cast<double>(rounds) / both, ""};
  state.counters["sgemm_GFLOPs"] = line.sgemm * 1e-9;
  state.counters["forward_GFLOPs"] = line.forward * 1e-9;
  state.counters["both_GFLOPs"] = line.both * 1e-9;
  state.counters["forward/sgemm"] = line.forward / line.sgemm;
  state.counters["both/sgemm"] = line.both / line.sgemm;
  return line;
}

std::string causal_name(int64_t tokens, int64_t size) {
  return "causal/" + std::to_string(tokens) + "/" + std::to_string(size);
}

void run_causal(benchmark::State& state, int64_t tokens, int64_t size) {
  Problem problem(tokens, kQueryHeads, kKeyHeads, size);
  const std::array<int64_t, 1> lengths = {tokens};
  lines().push_back(measure(state, causal_name(tokens, size), problem, lengths, size));
}

void run_documents(benchmark::State& state, int64_t tokens, int64_t size) {
  Problem problem(tokens, kQueryHeads, kKeyHeads, size);
  const std::vector<int64_t> lengths = random_lengths(tokens);
  Line line =
      measure(state, "documents/" + std::to_string(tokens) + "/" + std::to_string(size), problem, lengths, size);
  // Each against the sgemm of its own minutes, so that a change of clock between them cancels.
  const std::string dense = causal_name(tokens, size);
  if (rate_of(dense, &Line::sgemm) > 0.0) {
    const double dense_gemm = rate_of(dense, &Line::sgemm);
    const double forward = line.forward / line.sgemm / (rate_of(dense, &Line::forward) / dense_gemm);
    const double both = line.both / line.sgemm / (rate_of(dense, &Line::both) / dense_gemm);
    state.counters["forward/dense"] = forward;
    state.counters["both/dense"] = both;
    std::array<char, 120> text{};
    std::snprintf(text.data(), text.size(), "%zu documents; of dense: forward %.0f%%, both %.0f%%", lengths.size(),
                  100.0 * forward, 100.0 * both);
    line.remark = text.data();
  }
  lines().push_back(line);
}

// ---- the peer: matmul, softmax, matmul ----

// 2^x for x <= 0 with plain arithmetic that compilers turn into SIMD; as exact as the kernel's.
inline float power_of_two(float x) {
  x = std::max(x, -126.0f);
  const float rounded = x + 12583039.0f;  // 1.5 * 2^23 + 127
  const float r = x - (rounded - 12583039.0f);
  float p = 0.000153458121613f;
  p = p * r + 0.00133999311772f;
  p = p * r + 0.00961848895633f;
  p = p * r + 0.0555032877711f;
  p = p * r + 0.240226468906f;
  p = p * r + 0.693147205737f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) << 23);
}

// softmax of row[0, visible), zeros up to `size`; scores in units of log2(e).
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void softmax_row(float* row, int64_t visible, int64_t size) {
  constexpr int64_t kLanes = 64;
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= visible; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const auto lane = static_cast<size_t>(j);
      lanes[lane] = row[i + j] > lanes[lane] ? row[i + j] : lanes[lane];
    }
  }
  float maximum = *std::max_element(lanes.begin(), lanes.end());
  for (; i < visible; ++i) maximum = std::max(maximum, row[i]);
  lanes.fill(0.0f);
  for (i = 0; i + kLanes <= visible; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      row[i + j] = power_of_two(row[i + j] - maximum);
      lanes[static_cast<size_t>(j)] += row[i + j];
    }
  }
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  for (; i < visible; ++i) {
    row[i] = power_of_two(row[i] - maximum);
    sum += row[i];
  }
  const float inverse = 1.0f / sum;
  for (i = 0; i < visible; ++i) row[i] *= inverse;
  std::fill(row + visible, row + size, 0.0f);
}

void run_peer(benchmark::State& state, int64_t tokens, int64_t size) {
  Problem problem(tokens, kQueryHeads, kKeyHeads, size);
  const std::array<int64_t, 1> lengths = {tokens};
  const std::vector<AttentionTask> tasks = causal_tasks(lengths);
  std::vector<float> scores(static_cast<size_t>(tokens * tokens));
  std::vector<float> output(static_cast<size_t>(tokens * kQueryHeads * size));
  const auto rows = static_cast<int>(tokens);
  const auto columns = static_cast<int>(size);
  const float scale = problem.scale() * 1.44269504f;
  const auto peer = [&] {
    for (int64_t head = 0; head < kQueryHeads; ++head) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, rows, columns, scale, problem.query() + head * size,
                  static_cast<int>(kQueryHeads) * columns, problem.key(), columns, 0.0f, scores.data(), rows);
      for (int64_t row = 0; row < tokens; ++row) softmax_row(scores.data() + row * tokens, row + 1, tokens);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, columns, rows, 1.0f, scores.data(), rows,
                  problem.value(), columns, 0.0f, output.data() + head * size, static_cast<int>(kQueryHeads) * columns);
    }
  };
  peer();
  problem.forward(tasks);
  double peer_seconds = 0.0;
  double own_seconds = 0.0;
  while (state.KeepRunning()) {
    const double start = thread_seconds();
    peer();
    const double middle = thread_seconds();
    problem.forward(tasks);
    const double end = thread_seconds();
    peer_seconds += middle - start;
    own_seconds += end - middle;
    state.SetIterationTime(middle - start);
  }
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < output.size(); ++i) {
    difference += std::pow(static_cast<double>(output[i]) - static_cast<double>(problem.output()[i]), 2);
    norm += std::pow(static_cast<double>(output[i]), 2);
  }
  if (!(std::sqrt(difference / norm) < 1e-5)) state.SkipWithError("the peer computes something else");
  state.counters["peer/attention"] = peer_seconds / own_seconds;
  std::array<char, 120> text{};
  std::snprintf(text.data(), text.size(), "matmul + softmax + matmul takes %.2fx the time of attention, forward",
                peer_seconds / own_seconds);
  lines().push_back({"peer/" + std::to_string(tokens) + "/" + std::to_string(size), 0.0, 0.0, 0.0, text.data()});
}

// ---- memory ----

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return 1024 * std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

// Forward and backward of one head; what the process grows by at its peak, beyond the arguments.
void run_memory(benchmark::State& state, int64_t tokens) {
  constexpr int64_t kSize = 64;
  while (state.KeepRunning()) {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
    const int64_t before = status_bytes("VmRSS");
    const double start = thread_seconds();
    Problem problem(tokens, 1, 1, kSize);
    const std::array<int64_t, 1> lengths = {tokens};
    const std::vector<AttentionTask> tasks = causal_tasks(lengths);
    problem.forward(tasks);
    problem.backward(tasks);
    state.SetIterationTime(thread_seconds() - start);
    const int64_t peak = status_bytes("VmHWM") - before;
    const double mebibyte = 1024.0 * 1024.0;
    state.counters["peak_MiB"] = static_cast<double>(peak) / mebibyte;
    std::array<char, 200> text{};
    std::snprintf(
        text.data(), text.size(),
        "peak %.1f MiB = arguments %.1f + accumulator %.1f + workspace %.1f + other %.1f; S x S would be %.0f",
        static_cast<double>(peak) / mebibyte, static_cast<double>(problem.argument_bytes()) / mebibyte,
        static_cast<double>(problem.accumulator_bytes()) / mebibyte,
        static_cast<double>(problem.workspace_bytes()) / mebibyte,
        static_cast<double>(peak - problem.argument_bytes() - problem.accumulator_bytes() - problem.workspace_bytes()) /
            mebibyte,
        static_cast<double>(tokens) * static_cast<double>(tokens) * 4.0 / mebibyte);
    lines().push_back({"memory/" + std::to_string(tokens) + "/" + std::to_string(kSize), 0.0, 0.0, 0.0, text.data()});
  }
}

void print_table() {
  std::printf("\n%-22s %8s %16s %16s\n", "tokens/size", "sgemm", "forward", "forward+backward");
  for (const Line& line : lines()) {
    if (line.sgemm > 0.0) {
      std::printf("%-22s %8.1f %8.1f (%4.0f%%) %8.1f (%4.0f%%)  %s\n", line.name.c_str(), line.sgemm * 1e-9,
                  line.forward * 1e-9, 100.0 * line.forward / line.sgemm, line.both * 1e-9,
                  100.0 * line.both / line.sgemm, line.remark.c_str());
    } else {
      std::printf("%-22s %s\n", line.name.c_str(), line.remark.c_str());
    }
  }
  std::printf("GFLOP/s of one core, useful operations only; in brackets: of the sgemm that ran in between.\n");
}

void register_all() {
  const auto add = [](const std::string& name, const auto& body, int64_t iterations) {
    benchmark::RegisterBenchmark(name.c_str(), body)
        ->Iterations(iterations)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const int64_t size : {64, 128}) {
    for (const auto& [tokens, iterations] :
         std::vector<std::pair<int64_t, int64_t>>{{1024, 60}, {4096, 6}, {16384, 2}}) {
      add(
          causal_name(tokens, size),
          [tokens = tokens, size](benchmark::State& state) { run_causal(state, tokens, size); }, iterations);
    }
  }
  for (const int64_t size : {64, 128}) {
    add(
        "documents/16384/" + std::to_string(size),
        [size](benchmark::State& state) { run_documents(state, 16384, size); }, 10);
  }
  for (const int64_t size : {64, 128}) {
    for (const auto& [tokens, iterations] : std::vector<std::pair<int64_t, int64_t>>{{1024, 40}, {4096, 4}}) {
      add(
          "peer/" + std::to_string(tokens) + "/" + std::to_string(size),
          [tokens = tokens, size](benchmark::State& state) { run_peer(state, tokens, size); }, iterations);
    }
  }
  for (const int64_t tokens : {1024, 4096, 16384, 65536}) {
    add(
        "memory/" + std::to_string(tokens) + "/64", [tokens](benchmark::State& state) { run_memory(state, tokens); },
        1);
  }
}

}  // namespace
}  // namespace ithaca

int main(int argument_count, char** arguments) {
  openblas_set_num_threads(1);
  mallopt(M_MMAP_THRESHOLD, 1 << 16);  // freed arrays leave the process, so that memory/ counts only its own
  benchmark::Initialize(&argument_count, arguments);
  if (benchmark::ReportUnrecognizedArguments(argument_count, arguments)) return 2;
  ithaca::register_all();
  benchmark::RunSpecifiedBenchmarks();
  ithaca::print_table();
  return 0;
}
