// Benchmarks on a user's own machine: whole training steps, attention alone, matrix products. What `ithaca bench` runs.
//
// Times are taken on the host around work that has been waited for, after warm-up. Everything runs through the same
// objects as training, on random weights and tokens. Thread-safety: call from one thread; ranks are threads of their
// own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/schedule.h"
#include "backend/phase_table.h"
#include "comm/mesh.h"
#include "model/description.h"
#include "model/model_options.h"
#include "shard/zero_stage.h"
#include "tensor/memory.h"
#include "train/backend_choice.h"

namespace ithaca {

// Published shapes by name (qwen3-0.6b, qwen3-4b, qwen3-8b, llama3.2-1b, llama3.1-8b). Throws ConfigurationError with
// the known names.
ModelDescription published_shape(const std::string& name);
std::vector<std::string> published_shape_names();

// Floating point operations of one optimizer step over documents of `document_lengths` tokens (causal; what recompute
// repeats is not counted): 6 per parameter and token (the head included, the embedding not), and for each layer's
// attention 3.5 x 2 x length^2 x query heads x head size.
double model_step_flops(const ModelDescription& model, const std::vector<int64_t>& document_lengths);

// How a sequence is made of documents.
struct DocumentMix {
  enum class Kind : uint8_t { one, exponential, long_tailed };
  Kind kind = Kind::one;
  int64_t mean = 0;  // tokens of a document; 0 for `one`
  bool operator==(const DocumentMix&) const = default;
};
// "0" (one document), "8192" (exponential) or "long-tailed:8192". Throws ConfigurationError that names --documents.
DocumentMix parse_document_mix(const std::string& text);
// As parse_document_mix reads it.
std::string document_mix_text(const DocumentMix& mix);

// Throws ConfigurationError that names --tokens or --documents: for no or too many tokens, and for documents so short
// that there would be too many of them.
void check_benchmark_sequence(int64_t tokens, const DocumentMix& mix);
inline constexpr int64_t kMostBenchmarkTokens = 100'000'000'000;
inline constexpr int64_t kMostBenchmarkDocuments = 10'000'000;

// Lengths of documents that fill `tokens` exactly, the same in every run; one document where the mean is not below
// `tokens`. exponential: drawn one after the other, at least 16 tokens each, the last one cut. long_tailed: tokens /
// mean documents (rounded), drawn from a log-normal distribution with sigma 1.2 (half of them are below 0.49 means, one
// in a hundred above 7.9) and scaled so that they fill the sequence and have the mean exactly.
std::vector<int64_t> benchmark_documents(int64_t tokens, const DocumentMix& mix);

// The speed of large square products in the compute dtype on the rank's device, FLOP/s: what steps are compared with.
// 0 when there is no memory for them.
double measure_gemm_peak(Backend& backend);

struct StepBenchmark {
  BackendChoice backend;
  ModelDescription model;
  std::vector<int64_t> tokens;             // of the sequence, whole; one row each
  std::vector<RecomputePolicy> recompute;  // times one row each
  DocumentMix documents;
  int ranks = 1;                  // sp_size
  std::string schedule = "auto";  // as in a recipe, with layout
  std::string layout = "auto";
  int64_t ulysses_size = 0;
  int64_t ring_size = 0;
  ZeroStage zero = ZeroStage::optimizer_state;
  int warmup = 2;
  int steps = 3;
  int64_t memory_limit_bytes = 0;
  bool phases = false;  // records one more step of every row
  // Layers, from the last one back, whose attention is computed; 0: all. The others do everything else and take the
  // same memory: so lengths can be tried whose attention would take minutes. The last ones, because forward and
  // backward of the last layer are where most is kept.
  int64_t attention_layers = 0;
};

struct StepBenchmarkRow {
  int64_t tokens = 0;
  RecomputePolicy recompute = RecomputePolicy::attention;
  std::string attention;             // "hybrid 2x4, zigzag"; empty on one rank
  std::string failure;               // why it could not run (out of memory); the rest is 0 then
  std::vector<double> step_seconds;  // each measured step
  double seconds = 0.0;              // their median
  // Of the attention that was left out (StepBenchmark::attention_layers), which was not run: what a layer whose
  // attention was computed took for it, for each of the others. The rates below are for `seconds` and this together.
  double planned_seconds = 0.0;
  double flops = 0.0;  // of one step, all ranks
  double flops_per_second_per_device = 0.0;
  double peak_share = 0.0;            // of measure_gemm_peak
  double exposed_wait_seconds = 0.0;  // of rank 0's compute, per step
  int64_t bytes_sent = 0;             // by rank 0, per step
  double loss = 0.0;                  // of the last step
  MemoryUsage memory;                 // peak of the rank that uses most
  PhaseTable phases;                  // of rank 0, with StepBenchmark::phases
};

struct StepBenchmarkResult {
  double gemm_peak = 0.0;  // FLOP/s of one device
  int devices = 1;         // that the ranks ran on
  std::vector<StepBenchmarkRow> rows;
};

// Throws ConfigurationError for what cannot be measured, whatever the memory. run_step_benchmark does so first.
void check_step_benchmark(const StepBenchmark& benchmark);

StepBenchmarkResult run_step_benchmark(const StepBenchmark& benchmark,
                                       const std::function<void(const StepBenchmarkRow&)>& on_row);

// The longest sequence whose step runs: twice the length until memory is out, then half of what is left, down to a
// sixteenth of the longest that ran or to the step (8,192 tokens, or the first length where that is shorter). Every try
// has ranks of its own. `benchmark` has one recompute policy, and one length: the first to be tried.
struct LongestSequence {
  int64_t tokens = 0;            // 0: not even the shortest ran
  int64_t shortest_failure = 0;  // the shortest that had no memory
  double gemm_peak = 0.0;        // FLOP/s of one device
  std::vector<StepBenchmarkRow> tries;
};
LongestSequence find_longest_sequence(const StepBenchmark& benchmark,
                                      const std::function<void(const StepBenchmarkRow&)>& on_try);

// One attention layer, forward and backward, split over ranks by each schedule, against one rank with the whole.
struct AttentionBenchmark {
  BackendChoice backend;
  HeadShape heads;
  std::vector<int64_t> tokens;
  std::vector<DocumentMix> documents = {DocumentMix{}};  // one after the other; one document comes first
  int64_t window = 0;
  int ranks = 2;
  // "ulysses", "ring:zigzag", "ring:striped", "all_gather", "hybrid:2x4:zigzag" (ulysses x ring); zigzag where a ring
  // has no layout; "auto" is what a run would choose for the documents. Empty: benchmark_schedules(ranks).
  std::vector<std::string> schedules;
  // Rank counts whose schedules are predicted (train/benchmark_prediction.h), for `schedules` or, where that is empty,
  // benchmark_schedules(those). Needs two or more ranks, between which links are measured.
  std::vector<int> predicted_ranks;
  double seconds_per_measurement = 0.5;
};

// AttentionBenchmarkRow::schedule of a row in which every device computes the whole on its own, all at the same time.
inline constexpr std::string_view kEachAlone = "one rank each";

struct AttentionBenchmarkRow {
  int64_t tokens = 0;
  DocumentMix documents;
  std::string schedule;  // "one rank" for the reference, or kEachAlone
  std::string chosen;    // the schedule that "auto" was
  int ranks = 1;
  bool predicted = false;  // not run
  std::string unfit;       // why the schedule cannot be run by so many ranks: it is left out
  std::string failure;     // why it could not run (out of memory)
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double forward_flops_per_second = 0.0;   // of one device
  double backward_flops_per_second = 0.0;  // 2.5 times the forward's operations
  double forward_efficiency = 0.0;         // one rank's time / (devices that share the sequence x this)
  double efficiency = 0.0;                 // the same of forward and backward together
  double dense_share = 0.0;                // operations per second of both, of those with one document; 0: not there
  double exposed_share = 0.0;              // of one forward and backward: rank 0's compute waits
  int64_t bytes_sent = 0;                  // by rank 0, one forward and backward
};

// Throws ConfigurationError for what cannot be measured or predicted, whatever the memory. run_attention_benchmark does
// so first.
void check_attention_benchmark(const AttentionBenchmark& benchmark);

std::vector<AttentionBenchmarkRow> run_attention_benchmark(
    const AttentionBenchmark& benchmark, const std::function<void(const AttentionBenchmarkRow&)>& on_row);

// The schedules that suit `ranks` ranks and the heads, for AttentionBenchmark::schedules.
std::vector<std::string> benchmark_schedules(int ranks, int64_t query_heads);

// The matrix products of one decoder layer and the head, forward and backward, for `tokens` tokens.
struct GemmBenchmarkRow {
  std::string name;  // "gate, up: weight gradient"
  int64_t rows = 0, columns = 0, depth = 0;
  double seconds = 0.0;
  double flops_per_second = 0.0;
  double peak_share = 0.0;
};
struct GemmBenchmarkResult {
  double gemm_peak = 0.0;
  std::vector<GemmBenchmarkRow> rows;
};
GemmBenchmarkResult run_gemm_benchmark(const BackendChoice& backend, const ModelDescription& model, int64_t tokens);

}  // namespace ithaca
