#include <algorithm>
#include <chrono>
#include <exception>

#include "comm/thread_ranks.h"
#include "train/benchmark.h"
#include "train/benchmark_tensors.h"

namespace ithaca {

namespace {

using Clock = std::chrono::steady_clock;

// Seconds of one product: repeated until `least_seconds` have passed, after a few that are not counted; the quicker of
// two such measurements.
double seconds_of(Backend& backend, const Gemm& gemm, double least_seconds) {
  Stream& stream = backend.compute_stream();
  const auto run = [&](int64_t repetitions) {
    const auto start = Clock::now();
    for (int64_t index = 0; index < repetitions; ++index) backend.gemm(stream, gemm);
    backend.finish(backend.record(stream));
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const double first = run(2) / 2.0;
  const auto repetitions = static_cast<int64_t>(std::clamp(least_seconds / std::max(first, 1e-7), 1.0, 1000.0));
  static_cast<void>(run(std::max<int64_t>(1, repetitions / 4)));
  return std::min(run(repetitions), run(repetitions)) / static_cast<double>(repetitions);
}

Buffer random_matrix(Backend& backend, const char* name, DType dtype, int64_t rows, int64_t columns) {
  Buffer matrix = backend.arena(Tier::device)
                      .allocate(name, MemoryClass::workspace, dtype, {rows, columns}, backend.compute_stream());
  fill_random(backend, matrix.tensor());
  return matrix;
}

double flops_of(int64_t rows, int64_t columns, int64_t depth) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
}

class LayerProducts {
 public:
  LayerProducts(Backend& backend, double peak) : backend_(backend), peak_(peak) {}

  // y [tokens, outputs] = x [tokens, inputs] * weights^T, and the two products of its backward pass.
  void measure(const std::string& name, int64_t tokens, int64_t inputs, int64_t outputs) {
    const DType compute = backend_.compute_dtype();
    const Buffer x = random_matrix(backend_, "input", compute, tokens, inputs);
    const Buffer weights = random_matrix(backend_, "weights", compute, outputs, inputs);
    const Buffer y = random_matrix(backend_, "output", compute, tokens, outputs);
    const Buffer gradient = random_matrix(backend_, "weight gradient", DType::float32, outputs, inputs);
    Gemm forward;
    forward.a = x.tensor();
    forward.b = weights.tensor();
    forward.transpose_b = true;
    forward.c = y.tensor();
    add(name, forward, tokens, outputs, inputs);
    Gemm of_weights;
    of_weights.a = y.tensor();
    of_weights.transpose_a = true;
    of_weights.b = x.tensor();
    of_weights.c = gradient.tensor();
    of_weights.beta = 1.0f;
    add(name + ": weight gradient", of_weights, outputs, inputs, tokens);
    Gemm of_input;
    of_input.a = y.tensor();
    of_input.b = weights.tensor();
    of_input.c = x.tensor();
    add(name + ": input gradient", of_input, tokens, inputs, outputs);
  }

  std::vector<GemmBenchmarkRow> take() { return std::move(rows_); }

 private:
  void add(const std::string& name, const Gemm& gemm, int64_t rows, int64_t columns, int64_t depth) {
    GemmBenchmarkRow row;
    row.name = name;
    row.rows = rows;
    row.columns = columns;
    row.depth = depth;
    row.seconds = seconds_of(backend_, gemm, 0.05);
    row.flops_per_second = flops_of(rows, columns, depth) / row.seconds;
    row.peak_share = row.flops_per_second / peak_;
    rows_.push_back(row);
  }

  Backend& backend_;
  double peak_;
  std::vector<GemmBenchmarkRow> rows_;
};

}  // namespace

double measure_gemm_peak(Backend& backend) {
  const DType compute = backend.compute_dtype();
  // On a GPU the best shape is not the same on every chip; a CPU is as fast on a small one.
  const std::vector<int64_t> sizes =
      backend.name() == "cpu" ? std::vector<int64_t>{1024} : std::vector<int64_t>{4096, 8192};
  double best = 0.0;
  const Arena& arena = backend.arena(Tier::device);
  for (const int64_t size : sizes) {
    if (3 * size * size * element_size(compute) > (arena.capacity() - arena.usage().current) / 2) continue;
    const Buffer a = random_matrix(backend, "peak a", compute, size, size);
    const Buffer b = random_matrix(backend, "peak b", compute, size, size);
    const Buffer c = random_matrix(backend, "peak c", compute, size, size);
    Gemm gemm;
    gemm.a = a.tensor();
    gemm.b = b.tensor();
    gemm.transpose_b = true;
    gemm.c = c.tensor();
    best = std::max(best, flops_of(size, size, size) / seconds_of(backend, gemm, 0.1));
  }
  return best;
}

GemmBenchmarkResult run_gemm_benchmark(const BackendChoice& choice, const ModelDescription& model, int64_t tokens) {
  GemmBenchmarkResult result;
  run_thread_ranks(1, {}, [&](ThreadRank& thread) {
    const std::unique_ptr<Backend> backend = make_backend(choice, thread.rank(), thread.size(), 0);
    result.gemm_peak = measure_gemm_peak(*backend);
    LayerProducts products(*backend, result.gemm_peak);
    const int64_t query_width = model.query_heads * model.head_size;
    const int64_t key_width = model.key_heads * model.head_size;
    products.measure("query, key, value", tokens, model.hidden_size, query_width + 2 * key_width);
    products.measure("attention output", tokens, query_width, model.hidden_size);
    products.measure("gate, up", tokens, model.hidden_size, 2 * model.intermediate_size);
    products.measure("down", tokens, model.intermediate_size, model.hidden_size);
    products.measure("head", loss_tile_tokens({}, tokens, model.vocabulary, *backend), model.hidden_size,
                     model.vocabulary);
    result.rows = products.take();
  });
  return result;
}

}  // namespace ithaca
