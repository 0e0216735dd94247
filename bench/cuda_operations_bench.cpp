// Speed of the CUDA backend's operations, each beside its limit in the same run.
//
//   cuda_operations_bench [memory] [norms] [heads] [activation] [loss] [elementwise] [gemm]
//
// Without arguments everything, in about a minute; "memory" is all but gemm.
//
// Operations that move memory: the bytes they must read and write (every input once, every output once), per second,
// against a device-to-device copy. Matrix products: TFLOP/s against cuBLASLt called directly, with its first choice of
// algorithm and with the fastest of eight (which one that is, and the first one's workspace, are told). Times are the
// median of several runs of many calls in a row, from the host, with the one wait at the end; inputs are random and
// several times larger than the cache.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/random.h"

namespace ithaca {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The median seconds of one call. `finish` waits until all calls so far have run.
double measure(const std::function<void()>& call, const std::function<void()>& finish) {
  for (int i = 0; i < 3; ++i) call();
  finish();
  auto begin = std::chrono::steady_clock::now();
  call();
  finish();
  const double once = seconds_since(begin);
  const int calls = std::clamp(static_cast<int>(0.02 / once), 3, 200);
  std::vector<double> runs;
  for (int run = 0; run < 7; ++run) {
    begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    finish();
    runs.push_back(seconds_since(begin) / calls);
  }
  std::nth_element(runs.begin(), runs.begin() + 3, runs.end());
  return runs[3];
}

class Bench {
 public:
  explicit Bench(Backend& backend) : backend_(backend) {}

  Backend& backend() { return backend_; }
  Stream& stream() { return backend_.compute_stream(); }
  void finish() { backend_.finish(backend_.record(stream())); }
  double seconds_of(const std::function<void()>& call) {
    return measure(call, [this] { finish(); });
  }

  // Random numbers around 0, the same 16 MiB over and over.
  Tensor random(DType dtype, const Extents& extents) {
    const Tensor tensor = empty(dtype, extents);
    if (pattern_.is_empty()) make_pattern();
    const Tensor flat = tensor.reshape({tensor.element_count()});
    const int64_t piece = pattern_.tensor().element_count();
    for (int64_t begin = 0; begin < flat.element_count(); begin += piece) {
      const int64_t end = std::min(flat.element_count(), begin + piece);
      backend_.copy(stream(), {pattern_.tensor().slice(0, 0, end - begin), flat.slice(0, begin, end)});
    }
    return tensor;
  }
  Tensor empty(DType dtype, const Extents& extents) {
    buffers_.push_back(
        backend_.arena(Tier::device).allocate("bench", MemoryClass::workspace, dtype, extents, stream()));
    return buffers_.back().tensor();
  }
  Tensor ids(int64_t count, int64_t below) {
    const RandomStream random(3, "ids");
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int64_t>(random.uniform(i) * static_cast<double>(below));
    }
    const Tensor tensor = empty(DType::int64, {count});
    backend_.copy_from_host(stream(), std::as_bytes(std::span(values)), tensor);
    return tensor;
  }
  // Gives everything back.
  void clear() {
    finish();
    buffers_.clear();
    pattern_.release();
  }

 private:
  void make_pattern() {
    const RandomStream random(1, "bench");
    std::vector<float> values(size_t{4} << 20);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(2.0 * random.uniform(i) - 1.0);
    pattern_ = backend_.arena(Tier::device)
                   .allocate("pattern", MemoryClass::workspace, DType::float32, {static_cast<int64_t>(values.size())},
                             stream());
    backend_.copy_from_host(stream(), std::as_bytes(std::span(values)), pattern_.tensor());
  }

  Backend& backend_;
  Buffer pattern_;
  std::vector<Buffer> buffers_;
};

// ---- operations that move memory ----

class MemoryTable {
 public:
  explicit MemoryTable(Bench& bench) : bench_(bench) {
    const Tensor from = bench.random(DType::bfloat16, {int64_t{512} << 20});
    const Tensor to = bench.empty(DType::bfloat16, from.extents);
    const double seconds = bench.seconds_of([&] { bench.backend().copy(bench.stream(), {from, to}); });
    copy_rate_ = 2.0 * static_cast<double>(from.byte_count()) / seconds;
    std::printf("%-44s %9s %9s %7s\n", "operation", "us", "GB/s", "copy %");
    print("copy, 1 GiB", 2.0 * static_cast<double>(from.byte_count()), seconds);
    bench.clear();
  }

  // `bytes`: read and written.
  void row(const char* name, double bytes, const std::function<void()>& call) {
    print(name, bytes, bench_.seconds_of(call));
    bench_.clear();
  }

 private:
  void print(const char* name, double bytes, double seconds) const {
    std::printf("%-44s %9.1f %9.0f %7.1f\n", name, seconds * 1e6, bytes / seconds * 1e-9,
                100.0 * bytes / seconds / copy_rate_);
    std::fflush(stdout);
  }

  Bench& bench_;
  double copy_rate_ = 0.0;
};

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0.0;
  for (const Tensor& tensor : tensors) bytes += static_cast<double>(tensor.byte_count());
  return bytes;
}

void bench_norms(Bench& bench, MemoryTable& table) {
  constexpr DType kType = DType::bfloat16;
  for (const int64_t size : {int64_t{1024}, int64_t{2560}, int64_t{4096}}) {
    const int64_t tokens = (int64_t{1} << 27) / size;
    const std::string of_size = " " + std::to_string(tokens) + " x " + std::to_string(size);
    {
      const Tensor input = bench.random(kType, {tokens, size});
      const Tensor residual = bench.random(kType, {tokens, size});
      const Tensor output = bench.empty(kType, {tokens, size});
      const Tensor weight = bench.random(kType, {size});
      const Tensor inverse = bench.empty(DType::float32, {tokens});
      table.row(("rms_norm_forward + residual" + of_size).c_str(), bytes_of({input, residual, residual, output}), [&] {
        bench.backend().rms_norm_forward(bench.stream(), {input, residual, residual, weight, output, inverse, 1e-6f});
      });
    }
    const Tensor doutput = bench.random(kType, {tokens, size});
    const Tensor input = bench.random(kType, {tokens, size});
    const Tensor residual = bench.random(kType, {tokens, size});
    const Tensor dinput = bench.empty(kType, {tokens, size});
    const Tensor weight = bench.random(kType, {size});
    const Tensor inverse = bench.random(DType::float32, {tokens});
    const Tensor dweight = bench.random(DType::float32, {size});
    table.row(("rms_norm_backward" + of_size).c_str(), bytes_of({doutput, input, residual, dinput}), [&] {
      bench.backend().rms_norm_backward(bench.stream(), {doutput, input, weight, inverse, residual, dinput, dweight});
    });
  }
}

void bench_heads(Bench& bench, MemoryTable& table) {
  constexpr DType kType = DType::bfloat16;
  constexpr int64_t kTokens = 32768;
  constexpr int64_t kHeads = 32;
  constexpr int64_t kSize = 128;
  const Extents extents = {kTokens, kHeads, kSize};
  for (const bool has_norm : {true, false}) {
    const Tensor input = bench.random(kType, extents);
    const Tensor output = bench.empty(kType, extents);
    const Tensor weight = has_norm ? bench.random(kType, {kSize}) : Tensor{};
    const Tensor inverse = has_norm ? bench.empty(DType::float32, {kTokens, kHeads}) : Tensor{};
    const Tensor cosine = bench.random(DType::float32, {kTokens, kSize / 2});
    const Tensor sine = bench.random(DType::float32, {kTokens, kSize / 2});
    table.row(
        has_norm ? "head_rope_forward, norm, 32768 x 32 x 128" : "head_rope_forward, 32768 x 32 x 128",
        bytes_of({input, output, cosine, sine}), [&] {
          bench.backend().head_rope_forward(bench.stream(), {input, weight, 1e-6f, inverse, cosine, sine, output});
        });
  }
  for (const DType gradient : {kType, DType::float32}) {
    const Tensor doutput = bench.random(gradient, extents);
    const Tensor input = bench.random(kType, extents);
    const Tensor dinput = bench.empty(kType, extents);
    const Tensor weight = bench.random(kType, {kSize});
    const Tensor dweight = bench.random(DType::float32, {kSize});
    const Tensor inverse = bench.random(DType::float32, {kTokens, kHeads});
    const Tensor cosine = bench.random(DType::float32, {kTokens, kSize / 2});
    const Tensor sine = bench.random(DType::float32, {kTokens, kSize / 2});
    table.row(gradient == kType ? "head_rope_backward, norm, of bfloat16" : "head_rope_backward, norm, of float32",
              bytes_of({doutput, input, dinput, cosine, sine, inverse}), [&] {
                bench.backend().head_rope_backward(bench.stream(),
                                                   {doutput, input, weight, inverse, cosine, sine, dinput, dweight});
              });
  }
}

void bench_activation(Bench& bench, MemoryTable& table) {
  const Extents extents = {16384, 9728};
  {
    // Gate and up lie beside each other in one projection's output.
    const Tensor both = bench.random(DType::bfloat16, {extents[0], 2 * extents[1]});
    const Tensor gate = both.slice(1, 0, extents[1]);
    const Tensor up = both.slice(1, extents[1], 2 * extents[1]);
    const Tensor output = bench.empty(DType::bfloat16, extents);
    table.row("swiglu_forward, halves of 16384 x 19456", bytes_of({both, output}), [&] {
      bench.backend().swiglu_forward(bench.stream(), {gate, up, output});
    });
  }
  const Tensor doutput = bench.random(DType::bfloat16, extents);
  const Tensor gate = bench.random(DType::bfloat16, extents);
  const Tensor up = bench.random(DType::bfloat16, extents);
  const Tensor dgate = bench.empty(DType::bfloat16, extents);
  const Tensor dup = bench.empty(DType::bfloat16, extents);
  table.row("swiglu_backward, 16384 x 9728", bytes_of({doutput, gate, up, dgate, dup}), [&] {
    bench.backend().swiglu_backward(bench.stream(), {doutput, gate, up, dgate, dup});
  });
}

void bench_embedding_and_loss(Bench& bench, MemoryTable& table) {
  constexpr int64_t kTokens = 65536;
  constexpr int64_t kVocabulary = 151936;
  constexpr int64_t kSize = 2560;
  {
    const Tensor weights = bench.random(DType::bfloat16, {kVocabulary, kSize});
    const Tensor ids = bench.ids(kTokens, kVocabulary);
    const Tensor output = bench.empty(DType::bfloat16, {kTokens, kSize});
    table.row("embedding_forward, 65536 x 2560", bytes_of({output, output}), [&] {
      bench.backend().embedding_forward(bench.stream(), {weights, ids, output});
    });
  }
  {
    const Tensor gradient = bench.random(DType::float32, {kVocabulary, kSize});
    const Tensor ids = bench.ids(kTokens, kVocabulary);
    const Tensor doutput = bench.random(DType::bfloat16, {kTokens, kSize});
    // Uniform ids: a row is hit with probability 1 - e^(-tokens / vocabulary).
    constexpr double kRowsHit = 0.3504 * static_cast<double>(kVocabulary);
    table.row("embedding_backward, 65536 x 2560", bytes_of({doutput}) + kRowsHit * kSize * 8.0, [&] {
      bench.backend().embedding_backward(bench.stream(), {doutput, ids, gradient});
    });
  }
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    const Tensor logits = bench.random(dtype, {4096, kVocabulary});
    const Tensor labels = bench.ids(4096, kVocabulary);
    const Tensor loss = bench.empty(DType::float64, {1});
    // The gradient overwrites the logits; any numbers do as logits of the next call.
    table.row(
        dtype == DType::bfloat16 ? "cross_entropy, bfloat16 4096 x 151936" : "cross_entropy, float32 4096 x 151936",
        bytes_of({logits, logits}), [&] {
          bench.backend().cross_entropy(bench.stream(), {logits, labels, {}, true, 1.0, loss});
        });
  }
}

void bench_elementwise(Bench& bench, MemoryTable& table) {
  constexpr int64_t kCount = int64_t{256} << 20;
  {
    const Tensor from = bench.random(DType::float32, {kCount});
    const Tensor to = bench.random(DType::float32, {kCount});
    table.row("add, float32 += float32", bytes_of({from, to, to}), [&] {
      bench.backend().add(bench.stream(), {from, to, 1e-3f});
    });
  }
  {
    const Tensor from = bench.random(DType::bfloat16, {kCount});
    const Tensor to = bench.random(DType::float32, {kCount});
    table.row("add, float32 += bfloat16", bytes_of({from, to, to}), [&] {
      bench.backend().add(bench.stream(), {from, to, 1e-3f});
    });
  }
  {
    const Tensor from = bench.random(DType::bfloat16, {kCount});
    const Tensor to = bench.random(DType::bfloat16, {kCount});
    table.row("add, bfloat16 += bfloat16", bytes_of({from, to, to}), [&] {
      bench.backend().add(bench.stream(), {from, to, 1e-3f});
    });
  }
  {
    const Tensor from = bench.random(DType::float32, {kCount});
    const Tensor to = bench.empty(DType::bfloat16, {kCount});
    table.row("copy, float32 to bfloat16", bytes_of({from, to}), [&] {
      bench.backend().copy(bench.stream(), {from, to});
    });
  }
  {
    const Tensor from = bench.random(DType::bfloat16, {32768, 32, 128});
    const Tensor to = bench.empty(DType::bfloat16, {32, 32768, 128});
    table.row("copy, heads to the front, 32768 x 32 x 128", bytes_of({from, to}), [&] {
      bench.backend().copy(bench.stream(), {from.transpose(0, 1), to});
    });
  }
  {
    const Tensor to = bench.empty(DType::float32, {kCount});
    table.row("fill, float32", bytes_of({to}), [&] { bench.backend().fill(bench.stream(), {to, 0.0}); });
  }
  {
    const Tensor input = bench.random(DType::bfloat16, {131072, 4096});
    const Tensor sum = bench.random(DType::float32, {4096});
    table.row("column_sum, bfloat16 131072 x 4096", bytes_of({input}), [&] {
      bench.backend().column_sum(bench.stream(), {input, sum});
    });
  }
  {
    const Tensor input = bench.random(DType::float32, {kCount});
    const Tensor sum = bench.empty(DType::float64, {1});
    table.row("square_sum, float32", bytes_of({input}), [&] {
      bench.backend().square_sum(bench.stream(), {input, sum});
    });
  }
  const Tensor weights = bench.random(DType::float32, {kCount});
  const Tensor gradients = bench.random(DType::float32, {kCount});
  const Tensor first = bench.random(DType::float32, {kCount});
  const Tensor second = bench.empty(DType::float32, {kCount});
  const Tensor rounded = bench.empty(DType::bfloat16, {kCount});
  const Tensor clip = bench.empty(DType::float32, {1});
  const Tensor skipped = bench.empty(DType::int64, {1});
  const Tensor steps = bench.empty(DType::int64, {1});
  bench.backend().fill(bench.stream(), {second, 1e-2});
  bench.backend().fill(bench.stream(), {clip, 1.0});
  bench.backend().fill(bench.stream(), {skipped, 0.0});
  bench.backend().fill(bench.stream(), {steps, 10.0});
  table.row("adamw, 268M parameters", bytes_of({weights, gradients, first, second, weights, first, second, rounded}),
            [&] {
              bench.backend().adamw(bench.stream(), {weights, gradients, first, second, rounded, 1e-6, 0.9, 0.95, 1e-8,
                                                     0.1, clip, skipped, steps});
            });
}

// ---- matrix products ----

void require_success(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasLtGetStatusName(status));
}
void require_success(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

struct GemmShape {
  const char* name;
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  DType result;
  float beta;
};

struct RawProduct {
  double first_choice = 0.0;  // seconds
  double fastest = 0.0;
  int fastest_choice = 0;
  double workspace_bytes = 0.0;  // of the first choice
};

// The same product by cuBLASLt itself, on memory of the backend's arena.
RawProduct raw_gemm(const GemmShape& shape, const Tensor& a, const Tensor& b, const Tensor& c,
                    const Tensor& workspace) {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t layouts[3] = {};
  cublasLtMatmulPreference_t preference = nullptr;
  cudaStream_t stream = nullptr;
  require_success(cublasLtCreate(&handle));
  require_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  require_success(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t first = shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  require_success(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
  require_success(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
  const Tensor* const operands[3] = {&b, &a, &c};
  for (int i = 0; i < 3; ++i) {
    const Tensor& operand = *operands[i];
    require_success(cublasLtMatrixLayoutCreate(&layouts[i], operand.dtype == DType::bfloat16 ? CUDA_R_16BF : CUDA_R_32F,
                                               static_cast<uint64_t>(operand.extent(1)),
                                               static_cast<uint64_t>(operand.extent(0)), operand.stride(0)));
  }
  require_success(cublasLtMatmulPreferenceCreate(&preference));
  const auto workspace_bytes = static_cast<uint64_t>(workspace.byte_count());
  require_success(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &workspace_bytes, sizeof(workspace_bytes)));
  cublasLtMatmulHeuristicResult_t choices[8] = {};
  int found = 0;
  require_success(cublasLtMatmulAlgoGetHeuristic(handle, product, layouts[0], layouts[1], layouts[2], layouts[2],
                                                 preference, 8, choices, &found));
  RawProduct raw;
  raw.workspace_bytes = static_cast<double>(choices[0].workspaceSize);
  const float alpha = 1.0f;
  for (int choice = 0; choice < found; ++choice) {
    const double measured = measure(
        [&] {
          require_success(cublasLtMatmul(handle, product, &alpha, b.data, layouts[0], a.data, layouts[1], &shape.beta,
                                         c.data, layouts[2], c.data, layouts[2], &choices[choice].algo, workspace.data,
                                         static_cast<size_t>(workspace_bytes), stream));
        },
        [&] { require_success(cudaStreamSynchronize(stream)); });
    if (choice == 0) raw.first_choice = measured;
    if (choice == 0 || measured < raw.fastest) {
      raw.fastest = measured;
      raw.fastest_choice = choice;
    }
  }
  cublasLtMatmulPreferenceDestroy(preference);
  for (const cublasLtMatrixLayout_t layout : layouts) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(product);
  cudaStreamDestroy(stream);
  cublasLtDestroy(handle);
  return raw;
}

void bench_gemm(Bench& bench) {
  constexpr DType kType = DType::bfloat16;
  const GemmShape shapes[] = {
      {"8192 x 8192 x 8192", 8192, 8192, 8192, false, true, kType, 0.0f},
      {"query projection, 8192 x 4096 x 2560", 8192, 4096, 2560, false, true, kType, 0.0f},
      {"gate and up, 8192 x 19456 x 2560", 8192, 19456, 2560, false, true, kType, 0.0f},
      {"down, 8192 x 2560 x 9728", 8192, 2560, 9728, false, true, kType, 0.0f},
      {"input gradient, 8192 x 2560 x 19456", 8192, 2560, 19456, false, false, kType, 0.0f},
      {"weight gradient, 19456 x 2560 x 8192", 19456, 2560, 8192, true, false, DType::float32, 1.0f},
      {"logits, 2048 x 151936 x 2560", 2048, 151936, 2560, false, true, kType, 0.0f},
      {"small, 8192 x 1024 x 1024", 8192, 1024, 1024, false, true, kType, 0.0f}};
  // "host": the time that enqueueing one product takes here, which short products wait for.
  std::printf("%-40s %9s %9s %9s %7s %7s %8s %5s %9s\n", "product (m x n x k)", "TFLOP/s", "raw", "best of 8", "raw %",
              "best %", "host us", "best", "workspace");
  for (const GemmShape& shape : shapes) {
    const Tensor a = bench.random(kType, shape.transpose_a ? Extents{shape.k, shape.m} : Extents{shape.m, shape.k});
    const Tensor b = bench.random(kType, shape.transpose_b ? Extents{shape.n, shape.k} : Extents{shape.k, shape.n});
    const Tensor c = bench.random(shape.result, {shape.m, shape.n});
    const Tensor workspace = bench.empty(DType::uint8, {int64_t{32} << 20});
    bench.finish();
    const Gemm arguments = {a, b, c, shape.transpose_a, shape.transpose_b, 1.0f, shape.beta, {}};
    const auto product = [&] { bench.backend().gemm(bench.stream(), arguments); };
    // Before and behind the library's own runs, so that neither side has the cooler device to itself.
    const double before = bench.seconds_of(product);
    const RawProduct raw = raw_gemm(shape, a, b, c, workspace);
    const double own = std::min(before, bench.seconds_of(product));
    constexpr int kEnqueued = 50;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kEnqueued; ++i) product();
    const double host = seconds_since(begin) / kEnqueued;
    bench.finish();
    const double work =
        2e-12 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
    std::printf("%-40s %9.1f %9.1f %9.1f %7.1f %7.1f %8.1f %5d %9.0f\n", shape.name, work / own,
                work / raw.first_choice, work / raw.fastest, 100.0 * raw.first_choice / own, 100.0 * raw.fastest / own,
                1e6 * host, raw.fastest_choice, raw.workspace_bytes);
    std::fflush(stdout);
    bench.clear();
  }
}

}  // namespace

int run_cuda_operations_bench(std::span<char* const> arguments) {
  if (cuda_device_count() == 0) {
    std::printf("no NVIDIA GPU here: %s\n", cuda_absence_reason().c_str());
    return 1;
  }
  using MemoryPart = std::pair<std::string_view, void (*)(Bench&, MemoryTable&)>;
  constexpr MemoryPart kMemoryParts[] = {{"norms", bench_norms},
                                         {"heads", bench_heads},
                                         {"activation", bench_activation},
                                         {"loss", bench_embedding_and_loss},
                                         {"elementwise", bench_elementwise}};
  const auto wants = [&](std::string_view part) {
    return arguments.empty() ||
           std::any_of(arguments.begin(), arguments.end(), [&](const char* argument) { return part == argument; });
  };
  for (const std::string_view argument : arguments) {
    const bool is_part = argument == "memory" || argument == "gemm" ||
                         std::any_of(std::begin(kMemoryParts), std::end(kMemoryParts),
                                     [&](const MemoryPart& part) { return part.first == argument; });
    if (!is_part) {
      std::printf("no part \"%s\": memory, norms, heads, activation, loss, elementwise, gemm\n",
                  std::string(argument).c_str());
      return 2;
    }
  }
  const CudaDeviceInfo info = cuda_device_info(0);
  std::printf("%s, %d multiprocessors\n", info.name.c_str(), info.multiprocessors);
  CudaBackendOptions options;
  options.memory_limit_bytes = std::min(int64_t{24} << 30, info.memory_bytes / 2);
  const auto backend = make_cuda_backend(options);
  Bench bench(*backend);
  std::optional<MemoryTable> table;
  for (const auto& [name, run] : kMemoryParts) {
    if (!wants("memory") && !wants(name)) continue;
    if (!table) table.emplace(bench);
    run(bench, *table);
  }
  if (wants("gemm")) bench_gemm(bench);
  bench.clear();
  return 0;
}

}  // namespace ithaca
