#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "attention/documents.h"
#include "attention/tasks.h"
#include "base/error.h"
#include "comm/thread_ranks.h"
#include "train/benchmark.h"
#include "train/benchmark_tensors.h"
#include "train/step.h"
#include "train/verify.h"

namespace ithaca {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One rank's tensors of one layer, filled with random numbers.
class LayerTensors {
 public:
  LayerTensors(Backend& backend, const HeadShape& heads, const AttentionPlan& plan, DType gradients)
      : backend_(backend) {
    const int64_t tokens = plan.shard().size();
    const DType compute = backend.compute_dtype();
    qkv = {make(query_, compute, {tokens, heads.query_heads, heads.key_size}, true),
           make(key_, compute, {tokens, heads.key_heads, heads.key_size}, true),
           make(value_, compute, {tokens, heads.key_heads, heads.value_size}, true)};
    output = make(output_, compute, {tokens, heads.query_heads, heads.value_size}, false);
    log_sum_exp = make(log_sum_exp_, DType::float32, plan.log_sum_exp_extents(), false);
    doutput = make(doutput_, compute, {tokens, heads.query_heads, heads.value_size}, true);
    gradient = {make(dquery_, gradients, {tokens, heads.query_heads, heads.key_size}, false),
                make(dkey_, gradients, {tokens, heads.key_heads, heads.key_size}, false),
                make(dvalue_, gradients, {tokens, heads.key_heads, heads.value_size}, false)};
  }

  ShardedQkv qkv;
  Tensor output, log_sum_exp, doutput;
  ShardedQkvGradient gradient;

 private:
  const Tensor& make(Buffer& buffer, DType dtype, const Extents& extents, bool fill) {
    buffer = backend_.arena(Tier::device)
                 .allocate("attention benchmark", MemoryClass::workspace, dtype, extents, backend_.compute_stream());
    if (fill) fill_random(backend_, buffer.tensor(), ++seed_);
    return buffer.tensor();
  }

  Backend& backend_;
  uint32_t seed_ = 0;
  Buffer query_, key_, value_, output_, log_sum_exp_, doutput_, dquery_, dkey_, dvalue_;
};

// Runs `work` on all ranks until about `seconds` have passed, after warming up; seconds of one call, the same on every
// rank, the quicker of two measurements.
template <typename Work>
double timed(Backend& backend, Mesh& mesh, double seconds, const Work& work) {
  const auto run = [&](int64_t repetitions) {
    mesh.world().barrier();
    const auto start = Clock::now();
    for (int64_t index = 0; index < repetitions; ++index) work();
    backend.finish(backend.record(backend.compute_stream()));
    mesh.world().barrier();
    return seconds_since(start);
  };
  static_cast<void>(run(1));  // kernels are chosen
  const double once = run(1);
  // Rank 0's clock decides for all.
  const auto wanted = static_cast<int64_t>(std::clamp(seconds / std::max(once, 1e-6), 1.0, 200.0));
  const int64_t repetitions = gather_values(mesh.world(), backend, std::array{wanted}).front();
  return std::min(run(repetitions), run(repetitions)) / static_cast<double>(repetitions);
}

AttentionBenchmarkRow measure(const AttentionBenchmark& benchmark, int64_t tokens, const VerifyMesh& mesh_choice) {
  AttentionBenchmarkRow row;
  row.tokens = tokens;
  row.schedule = mesh_choice.text;
  const Documents documents(benchmark_documents(tokens, benchmark.mean_document));
  MeshSizes sizes;
  sizes.ring = mesh_choice.ring_size;
  sizes.ulysses = mesh_choice.ulysses_size;
  const int devices =
      benchmark.backend.kind == BackendKind::cuda ? std::min(sizes.ranks(), benchmark.backend.devices) : 1;
  double pairs = 0.0;
  for (int64_t document = 0; document < documents.count(); ++document) {
    const auto length = static_cast<double>(documents.end(document) - documents.begin(document));
    const auto window = static_cast<double>(benchmark.window);
    const bool whole = benchmark.window == 0 || window >= length;
    pairs += whole ? 0.5 * length * (length + 1.0) : window * length - 0.5 * window * (window - 1.0);
  }
  const HeadShape& heads = benchmark.heads;
  const double forward_flops =
      2.0 * static_cast<double>(heads.key_size + heads.value_size) * static_cast<double>(heads.query_heads) * pairs;
  try {
    run_thread_ranks(sizes.ranks(), {}, [&](ThreadRank& thread) {
      const std::unique_ptr<Backend> backend = make_backend(benchmark.backend, thread.rank(), thread.size(), 0);
      Mesh mesh(thread.connect(*backend), sizes);
      const std::unique_ptr<AttentionSchedule> schedule =
          make_schedule(mesh_choice.schedule, mesh_choice.layout, heads, *backend, mesh);
      const std::unique_ptr<AttentionPlan> plan = schedule->plan(documents, MaskRule{true, benchmark.window});
      const LayerTensors layer(*backend, heads, *plan, schedule->gradient_dtype());
      const auto forward = [&] { schedule->forward(*plan, layer.qkv, layer.output, layer.log_sum_exp); };
      const auto backward = [&] {
        schedule->backward(*plan, layer.qkv, layer.output, layer.log_sum_exp, layer.doutput, layer.gradient);
      };
      const double forward_seconds = timed(*backend, mesh, benchmark.seconds_per_measurement, forward);
      const double backward_seconds = timed(*backend, mesh, benchmark.seconds_per_measurement, backward);
      const double wait_before = backend->exposed_wait_seconds();
      const int64_t sent_before = mesh.total_bytes_sent();
      mesh.world().barrier();
      const auto start = Clock::now();
      forward();
      backward();
      backend->finish(backend->record(backend->compute_stream()));
      const int64_t sent = mesh.total_bytes_sent() - sent_before;
      const double exposed_share = (backend->exposed_wait_seconds() - wait_before) / seconds_since(start);
      mesh.world().barrier();
      if (thread.rank() != 0) return;
      row.forward_seconds = forward_seconds;
      row.backward_seconds = backward_seconds;
      row.forward_flops_per_second = forward_flops / forward_seconds / devices;
      row.backward_flops_per_second = 2.5 * forward_flops / backward_seconds / devices;
      row.exposed_share = exposed_share;
      row.bytes_sent = sent;
    });
  } catch (const OutOfMemoryError& error) {
    row.failure = error.what();
  }
  return row;
}

}  // namespace

std::vector<std::string> benchmark_schedules(int ranks, int64_t query_heads) {
  std::vector<std::string> names;
  if (ranks <= query_heads) names.push_back("ulysses");
  names.insert(names.end(), {"ring:zigzag", "ring:striped", "all_gather:zigzag"});
  for (int ulysses = 2; ulysses < ranks; ++ulysses) {
    if (ranks % ulysses == 0 && ulysses <= query_heads) {
      names.push_back(fmt::format("hybrid:{}x{}:zigzag", ulysses, ranks / ulysses));
    }
  }
  return names;
}

std::vector<AttentionBenchmarkRow> run_attention_benchmark(
    const AttentionBenchmark& benchmark, const std::function<void(const AttentionBenchmarkRow&)>& on_row) {
  std::vector<VerifyMesh> meshes;
  for (const std::string& schedule : benchmark.schedules) {
    // The size of the schedules that have one only is the number of ranks.
    std::string text = schedule;
    if (!text.starts_with("hybrid")) {
      const size_t colon = text.find(':');
      text.insert(std::min(colon, text.size()), fmt::format(":{}", benchmark.ranks));
    }
    VerifyMesh mesh = parse_verify_meshes(text).front();
    if (mesh.ring_size * mesh.ulysses_size != benchmark.ranks) {
      throw ConfigurationError(fmt::format("--schedules: {} has {} x {} = {} ranks, but --ranks is {}", schedule,
                                           mesh.ulysses_size, mesh.ring_size, mesh.ring_size * mesh.ulysses_size,
                                           benchmark.ranks));
    }
    mesh.text = schedule;
    meshes.push_back(std::move(mesh));
  }
  VerifyMesh single;
  single.text = "one rank";
  const int devices =
      benchmark.backend.kind == BackendKind::cuda ? std::min(benchmark.ranks, benchmark.backend.devices) : 1;
  std::vector<AttentionBenchmarkRow> rows;
  for (const int64_t tokens : benchmark.tokens) {
    AttentionBenchmarkRow reference = measure(benchmark, tokens, single);
    reference.forward_efficiency = reference.efficiency = reference.failure.empty() ? 1.0 : 0.0;
    on_row(reference);
    rows.push_back(reference);
    if (benchmark.ranks == 1) continue;
    for (const VerifyMesh& mesh : meshes) {
      AttentionBenchmarkRow row = measure(benchmark, tokens, mesh);
      if (row.failure.empty() && reference.failure.empty()) {
        row.forward_efficiency = reference.forward_seconds / (devices * row.forward_seconds);
        row.efficiency = (reference.forward_seconds + reference.backward_seconds) /
                         (devices * (row.forward_seconds + row.backward_seconds));
      }
      on_row(row);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace ithaca
