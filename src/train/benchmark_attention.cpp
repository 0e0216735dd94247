#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <system_error>

#include "attention/auto_schedule.h"
#include "attention/communication_cost.h"
#include "attention/documents.h"
#include "attention/tasks.h"
#include "base/choice.h"
#include "base/error.h"
#include "base/integer.h"
#include "comm/thread_ranks.h"
#include "train/benchmark.h"
#include "train/benchmark_exchange.h"
#include "train/benchmark_prediction.h"
#include "train/benchmark_tensors.h"

namespace ithaca {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One rank's tensors of one layer, filled with random numbers.
class LayerTensors {
 public:
  LayerTensors(Backend& backend, const HeadShape& heads, const AttentionPlan& plan) : backend_(backend) {
    const int64_t tokens = plan.shard().size();
    const DType compute = backend.compute_dtype();
    qkv = {make(query_, compute, {tokens, heads.query_heads, heads.key_size}, true),
           make(key_, compute, {tokens, heads.key_heads, heads.key_size}, true),
           make(value_, compute, {tokens, heads.key_heads, heads.value_size}, true)};
    output = make(output_, compute, {tokens, heads.query_heads, heads.value_size}, false);
    log_sum_exp = make(log_sum_exp_, DType::float32, plan.log_sum_exp_extents(), false);
    doutput = make(doutput_, compute, {tokens, heads.query_heads, heads.value_size}, true);
    gradient = {make(dquery_, compute, {tokens, heads.query_heads, heads.key_size}, false),
                make(dkey_, compute, {tokens, heads.key_heads, heads.key_size}, false),
                make(dvalue_, compute, {tokens, heads.key_heads, heads.value_size}, false)};
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

// One way to split the sequence.
struct Split {
  std::string text;  // as it was given
  ScheduleSizes sizes;
  Layout layout = Layout::contiguous;
  int ranks = 1;
  bool is_each_alone = false;  // nothing is split: every rank computes a whole sequence of its own
  bool is_auto = false;        // sizes and layout follow from the documents
  std::string chosen;          // which, once that is settled
  std::string unfit;           // why it is not one for the ranks
};

constexpr int kMostPredictedRanks = 1024;  // as many as can run

int parse_size(const std::string& schedule, std::string_view text) {
  int size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size < 1 || size > 1024) {
    throw ConfigurationError(fmt::format(
        "--schedules: '{}': '{}' is not a number of ranks; write hybrid:2x4 (ulysses x ring)", schedule, text));
  }
  return size;
}

Split parse_split(const std::string& text, int ranks, const HeadShape& heads) {
  Split split;
  split.text = text;
  split.ranks = ranks;
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::optional<ScheduleKind> kind = parse_choice_or_auto(
      "--schedules", parts[0],
      {ScheduleKind::ulysses, ScheduleKind::ring, ScheduleKind::all_gather, ScheduleKind::hybrid}, schedule_name);
  if (!kind) {
    if (parts.size() > 1) {
      throw ConfigurationError(fmt::format("--schedules: '{}': auto chooses sizes and layout too; write auto", text));
    }
    split.is_auto = true;
    return split;
  }
  split.sizes.kind = *kind;
  size_t next = 1;
  (split.sizes.kind == ScheduleKind::ulysses ? split.sizes.ulysses_size : split.sizes.ring_size) = ranks;
  if (split.sizes.kind == ScheduleKind::hybrid) {
    const std::string sizes = parts.size() > 1 ? parts[1] : "";
    const size_t cross = std::min(sizes.find('x'), sizes.size());
    split.sizes.ulysses_size = parse_size(text, std::string_view(sizes).substr(0, cross));
    split.sizes.ring_size = parse_size(text, std::string_view(sizes).substr(std::min(cross + 1, sizes.size())));
    next = 2;
  }
  if (split.sizes.ring_size > 1) split.layout = Layout::zigzag;
  if (parts.size() > next) {
    split.layout =
        parse_choice("--schedules", parts[next], {Layout::contiguous, Layout::zigzag, Layout::striped}, layout_name);
  }
  if (parts.size() > next + 1) {
    throw ConfigurationError(fmt::format("--schedules: '{}' has more parts than a schedule{} and a layout", text,
                                         next == 2 ? ", its sizes" : ""));
  }
  const int product = split.sizes.ulysses_size * split.sizes.ring_size;
  if (product != ranks) {
    split.unfit =
        fmt::format("{} x {} = {} ranks, not {}", split.sizes.ulysses_size, split.sizes.ring_size, product, ranks);
    return split;
  }
  try {
    check_schedule_sizes(split.sizes, heads);
  } catch (const ConfigurationError& error) {
    split.unfit = error.what();
  }
  return split;
}

std::vector<Split> splits_for(const AttentionBenchmark& benchmark, int ranks) {
  std::vector<Split> splits;
  const std::vector<std::string> texts =
      benchmark.schedules.empty() ? benchmark_schedules(ranks, benchmark.heads.query_heads) : benchmark.schedules;
  for (const std::string& text : texts) splits.push_back(parse_split(text, ranks, benchmark.heads));
  return splits;
}

// The rows of one sequence.
class AttentionMeasurement {
 public:
  AttentionMeasurement(const AttentionBenchmark& benchmark, int64_t tokens, const DocumentMix& mix)
      : benchmark_(benchmark), tokens_(tokens), mix_(mix), documents_(benchmark_documents(tokens, mix)) {
    double pairs = 0.0;
    for (int64_t document = 0; document < documents_.count(); ++document) {
      const auto length = static_cast<double>(documents_.end(document) - documents_.begin(document));
      const auto window = static_cast<double>(benchmark.window);
      const bool whole = benchmark.window == 0 || window >= length;
      pairs += whole ? 0.5 * length * (length + 1.0) : window * length - 0.5 * window * (window - 1.0);
    }
    const HeadShape& heads = benchmark.heads;
    forward_flops_ =
        2.0 * static_cast<double>(heads.key_size + heads.value_size) * static_cast<double>(heads.query_heads) * pairs;
  }

  // The whole on one rank.
  AttentionBenchmarkRow reference() {
    Split split;
    split.text = "one rank";
    AttentionBenchmarkRow row = measure(split);
    if (row.failure.empty()) reference_ = row;
    if (reference_) row.forward_efficiency = row.efficiency = 1.0;
    return row;
  }

  // What all devices lose to one when all are busy, whatever the schedule: by heat, power or slower ones among them.
  // Nothing where there is one device.
  std::optional<AttentionBenchmarkRow> each_alone() const {
    Split split;
    split.text = kEachAlone;
    split.ranks = devices_of(benchmark_.ranks);
    split.is_each_alone = true;
    return split.ranks > 1 ? std::optional(measure(split)) : std::nullopt;
  }

  // With the sizes and the layout that a run would choose, where those are left open.
  Split settled(Split split) const {
    if (!split.is_auto) return split;
    AutoScheduleRequest request;
    request.heads = benchmark_.heads;
    request.mask = {true, benchmark_.window};
    request.sequences = {documents_};
    request.element_bytes = element_size(benchmark_.backend.compute_dtype);
    request.preferred_attention_rows = preferred_attention_rows(benchmark_.backend.kind);
    request.cp_size = split.ranks;
    const AutoScheduleChoice choice = choose_schedule(request);
    split.sizes = choice.sizes;
    split.layout = choice.layout;
    split.chosen = schedule_text(choice);
    return split;
  }

  AttentionBenchmarkRow measure(const Split& split) const {
    AttentionBenchmarkRow row = start(split);
    if (!row.unfit.empty()) return row;
    MeshSizes sizes;
    sizes.dp_replicate = split.is_each_alone ? split.ranks : 1;
    sizes.ring = split.sizes.ring_size;
    sizes.ulysses = split.sizes.ulysses_size;
    ThreadRankOptions options;
    options.transport = split.ranks > 1 ? benchmark_.backend.transport : Transport::peer;
    try {
      run_thread_ranks(sizes.ranks(), options, [&](ThreadRank& thread) { run_rank(thread, split, sizes, row); });
      complete(row, split.is_each_alone ? 1 : devices_of(split.ranks));
    } catch (const OutOfMemoryError& error) {
      row.failure = error.what();
    }
    return row;
  }

  AttentionBenchmarkRow predict(const Split& split, const LinkRates& links) const {
    AttentionBenchmarkRow row = start(split);
    row.predicted = true;
    if (!row.unfit.empty()) return row;
    try {
      const RankAttention attention =
          measure_rank_attention(benchmark_.backend, split.sizes, split.layout, benchmark_.heads, documents_,
                                 MaskRule{true, benchmark_.window}, benchmark_.seconds_per_measurement);
      const int64_t element_bytes = element_size(benchmark_.backend.compute_dtype);
      const AttentionPrediction prediction =
          predict_attention(split.sizes, benchmark_.heads, tokens_, element_bytes, attention, links);
      row.forward_seconds = prediction.forward_seconds;
      row.backward_seconds = prediction.backward_seconds;
      row.exposed_share = prediction.exposed_seconds / (row.forward_seconds + row.backward_seconds);
      // Of rank 0, as the measured rows have it: from the plan by which it would send.
      const SequencePlan plan =
          make_sequence_plan(split.layout, documents_, MaskRule{true, benchmark_.window}, 0, split.sizes.ring_size);
      const CommunicationCost cost =
          communication_cost(split.sizes, benchmark_.heads, 0, ceiling_divide(tokens_, split.ranks), element_bytes,
                             ring_traffic(plan, split.sizes.kind == ScheduleKind::all_gather));
      row.bytes_sent = cost.forward_bytes + cost.backward_bytes;
      complete(row, split.ranks);
    } catch (const OutOfMemoryError& error) {
      row.failure = error.what();
    }
    return row;
  }

 private:
  AttentionBenchmarkRow start(const Split& split) const {
    AttentionBenchmarkRow row;
    row.tokens = tokens_;
    row.documents = mix_;
    row.schedule = split.text;
    row.chosen = split.chosen;
    row.ranks = split.ranks;
    row.unfit = split.unfit;
    return row;
  }

  int devices_of(int ranks) const {
    return benchmark_.backend.kind == BackendKind::cuda ? std::min(ranks, benchmark_.backend.devices) : 1;
  }

  void complete(AttentionBenchmarkRow& row, int devices) const {
    row.forward_flops_per_second = forward_flops_ / row.forward_seconds / devices;
    row.backward_flops_per_second = 2.5 * forward_flops_ / row.backward_seconds / devices;
    if (!reference_) return;
    row.forward_efficiency = reference_->forward_seconds / (devices * row.forward_seconds);
    row.efficiency = (reference_->forward_seconds + reference_->backward_seconds) /
                     (devices * (row.forward_seconds + row.backward_seconds));
  }

  void run_rank(ThreadRank& thread, const Split& split, const MeshSizes& sizes, AttentionBenchmarkRow& row) const {
    const std::unique_ptr<Backend> backend = make_backend(benchmark_.backend, thread.rank(), thread.size(), 0);
    Mesh mesh(thread.connect(*backend), sizes);
    const std::unique_ptr<AttentionSchedule> schedule =
        make_schedule(split.sizes.kind, split.layout, benchmark_.heads, *backend, mesh);
    const std::unique_ptr<AttentionPlan> plan = schedule->plan(documents_, MaskRule{true, benchmark_.window});
    const LayerTensors layer(*backend, benchmark_.heads, *plan);
    const auto forward = [&] { schedule->forward(*plan, layer.qkv, layer.output, layer.log_sum_exp); };
    const auto backward = [&] {
      schedule->backward(*plan, layer.qkv, layer.output, layer.log_sum_exp, layer.doutput, layer.gradient);
    };
    const double seconds = benchmark_.seconds_per_measurement;
    const double forward_seconds = seconds_of_call(*backend, mesh.world(), seconds, forward);
    const double backward_seconds = seconds_of_call(*backend, mesh.world(), seconds, backward);
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
    row.exposed_share = exposed_share;
    row.bytes_sent = sent;
  }

  const AttentionBenchmark& benchmark_;
  int64_t tokens_;
  DocumentMix mix_;
  Documents documents_;
  double forward_flops_ = 0.0;
  std::optional<AttentionBenchmarkRow> reference_;
};

// Of the ranks that there are, at sizes that calls have.
LinkRates measure_links(const AttentionBenchmark& benchmark) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  ExchangeBenchmark exchanges;
  exchanges.backend = benchmark.backend;
  exchanges.ranks = benchmark.ranks;
  exchanges.transports = {benchmark.backend.transport};
  exchanges.bytes = {kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB};
  if (benchmark.backend.kind == BackendKind::cpu) exchanges.bytes.resize(4);
  exchanges.exchanges = {"send_receive", "all_to_all, head slices"};
  exchanges.seconds_per_measurement = std::min(0.2, benchmark.seconds_per_measurement);
  LinkRates links;
  for (const ExchangeBenchmarkRow& row : run_exchange_benchmark(exchanges, [](const ExchangeBenchmarkRow&) {})) {
    if (!row.failure.empty()) continue;
    (row.exchange == "send_receive" ? links.hop : links.exchange).push_back({row.bytes, row.bytes_per_second});
  }
  if (links.hop.empty() || links.exchange.empty()) {
    throw OutOfMemoryError("a prediction measures exchanges of 256 KiB and more, for which there is no memory");
  }
  return links;
}

// Fills in what packed documents reach of one document, where an earlier row has that.
void compare_with_dense(const std::vector<AttentionBenchmarkRow>& rows, AttentionBenchmarkRow& row) {
  if (row.documents.kind == DocumentMix::Kind::one || row.forward_seconds <= 0.0) return;
  // Of both passes; operations are in the ratio 1 : 2.5 in every row.
  const auto rate = [](const AttentionBenchmarkRow& each) {
    return 3.5 / (1.0 / each.forward_flops_per_second + 2.5 / each.backward_flops_per_second);
  };
  for (const AttentionBenchmarkRow& other : rows) {
    if (other.documents.kind == DocumentMix::Kind::one && other.tokens == row.tokens && other.ranks == row.ranks &&
        other.schedule == row.schedule && other.predicted == row.predicted && other.forward_seconds > 0.0) {
      row.dense_share = rate(row) / rate(other);
    }
  }
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
  names.emplace_back("auto");
  return names;
}

namespace {

// What is run, and what is predicted.
struct AllSplits {
  std::vector<Split> run, predicted;
};

AllSplits checked_splits(const AttentionBenchmark& benchmark) {
  AllSplits splits;
  // With one rank nothing is split; what was asked for must be understood nevertheless.
  std::vector<Split> run = splits_for(benchmark, benchmark.ranks);
  if (benchmark.ranks > 1) splits.run = std::move(run);
  for (const int ranks : benchmark.predicted_ranks) {
    if (ranks < 2 || ranks > kMostPredictedRanks) {
      throw ConfigurationError(
          fmt::format("--predict-ranks: {} is not a number of ranks between 2 and {}", ranks, kMostPredictedRanks));
    }
    for (Split& split : splits_for(benchmark, ranks)) splits.predicted.push_back(std::move(split));
  }
  if (!splits.predicted.empty() && benchmark.ranks < 2) {
    throw ConfigurationError(
        "--predict-ranks needs --ranks of 2 or more: exchanges between them are what predictions are made from");
  }
  for (const int64_t tokens : benchmark.tokens) {
    for (const DocumentMix& mix : benchmark.documents) check_benchmark_sequence(tokens, mix);
  }
  return splits;
}

}  // namespace

void check_attention_benchmark(const AttentionBenchmark& benchmark) {
  static_cast<void>(checked_splits(benchmark));
}

std::vector<AttentionBenchmarkRow> run_attention_benchmark(
    const AttentionBenchmark& benchmark, const std::function<void(const AttentionBenchmarkRow&)>& on_row) {
  const AllSplits splits = checked_splits(benchmark);
  LinkRates links;
  if (!splits.predicted.empty()) links = measure_links(benchmark);
  std::vector<DocumentMix> mixes = benchmark.documents;
  std::stable_partition(mixes.begin(), mixes.end(),
                        [](const DocumentMix& mix) { return mix.kind == DocumentMix::Kind::one; });
  std::vector<AttentionBenchmarkRow> rows;
  for (const int64_t tokens : benchmark.tokens) {
    for (const DocumentMix& mix : mixes) {
      AttentionMeasurement measurement(benchmark, tokens, mix);
      const auto add = [&](AttentionBenchmarkRow row) {
        compare_with_dense(rows, row);
        on_row(row);
        rows.push_back(std::move(row));
      };
      add(measurement.reference());
      if (const auto each_alone = measurement.each_alone()) add(*each_alone);
      for (const Split& split : splits.run) add(measurement.measure(measurement.settled(split)));
      for (const Split& split : splits.predicted) add(measurement.predict(measurement.settled(split), links));
    }
  }
  return rows;
}

}  // namespace ithaca
