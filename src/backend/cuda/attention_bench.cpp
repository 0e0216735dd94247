// Speed of CUDA attention through CudaAttention, beside cuDNN's own plans in the same run.
//
//   attention_bench [dense] [documents] [ring]          (all without arguments)
//
// TFLOP/s on the true area: forward 4 * query heads * head size * visible pairs, backward 2.5 times that. Medians of
// timed runs after warm-up, by CUDA events; random inputs. "raw" is one dense cuDNN plan, its outputs thrown away.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/attention_calls.h"
#include "backend/cuda/attention_testing.h"
#include "backend/cuda/cudnn_attention.h"

namespace ithaca::cuda {
namespace {

constexpr int64_t kQueryHeads = 32;
constexpr int64_t kKeyHeads = 8;
constexpr int64_t kHeadSize = 128;
constexpr float kScale = 0.08838834764f;

class Bench {
 public:
  Bench() : memory_(int64_t{24} << 30), attention_(memory_.provider(false)) {
    ITHACA_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ITHACA_CUDA_CHECK(cudaEventCreate(&begin_));
    ITHACA_CUDA_CHECK(cudaEventCreate(&end_));
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  struct Times {
    double forward_ms = 0.0;
    double backward_ms = 0.0;
  };

  // The tensors of one sequence. Gradients of one list are bfloat16 and overwritten, as on one rank; those of several
  // are float32 and added to.
  struct Tensors {
    TestTensor query, key, value, output, log_sum_exp, doutput, dquery, dkey, dvalue;
    TestTensor dquery_sum, dkey_sum, dvalue_sum;
  };

  Tensors make_tensors(int64_t tokens) {
    const auto make = [&](DType dtype, int64_t heads) {
      TestTensor tensor = make_test_tensor(memory_, dtype, {tokens, heads, kHeadSize});
      if (dtype == DType::bfloat16) {
        fill_random(tensor);
      } else {
        ITHACA_CUDA_CHECK(cudaMemset(tensor.tensor.data, 0, static_cast<size_t>(tensor.tensor.byte_count())));
      }
      return tensor;
    };
    Tensors tensors = {make(DType::bfloat16, kQueryHeads),
                       make(DType::bfloat16, kKeyHeads),
                       make(DType::bfloat16, kKeyHeads),
                       make(DType::bfloat16, kQueryHeads),
                       make_test_tensor(memory_, DType::float32, {tokens, kQueryHeads}),
                       make(DType::bfloat16, kQueryHeads),
                       make(DType::bfloat16, kQueryHeads),
                       make(DType::bfloat16, kKeyHeads),
                       make(DType::bfloat16, kKeyHeads),
                       make(DType::float32, kQueryHeads),
                       make(DType::float32, kKeyHeads),
                       make(DType::float32, kKeyHeads)};
    ITHACA_CUDA_CHECK(cudaDeviceSynchronize());
    return tensors;
  }

  // Through CudaAttention, in one state; each list is a call on all keys.
  Times through_attention(CudaAttention& attention, const Tensors& tensors,
                          const std::vector<std::vector<AttentionTask>>& lists) {
    const Tensor& query = tensors.query.tensor;
    const auto forward = [&] {
      const auto state = attention.begin(stream_, {query.extent(0), kQueryHeads, kHeadSize},
                                         {tensors.output.tensor, tensors.log_sum_exp.tensor});
      for (const auto& tasks : lists) {
        AttentionForward arguments;
        arguments.query = query;
        arguments.key = tensors.key.tensor;
        arguments.value = tensors.value.tensor;
        arguments.tasks = tasks;
        arguments.scale = kScale;
        arguments.state = state.get();
        attention.forward(stream_, arguments);
      }
      attention.finish(stream_, *state, tensors.output.tensor, tensors.log_sum_exp.tensor);
    };
    const auto backward = [&] {
      for (const auto& tasks : lists) {
        AttentionBackward arguments;
        arguments.query = query;
        arguments.key = tensors.key.tensor;
        arguments.value = tensors.value.tensor;
        arguments.output = tensors.output.tensor;
        arguments.log_sum_exp = tensors.log_sum_exp.tensor;
        arguments.doutput = tensors.doutput.tensor;
        arguments.tasks = tasks;
        arguments.scale = kScale;
        const bool is_only = lists.size() == 1;
        arguments.overwrites_dquery = arguments.overwrites_dkey_dvalue = is_only;
        arguments.dquery = (is_only ? tensors.dquery : tensors.dquery_sum).tensor;
        arguments.dkey = (is_only ? tensors.dkey : tensors.dkey_sum).tensor;
        arguments.dvalue = (is_only ? tensors.dvalue : tensors.dvalue_sum).tensor;
        attention.backward(stream_, arguments);
      }
    };
    return {time_ms(forward), time_ms(backward)};
  }

  // cuDNN's plans for one causal sequence, nothing else.
  Times raw(const Tensors& tensors) {
    const int64_t tokens = tensors.query.tensor.extent(0);
    CudnnAttentionShape shape;
    shape.mask = AttentionMask::causal;
    shape.query_heads = kQueryHeads;
    shape.key_heads = kKeyHeads;
    shape.query_length = shape.key_length = tokens;
    shape.head_size = kHeadSize;
    shape.query = shape.output = {tokens * kQueryHeads * kHeadSize, kHeadSize, kQueryHeads * kHeadSize};
    shape.key = shape.value = {tokens * kKeyHeads * kHeadSize, kHeadSize, kKeyHeads * kHeadSize};
    CudnnAttentionShape backward_shape = shape;
    backward_shape.backward = true;
    backward_shape.doutput = backward_shape.dquery = shape.query;
    backward_shape.dkey = backward_shape.dvalue = shape.key;
    require(cudnn_.prepare(shape) && cudnn_.prepare(backward_shape), cudnn_.last_refusal());
    const auto bytes = [&](int64_t count) { return memory_.allocate(count); };
    const auto rows = bytes(tokens * kQueryHeads * 4);
    const auto sums = bytes(tokens * kQueryHeads * 4);
    const auto accumulator = bytes(tokens * kQueryHeads * kHeadSize * 4);
    const auto dquery = bytes(tokens * kQueryHeads * kHeadSize * 2);
    const auto dkey = bytes(tokens * kKeyHeads * kHeadSize * 2);
    const auto dvalue = bytes(tokens * kKeyHeads * kHeadSize * 2);
    const auto workspace = bytes(std::max(cudnn_.workspace_bytes(shape), cudnn_.workspace_bytes(backward_shape)));
    CudnnForwardData forward_data;
    forward_data.query = tensors.query.tensor.data;
    forward_data.key = tensors.key.tensor.data;
    forward_data.value = tensors.value.tensor.data;
    forward_data.output = tensors.output.tensor.data;
    forward_data.log_sum_exp = static_cast<float*>(rows.get());
    forward_data.scale = kScale;
    CudnnBackwardData backward_data;
    backward_data.query = forward_data.query;
    backward_data.key = forward_data.key;
    backward_data.value = forward_data.value;
    backward_data.output = forward_data.output;
    backward_data.doutput = tensors.doutput.tensor.data;
    backward_data.log_sum_exp = forward_data.log_sum_exp;
    backward_data.dquery = dquery.get();
    backward_data.dkey = dkey.get();
    backward_data.dvalue = dvalue.get();
    backward_data.row_sums = static_cast<float*>(sums.get());
    backward_data.dquery_accumulator = static_cast<float*>(accumulator.get());
    backward_data.scale = kScale;
    return {time_ms([&] { cudnn_.forward(stream_, shape, forward_data, workspace.get()); }),
            time_ms([&] { cudnn_.backward(stream_, backward_shape, backward_data, workspace.get()); })};
  }

  CudaAttention& attention() { return attention_; }
  TestMemory& memory() { return memory_; }

 private:
  // The median of several runs, each of about a millisecond or more.
  double time_ms(const std::function<void()>& work) {
    work();
    work();
    const double once = measure_ms(work, 1);
    const int inner = static_cast<int>(std::clamp(2.0 / once, 1.0, 50.0));
    const int outer = static_cast<int>(std::clamp(250.0 / (once * inner), 3.0, 9.0));
    std::vector<double> times;
    for (int i = 0; i < outer; ++i) times.push_back(measure_ms(work, inner));
    std::nth_element(times.begin(), times.begin() + outer / 2, times.end());
    return times[static_cast<size_t>(outer / 2)];
  }
  double measure_ms(const std::function<void()>& work, int count) {
    ITHACA_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < count; ++i) work();
    ITHACA_CUDA_CHECK(cudaEventRecord(end_, stream_));
    ITHACA_CUDA_CHECK(cudaEventSynchronize(end_));
    float elapsed = 0.0f;
    ITHACA_CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin_, end_));
    return static_cast<double>(elapsed) / count;
  }

  // About normal numbers, repeated every few million elements.
  void fill_random(const TestTensor& to) {
    constexpr int64_t kPeriod = int64_t{1} << 22;
    if (pattern_.empty()) {
      std::mt19937 random(1);
      for (int64_t i = 0; i < kPeriod + 4099; ++i) {
        float sum = -2.0f;
        for (int j = 0; j < 4; ++j) sum += static_cast<float>(random()) / 4294967296.0f;
        pattern_.push_back(to_bfloat16(sum * 1.7320508f));
      }
    }
    start_ = (start_ + 577) % 4096;  // different tensors, different numbers
    const int64_t count = to.tensor.element_count();
    auto* base = static_cast<BFloat16*>(to.tensor.data);
    for (int64_t begin = 0; begin < count; begin += kPeriod) {
      const int64_t part = std::min(kPeriod, count - begin);
      ITHACA_CUDA_CHECK(
          cudaMemcpy(base + begin, pattern_.data() + start_, static_cast<size_t>(part * 2), cudaMemcpyHostToDevice));
    }
  }

  TestMemory memory_;
  CudaAttention attention_;
  CudnnAttention cudnn_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<BFloat16> pattern_;
  int64_t start_ = 0;
};

double teraflops(double pairs, double ms) {
  return 4.0 * static_cast<double>(kQueryHeads * kHeadSize) * pairs / (ms * 1e-3) * 1e-12;
}
double pairs_of(const std::vector<std::vector<AttentionTask>>& lists) {
  double pairs = 0.0;
  for (const auto& tasks : lists) {
    for (const AttentionTask& task : normalised_tasks(tasks)) pairs += static_cast<double>(visible_pairs(task));
  }
  return pairs;
}

struct Rates {
  double forward = 0.0;
  double backward = 0.0;
  double both = 0.0;
};
Rates rates_of(const Bench::Times& times, double pairs) {
  return {teraflops(pairs, times.forward_ms), 2.5 * teraflops(pairs, times.backward_ms),
          3.5 * teraflops(pairs, times.forward_ms + times.backward_ms)};
}

void print(const std::string& name, const Bench::Times& times, double pairs, const Rates& against) {
  const Rates rates = rates_of(times, pairs);
  std::printf("  %-44s fwd %8.3f ms %6.1f (%5.1f%%)   bwd %8.3f ms %6.1f (%5.1f%%)   both %6.1f (%5.1f%%)\n",
              name.c_str(), times.forward_ms, rates.forward, 100.0 * rates.forward / against.forward, times.backward_ms,
              rates.backward, 100.0 * rates.backward / against.backward, rates.both, 100.0 * rates.both / against.both);
  std::fflush(stdout);
}

std::vector<AttentionTask> causal_documents(const std::vector<int64_t>& lengths, int64_t window = 0) {
  std::vector<AttentionTask> tasks;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    tasks.push_back({begin, begin + length, begin, begin + length, window > 0 ? -window : kNoLower, 0});
    begin += length;
  }
  return tasks;
}

void bench_dense(Bench& bench) {
  std::printf("one causal sequence, %d/%d heads of %d; %% of raw cuDNN\n", static_cast<int>(kQueryHeads),
              static_cast<int>(kKeyHeads), static_cast<int>(kHeadSize));
  for (int64_t tokens = 4096; tokens <= 65536; tokens *= 2) {
    const Bench::Tensors tensors = bench.make_tensors(tokens);
    const std::vector<std::vector<AttentionTask>> lists = {causal_documents({tokens})};
    const double pairs = pairs_of(lists);
    const Rates raw = rates_of(bench.raw(tensors), pairs);
    std::printf("%6d tokens\n", static_cast<int>(tokens));
    print("raw cuDNN", bench.raw(tensors), pairs, raw);
    bench.memory().forget_largest_use();
    print("CudaAttention", bench.through_attention(bench.attention(), tensors, lists), pairs, raw);
    std::printf("  peak device memory with tensors %.2f GiB\n",
                static_cast<double>(bench.memory().largest_use()) / (1 << 30));
  }
}

void bench_documents(Bench& bench) {
  constexpr int64_t kTokens = 65536;
  const Bench::Tensors tensors = bench.make_tensors(kTokens);
  const Rates raw = rates_of(bench.raw(tensors), pairs_of({causal_documents({kTokens})}));
  std::printf("packed documents, 65536 tokens; %% of raw cuDNN on one sequence (fwd %.1f, bwd %.1f, both %.1f)\n",
              raw.forward, raw.backward, raw.both);
  struct Mix {
    const char* name;
    std::vector<int64_t> lengths;
    int64_t window = 0;
  };
  const std::vector<int64_t> halves = {32768, 16384, 8192, 4096, 2048, 2048};
  std::vector<int64_t> uneven;  // about 256 documents of about 256 tokens
  std::mt19937 random(3);
  for (int64_t left = kTokens; left > 0; left -= uneven.back()) {
    uneven.push_back(std::min<int64_t>(left, 64 + static_cast<int64_t>(random() % 385)));
  }
  const std::vector<Mix> mixes = {
      {"1 document", {kTokens}},
      {"16 x 4096", std::vector<int64_t>(16, 4096)},
      {"32K + 16K + 8K + 4K + 2K + 2K", halves},
      {"16 odd lengths", {16001, 11003, 9999, 7001, 5003, 4099, 3333, 2049, 2047, 1537, 1111, 999, 777, 333, 211, 33}},
      {"64 x 1024", std::vector<int64_t>(64, 1024)},
      {"128 x 512", std::vector<int64_t>(128, 512)},
      {"256 x 256", std::vector<int64_t>(256, 256)},
      {"about 256 of 64 to 448", uneven},
      {"window 4096", {kTokens}, 4096},
      {"32K + 16K + ..., window 4096", halves, 4096}};
  // Without the plans of other tables: dense ones are bounded.
  CudaAttention attention(bench.memory().provider(false));
  for (const Mix& mix : mixes) {
    const std::vector<std::vector<AttentionTask>> lists = {causal_documents(mix.lengths, mix.window)};
    print(mix.name, bench.through_attention(attention, tensors, lists), pairs_of(lists), raw);
  }
  std::printf("  plans built %d\n", static_cast<int>(attention.plans_built()));
  CudaAttention::Options own;
  own.use_cudnn = false;
  CudaAttention own_attention(bench.memory().provider(false), own);
  // Documents of up to kLongestDocument have a backward kernel of their own.
  for (const int64_t length : {256, 512, 1024, 4096}) {
    const std::vector<std::vector<AttentionTask>> equal = {
        causal_documents(std::vector<int64_t>(static_cast<size_t>(kTokens / length), length))};
    print("task kernels, documents of " + std::to_string(length),
          bench.through_attention(own_attention, tensors, equal), pairs_of(equal), raw);
  }
  const std::vector<std::vector<AttentionTask>> uneven_list = {causal_documents(uneven)};
  print("task kernels, about 256 of 64 to 448", bench.through_attention(own_attention, tensors, uneven_list),
        pairs_of(uneven_list), raw);
  const std::vector<std::vector<AttentionTask>> odd = {{{0, 4096, 0, 4096, 0, kNoUpper}}};
  print("keys of an earlier shard, window 4096", bench.through_attention(attention, tensors, odd), pairs_of(odd), raw);
}

// The hops of rank 0 of 4 over shards of 16384 tokens, all keys at hand: what merging costs.
void bench_ring(Bench& bench) {
  constexpr int64_t kShard = 16384;
  const Bench::Tensors tensors = bench.make_tensors(kShard);
  const Rates raw = rates_of(bench.raw(tensors), pairs_of({causal_documents({kShard})}));
  std::printf("ring of 4, shards of 16384 tokens; %% of raw cuDNN on one causal shard\n");
  const AttentionTask full = {0, kShard, 0, kShard, kNoLower, kNoUpper};
  const std::vector<std::vector<AttentionTask>> contiguous = {causal_documents({kShard}), {full}, {full}, {full}};
  print("last rank of the contiguous layout", bench.through_attention(bench.attention(), tensors, contiguous),
        pairs_of(contiguous), raw);
  const int64_t c = kShard / 2;
  const AttentionTask lower = {c, kShard, 0, kShard, kNoLower, kNoUpper};
  const std::vector<std::vector<AttentionTask>> zigzag = {
      {{0, c, 0, c, kNoLower, 0}, {c, kShard, 0, c, kNoLower, kNoUpper}, {c, kShard, c, kShard, kNoLower, 0}},
      {lower},
      {lower},
      {lower}};
  print("first rank of the zigzag layout", bench.through_attention(bench.attention(), tensors, zigzag),
        pairs_of(zigzag), raw);
}

}  // namespace
}  // namespace ithaca::cuda

int main(int argument_count, char** arguments) {
  try {
    const std::vector<std::string> wanted(arguments + 1, arguments + argument_count);
    const auto is_wanted = [&](const char* name) {
      return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    };
    ithaca::cuda::Bench bench;
    if (is_wanted("dense")) ithaca::cuda::bench_dense(bench);
    if (is_wanted("documents")) ithaca::cuda::bench_documents(bench);
    if (is_wanted("ring")) ithaca::cuda::bench_ring(bench);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
