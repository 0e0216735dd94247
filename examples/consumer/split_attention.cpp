// Exact attention over one sequence that is split over the ranks of this process, on buffers of our own.
//
// Every rank is a thread with a CPU backend. It holds the tokens that the layout gives it, attends to all others
// through a schedule (a ring, the exchange of ulysses, a hybrid of both), forward and backward, and the results are
// held to those of one rank that has the whole sequence.

#include <ithaca/attention/schedule.h>
#include <ithaca/backend/cpu/cpu_backend.h>
#include <ithaca/base/random.h>
#include <ithaca/comm/mesh.h>
#include <ithaca/comm/thread_ranks.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using ithaca::DType;
using ithaca::Tensor;

constexpr int64_t kTokens = 1000;  // of two documents, which do not see each other
constexpr int64_t kQueryHeads = 4;
constexpr int64_t kKeyHeads = 2;
constexpr int64_t kHeadSize = 32;

// A tensor [tokens, heads, head size] of the whole sequence, or of one rank's part of it, in memory that is ours.
struct Heads {
  int64_t heads;
  std::vector<float> values;

  Heads(int64_t tokens, int64_t head_count)
      : heads(head_count), values(static_cast<size_t>(tokens * head_count * kHeadSize)) {}
  int64_t row() const { return heads * kHeadSize; }
  Tensor tensor() {
    return Tensor::contiguous(values.data(), DType::float32,
                              {static_cast<int64_t>(values.size()) / row(), heads, kHeadSize});
  }
  static Heads random(int64_t head_count, std::string_view name) {
    Heads made(kTokens, head_count);
    const ithaca::RandomStream stream(1, name);
    for (size_t index = 0; index < made.values.size(); ++index)
      made.values[index] = static_cast<float>(stream.normal(index));
    return made;
  }
};

// Query, key and value of the whole sequence, and the gradient that comes from above.
struct Inputs {
  Heads query = Heads::random(kQueryHeads, "query");
  Heads key = Heads::random(kKeyHeads, "key");
  Heads value = Heads::random(kKeyHeads, "value");
  Heads doutput = Heads::random(kQueryHeads, "doutput");
};

// The results of the whole sequence; every rank writes its own tokens.
struct Results {
  Heads output{kTokens, kQueryHeads};
  Heads dquery{kTokens, kQueryHeads};
  Heads dkey{kTokens, kKeyHeads};
  Heads dvalue{kTokens, kKeyHeads};
};

struct Split {
  const char* name;
  ithaca::ScheduleKind kind;
  ithaca::Layout layout;
  int ulysses;
  int ring;
};

Results attend(const Split& split, const Inputs& inputs) {
  Results results;
  const ithaca::HeadShape heads = {kQueryHeads, kKeyHeads, kHeadSize, kHeadSize, 1.0f / std::sqrt(float{kHeadSize})};
  const std::vector<int64_t> document_lengths = {kTokens - 300, 300};
  ithaca::run_thread_ranks(split.ulysses * split.ring, {}, [&](ithaca::ThreadRank& thread) {
    ithaca::CpuBackendOptions memory;
    memory.memory_limit_bytes = int64_t{1} << 28;  // for the schedule's workspace
    const std::unique_ptr<ithaca::Backend> backend = ithaca::make_cpu_backend(memory);
    ithaca::MeshSizes sizes;
    sizes.ulysses = split.ulysses;
    sizes.ring = split.ring;
    ithaca::Mesh mesh(thread.connect(*backend), sizes);
    const auto schedule = ithaca::make_schedule(split.kind, split.layout, heads, *backend, mesh);
    // Which tokens are ours, and who sees whom: known before anything runs, the same for every layer.
    const auto plan = schedule->plan(ithaca::Documents(document_lengths), ithaca::MaskRule{});
    const std::vector<int64_t> positions = plan->shard().positions();
    const auto tokens = static_cast<int64_t>(positions.size());

    const auto take = [&](const Heads& whole) {
      Heads part(tokens, whole.heads);
      for (size_t local = 0; local < positions.size(); ++local) {
        std::copy_n(whole.values.begin() + positions[local] * whole.row(), whole.row(),
                    part.values.begin() + static_cast<int64_t>(local) * whole.row());
      }
      return part;
    };
    const auto give = [&](const Heads& part, Heads& whole) {
      for (size_t local = 0; local < positions.size(); ++local) {
        std::copy_n(part.values.begin() + static_cast<int64_t>(local) * part.row(), part.row(),
                    whole.values.begin() + positions[local] * part.row());
      }
    };

    Heads query = take(inputs.query), key = take(inputs.key), value = take(inputs.value),
          doutput = take(inputs.doutput);
    Heads output(tokens, kQueryHeads), dquery(tokens, kQueryHeads), dkey(tokens, kKeyHeads), dvalue(tokens, kKeyHeads);
    std::vector<float> log_sum_exp_values(static_cast<size_t>(plan->log_sum_exp_extents().product()));
    const Tensor log_sum_exp =
        Tensor::contiguous(log_sum_exp_values.data(), DType::float32, plan->log_sum_exp_extents());
    const ithaca::ShardedQkv qkv = {query.tensor(), key.tensor(), value.tensor()};

    // Both only enqueue; the results are there when the streams have come to their ends.
    schedule->forward(*plan, qkv, output.tensor(), log_sum_exp);
    schedule->backward(*plan, qkv, output.tensor(), log_sum_exp, doutput.tensor(),
                       {dquery.tensor(), dkey.tensor(), dvalue.tensor()});
    backend->finish(backend->record(backend->communication_stream()));
    backend->finish(backend->record(backend->compute_stream()));

    // Every rank has other tokens, so they may write at the same time.
    give(output, results.output);
    give(dquery, results.dquery);
    give(dkey, results.dkey);
    give(dvalue, results.dvalue);
  });
  return results;
}

// ||a - b|| / ||b||
double difference(const Heads& a, const Heads& b) {
  double squares = 0.0;
  double norm = 0.0;
  for (size_t index = 0; index < a.values.size(); ++index) {
    squares += std::pow(static_cast<double>(a.values[index]) - static_cast<double>(b.values[index]), 2);
    norm += std::pow(static_cast<double>(b.values[index]), 2);
  }
  return std::sqrt(squares / norm);
}

int compare() {
  const Inputs inputs;
  const Results whole = attend({"one rank", ithaca::ScheduleKind::ring, ithaca::Layout::contiguous, 1, 1}, inputs);
  bool agrees = true;
  std::printf("%-24s %-9s %-9s %-9s %-9s\n", "split", "output", "dquery", "dkey", "dvalue");
  for (const Split& split :
       {Split{"ring of 4, zigzag", ithaca::ScheduleKind::ring, ithaca::Layout::zigzag, 1, 4},
        Split{"ulysses over 4", ithaca::ScheduleKind::ulysses, ithaca::Layout::contiguous, 4, 1},
        Split{"all-gather over 3", ithaca::ScheduleKind::all_gather, ithaca::Layout::striped, 1, 3},
        Split{"hybrid of 2 x 2", ithaca::ScheduleKind::hybrid, ithaca::Layout::zigzag, 2, 2}}) {
    const Results results = attend(split, inputs);
    const double output = difference(results.output, whole.output);
    const double dquery = difference(results.dquery, whole.dquery);
    const double dkey = difference(results.dkey, whole.dkey);
    const double dvalue = difference(results.dvalue, whole.dvalue);
    std::printf("%-24s %-9.1e %-9.1e %-9.1e %-9.1e\n", split.name, output, dquery, dkey, dvalue);
    for (const double relative : {output, dquery, dkey, dvalue}) agrees = agrees && relative < 2e-6;
  }
  std::printf(agrees ? "All splits agree with one rank.\n" : "A split DIFFERS from one rank.\n");
  return agrees ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return compare();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "split_attention: %s\n", error.what());
    return 1;
  }
}
