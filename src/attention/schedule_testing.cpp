#include "attention/schedule_testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "attention/head_deal.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/reference_attention.h"
#include "base/random.h"
#include "comm/device_testing.h"
#include "comm/thread_ranks.h"

namespace ithaca::testing {
namespace {

std::vector<float> random_values(int64_t count, uint64_t seed, std::string_view name) {
  const RandomStream random(seed, name);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t index = 0; index < values.size(); ++index) values[index] = static_cast<float>(random.normal(index));
  return values;
}

// Copies `size` floats per token between a whole sequence and a rank's rows.
template <typename Function>
void for_each_row(const Shard& shard, const Function& function) {
  const std::vector<int64_t> positions = shard.positions();
  for (size_t local = 0; local < positions.size(); ++local) function(positions[local], static_cast<int64_t>(local));
}

int64_t fused_row(const HeadShape& heads) {
  return heads.query_heads * heads.key_size + heads.key_heads * (heads.key_size + heads.value_size);
}

// Views [tokens, heads, size] of a fused row.
ShardedQkv fused_views(std::vector<float>& fused, int64_t tokens, const HeadShape& heads) {
  const int64_t row = fused_row(heads);
  const auto view = [&](int64_t offset, int64_t count, int64_t size) {
    return Tensor{fused.data() + offset, DType::float32, {tokens, count, size}, {row, size, 1}};
  };
  const int64_t key_offset = heads.query_heads * heads.key_size;
  return {view(0, heads.query_heads, heads.key_size), view(key_offset, heads.key_heads, heads.key_size),
          view(key_offset + heads.key_heads * heads.key_size, heads.key_heads, heads.value_size)};
}

Traffic difference(const Traffic& after, const Traffic& before) {
  Traffic result;
  for (size_t index = 0; index < after.calls.size(); ++index) {
    result.calls[index] = after.calls[index] - before.calls[index];
    result.bytes_sent[index] = after.bytes_sent[index] - before.bytes_sent[index];
  }
  return result;
}

}  // namespace

std::string ScheduleCase::describe() const {
  return fmt::format("{} {} ulysses {} ring {}, heads {}/{} of {}/{}, {} tokens in {} documents, {}window {}",
                     schedule_name(kind), layout_name(layout), ulysses, ring, heads.query_heads, heads.key_heads,
                     heads.key_size, heads.value_size, documents.total_tokens(), documents.count(),
                     mask.causal ? "causal, " : "", mask.window);
}

int64_t RankReport::forward_bytes() const {
  return forward_ring.total_bytes_sent() + forward_ulysses.total_bytes_sent();
}
int64_t RankReport::backward_bytes() const {
  return backward_ring.total_bytes_sent() + backward_ulysses.total_bytes_sent();
}

SequenceInputs random_inputs(const HeadShape& heads, int64_t tokens, uint64_t seed) {
  return {random_values(tokens * heads.query_heads * heads.key_size, seed, "query"),
          random_values(tokens * heads.key_heads * heads.key_size, seed, "key"),
          random_values(tokens * heads.key_heads * heads.value_size, seed, "value"),
          random_values(tokens * heads.query_heads * heads.value_size, seed, "doutput")};
}

SequenceTruth true_results(const HeadShape& heads, const Documents& documents, const MaskRule& mask,
                           const SequenceInputs& inputs) {
  const int64_t tokens = documents.total_tokens();
  std::vector<int64_t> owner;
  for (int64_t token = 0; token < tokens; ++token) owner.push_back(documents.document_of(token));
  const AttentionVisibility visible = [&](int64_t query, int64_t key) {
    if (owner[static_cast<size_t>(query)] != owner[static_cast<size_t>(key)]) return false;
    if (mask.causal && key > query) return false;
    return mask.window == 0 || query - key < mask.window;
  };
  ReferenceAttention attention;
  attention.query_tokens = attention.key_tokens = tokens;
  attention.query_heads = heads.query_heads;
  attention.key_heads = heads.key_heads;
  attention.key_size = heads.key_size;
  attention.value_size = heads.value_size;
  attention.scale = static_cast<double>(heads.scale);
  attention.query.assign(inputs.query.begin(), inputs.query.end());
  attention.key.assign(inputs.key.begin(), inputs.key.end());
  attention.value.assign(inputs.value.begin(), inputs.value.end());
  const ReferenceAttentionOutput forward = reference_attention_forward(attention, visible);
  const std::vector<double> doutput(inputs.doutput.begin(), inputs.doutput.end());
  const ReferenceAttentionGradient gradient = reference_attention_backward(attention, doutput, visible);
  return {forward.output, forward.log_sum_exp, gradient.dquery, gradient.dkey, gradient.dvalue};
}

SequenceResults empty_results(const HeadShape& heads, int64_t tokens) {
  const auto values = [&](int64_t per_token) { return std::vector<float>(static_cast<size_t>(tokens * per_token)); };
  return {values(heads.query_heads * heads.value_size), values(heads.query_heads),
          values(heads.query_heads * heads.key_size), values(heads.key_heads * heads.key_size),
          values(heads.key_heads * heads.value_size)};
}

RankTensors::RankTensors(const ScheduleCase& test_case, const AttentionPlan& plan, const SequenceInputs& inputs)
    : case_(test_case), shard_(plan.shard()), log_sum_exp_extents_(plan.log_sum_exp_extents()) {
  const HeadShape& heads = case_.heads;
  const int64_t tokens = shard_.size();
  const float unset = std::numeric_limits<float>::quiet_NaN();  // everything must be overwritten
  const auto values = [&](int64_t count) { return std::vector<float>(static_cast<size_t>(count), unset); };
  // A spare row, so that the views of a rank without tokens have somewhere to point.
  qkv_ = values((tokens + 1) * fused_row(heads));
  dqkv_ = values((tokens + 1) * fused_row(heads));
  output_ = values(tokens * heads.query_heads * heads.value_size);
  doutput_ = values(tokens * heads.query_heads * heads.value_size);
  log_sum_exp_ = values(log_sum_exp_extents_.product());
  // Rows of `from` to rows of `to` that begin `offset` elements into each of its rows.
  const auto scatter = [&](const std::vector<float>& from, int64_t size, std::vector<float>& to, int64_t offset,
                           int64_t row) {
    for_each_row(shard_, [&](int64_t position, int64_t local) {
      std::copy_n(from.begin() + position * size, size, to.begin() + local * row + offset);
    });
  };
  const int64_t query_size = heads.query_heads * heads.key_size;
  const int64_t key_size = heads.key_heads * heads.key_size;
  const int64_t row = fused_row(heads);
  scatter(inputs.query, query_size, qkv_, 0, row);
  scatter(inputs.key, key_size, qkv_, query_size, row);
  scatter(inputs.value, heads.key_heads * heads.value_size, qkv_, query_size + key_size, row);
  const int64_t output_size = heads.query_heads * heads.value_size;
  scatter(inputs.doutput, output_size, doutput_, 0, output_size);
}

ShardedQkv RankTensors::qkv() {
  return fused_views(qkv_, shard_.size(), case_.heads);
}
ShardedQkvGradient RankTensors::gradient() {
  const ShardedQkv views = fused_views(dqkv_, shard_.size(), case_.heads);
  return {views.query, views.key, views.value};
}
Tensor RankTensors::output() {
  return Tensor::contiguous(output_.data(), DType::float32,
                            {shard_.size(), case_.heads.query_heads, case_.heads.value_size});
}
Tensor RankTensors::log_sum_exp() {
  return Tensor::contiguous(log_sum_exp_.data(), DType::float32, log_sum_exp_extents_);
}
Tensor RankTensors::doutput() {
  return Tensor::contiguous(doutput_.data(), DType::float32,
                            {shard_.size(), case_.heads.query_heads, case_.heads.value_size});
}

void RankTensors::gather(const MeshCoordinates& here, SequenceResults& results) const {
  const HeadShape& heads = case_.heads;
  const int64_t query_size = heads.query_heads * heads.key_size;
  const int64_t key_size = heads.key_heads * heads.key_size;
  const auto collect = [&](std::vector<float>& to, int64_t size, const float* from, int64_t row) {
    for_each_row(shard_, [&](int64_t position, int64_t local) {
      std::copy_n(from + local * row, size, to.data() + position * size);
    });
  };
  const int64_t row = fused_row(heads);
  collect(results.output, heads.query_heads * heads.value_size, output_.data(), heads.query_heads * heads.value_size);
  collect(results.dquery, query_size, dqkv_.data(), row);
  collect(results.dkey, key_size, dqkv_.data() + query_size, row);
  collect(results.dvalue, heads.key_heads * heads.value_size, dqkv_.data() + query_size + key_size, row);
  // The log-sum-exp has the ring part's tokens and this ulysses rank's heads.
  const HeadRange own =
      HeadDeal(heads.query_heads, heads.key_heads, case_.ulysses, case_.ring == 1).query_heads(here.ulysses);
  const Shard part = ring_shard(case_.layout, case_.documents.total_tokens(), here.ring, case_.ring);
  for_each_row(part, [&](int64_t position, int64_t local) {
    std::copy_n(log_sum_exp_.data() + local * own.count(), own.count(),
                results.log_sum_exp.data() + position * heads.query_heads + own.begin);
  });
}

void MeshRank::finish() const {
  backend.finish(backend.record(backend.communication_stream()));
  backend.finish(backend.record(backend.compute_stream()));
}

void run_on_mesh(int ulysses, int ring, const std::function<void(MeshRank&)>& body, const BackendWrapper& wrap,
                 Transport transport) {
  ThreadRankOptions options;
  options.timeout_seconds = 60.0;
  options.transport = transport;
  run_thread_ranks(ulysses * ring, options, [&](ThreadRank& rank) {
    CpuBackendOptions backend_options;
    backend_options.memory_limit_bytes = int64_t{1} << 30;
    backend_options.host_memory_limit_bytes = int64_t{1} << 20;
    std::unique_ptr<Backend> backend = make_cpu_backend(backend_options);
    if (wrap) backend = wrap(rank.rank(), std::move(backend));
    MeshSizes sizes;
    sizes.ulysses = ulysses;
    sizes.ring = ring;
    HostDeviceMovement movement(*backend);
    Mesh mesh(transport == Transport::nccl ? rank.connect(*backend, movement) : rank.connect(*backend), sizes);
    MeshRank here{*backend, mesh};
    body(here);
  });
}

CaseRun run_case(const ScheduleCase& test_case, const SequenceInputs& inputs, const BackendWrapper& wrap,
                 Transport transport) {
  CaseRun run;
  run.results = empty_results(test_case.heads, test_case.documents.total_tokens());
  run.ranks.resize(static_cast<size_t>(test_case.ranks()));
  run_on_mesh(
      test_case.ulysses, test_case.ring,
      [&](MeshRank& here) {
        const auto schedule = make_schedule(test_case.kind, test_case.layout, test_case.heads, here.backend, here.mesh);
        const auto plan = schedule->plan(test_case.documents, test_case.mask);
        RankTensors tensors(test_case, *plan, inputs);
        const Traffic ring_start = here.mesh.ring().traffic();
        const Traffic ulysses_start = here.mesh.ulysses().traffic();
        schedule->forward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp());
        here.finish();
        const Traffic ring_middle = here.mesh.ring().traffic();
        const Traffic ulysses_middle = here.mesh.ulysses().traffic();
        schedule->backward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp(), tensors.doutput(),
                           tensors.gradient());
        here.finish();
        tensors.gather(here.mesh.coordinates(), run.results);
        RankReport& report = run.ranks[static_cast<size_t>(here.mesh.cp_rank())];
        report.forward_ring = difference(ring_middle, ring_start);
        report.forward_ulysses = difference(ulysses_middle, ulysses_start);
        report.backward_ring = difference(here.mesh.ring().traffic(), ring_middle);
        report.backward_ulysses = difference(here.mesh.ulysses().traffic(), ulysses_middle);
        report.tokens = plan->shard().size();
        report.cost = schedule->cost(report.tokens);
        const MemoryUsage& usage = here.backend.arena(Tier::device).usage();
        report.peak_communication = usage.peak_by_class[static_cast<size_t>(MemoryClass::communication)];
        report.memory_left = usage.current;
        report.visible_pairs_times_heads = plan->visible_pairs_times_heads();
      },
      wrap, transport);
  return run;
}

double relative_error(const std::vector<float>& a, const std::vector<double>& b, double floor) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (size_t index = 0; index < b.size(); ++index) {
    const auto value = static_cast<double>(a[index]);
    if (std::isinf(b[index])) {
      if (value != b[index]) return std::numeric_limits<double>::infinity();
      continue;
    }
    difference += (value - b[index]) * (value - b[index]);
    norm += b[index] * b[index];
  }
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  if (difference == 0.0) return 0.0;
  return std::sqrt(difference) / std::max(std::sqrt(norm), floor);
}

double largest_error(const SequenceResults& results, const SequenceTruth& truth) {
  double square = 0.0;
  for (const double value : truth.dvalue) square += value * value;
  const double floor = 0.1 * std::sqrt(square);
  return std::max({relative_error(results.output, truth.output), relative_error(results.log_sum_exp, truth.log_sum_exp),
                   relative_error(results.dquery, truth.dquery, floor), relative_error(results.dkey, truth.dkey, floor),
                   relative_error(results.dvalue, truth.dvalue)});
}

bool same_bits(const SequenceResults& a, const SequenceResults& b) {
  const auto same = [](const std::vector<float>& left, const std::vector<float>& right) {
    return left.size() == right.size() &&
           (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0);
  };
  return same(a.output, b.output) && same(a.log_sum_exp, b.log_sum_exp) && same(a.dquery, b.dquery) &&
         same(a.dkey, b.dkey) && same(a.dvalue, b.dvalue);
}

Documents random_documents(int64_t tokens, double mean, uint64_t seed) {
  const RandomStream random(seed, "documents");
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0;) {
    const int64_t length =
        std::min(left, 1 + static_cast<int64_t>(random.uniform(lengths.size()) * (2.0 * mean - 1.0)));
    lengths.push_back(length);
    left -= length;
  }
  return Documents(lengths);
}

}  // namespace ithaca::testing
