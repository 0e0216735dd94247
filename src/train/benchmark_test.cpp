// Benchmarks on small CPU ranks: what does not depend on the clock.
#include "train/benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "train/benchmark_exchange.h"
#include "train/benchmark_prediction.h"

namespace ithaca {
namespace {

using testing::ElementsAre;
using testing::Gt;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DocumentMix kLongTailed = {DocumentMix::Kind::long_tailed, 1000};

BackendChoice cpu() {
  return choose_backend("cpu", "auto", false);
}

HeadShape heads(int64_t query, int64_t key, int64_t size) {
  HeadShape shape;
  shape.query_heads = query;
  shape.key_heads = key;
  shape.key_size = shape.value_size = size;
  return shape;
}

// ---- documents ----

TEST(BenchmarkDocuments, MixesAreReadAndNamed) {
  EXPECT_EQ(parse_document_mix("0"), DocumentMix{});
  EXPECT_EQ(parse_document_mix("8192"), (DocumentMix{DocumentMix::Kind::exponential, 8192}));
  EXPECT_EQ(parse_document_mix("long-tailed:1000"), kLongTailed);
  for (const char* text : {"0", "8192", "long-tailed:1000"})
    EXPECT_EQ(document_mix_text(parse_document_mix(text)), text);
  for (const char* text : {"", "-1", "8k", "long-tailed:", "long-tailed:0", "long_tailed:8", "8192 "}) {
    EXPECT_THAT([&] { parse_document_mix(text); }, ThrowsMessage<ConfigurationError>(HasSubstr("--documents"))) << text;
  }
}

TEST(BenchmarkDocuments, FillTheSequenceExactly) {
  for (const int64_t tokens : {1, 15, 999, 1000, 1001, 4096, 1'000'003}) {
    for (const DocumentMix& mix : {DocumentMix{}, DocumentMix{DocumentMix::Kind::exponential, 1000}, kLongTailed,
                                   DocumentMix{DocumentMix::Kind::long_tailed, 3}}) {
      const std::vector<int64_t> lengths = benchmark_documents(tokens, mix);
      EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), tokens);
      EXPECT_THAT(lengths, testing::Each(Gt(0)));
      EXPECT_EQ(lengths, benchmark_documents(tokens, mix));
    }
  }
  EXPECT_THAT(benchmark_documents(5000, {}), ElementsAre(5000));
  EXPECT_THAT(benchmark_documents(1000, kLongTailed), ElementsAre(1000));
}

// The quantiles of a log-normal distribution with sigma 1.2: exp(1.2 z - 1.2^2 / 2) means, z of the normal one.
TEST(BenchmarkDocuments, LongTailedOnesAreLogNormal) {
  constexpr int64_t kCount = 100'000;
  std::vector<int64_t> lengths = benchmark_documents(kCount * 1000, kLongTailed);
  ASSERT_EQ(static_cast<int64_t>(lengths.size()), kCount);  // so the mean is 1000
  std::sort(lengths.begin(), lengths.end());
  EXPECT_NEAR(static_cast<double>(lengths[kCount / 2]), 486.8, 10.0);
  EXPECT_NEAR(static_cast<double>(lengths[kCount * 99 / 100]), 7939.0, 400.0);
  EXPECT_NEAR(static_cast<double>(lengths[kCount / 100]), 29.8, 2.0);
}

// ---- exchanges ----

TEST(ExchangeBenchmark, EveryExchangeSendsTheBytesAskedFor) {
  for (const int ranks : {2, 3}) {
    ExchangeBenchmark benchmark;
    benchmark.backend = cpu();
    benchmark.ranks = ranks;
    benchmark.bytes = {49152, 98304};
    benchmark.seconds_per_measurement = 0.001;
    std::vector<std::string> told;
    const auto rows =
        run_exchange_benchmark(benchmark, [&](const ExchangeBenchmarkRow& row) { told.push_back(row.exchange); });
    ASSERT_EQ(rows.size(), 2 * exchange_names().size());
    for (size_t index = 0; index < rows.size(); ++index) {
      const ExchangeBenchmarkRow& row = rows[index];
      SCOPED_TRACE(row.exchange);
      EXPECT_EQ(row.exchange, exchange_names()[index % exchange_names().size()]);
      EXPECT_EQ(row.exchange, told[index]);
      EXPECT_EQ(row.failure, "");
      EXPECT_EQ(row.bytes, index < exchange_names().size() ? 49152 : 98304);
      EXPECT_EQ(row.bytes_sent, row.bytes);
      EXPECT_EQ(row.sample_seconds.size(), size_t{kExchangeSamples});
      EXPECT_DOUBLE_EQ(row.bytes_per_second, static_cast<double>(row.bytes_sent) / row.seconds);
      if (row.exchange == "copy, one way") {
        EXPECT_EQ(row.copy_share, 0.0);
      } else {
        const ExchangeBenchmarkRow& copy = rows[index < exchange_names().size() ? 1 : exchange_names().size() + 1];
        ASSERT_EQ(copy.exchange, "copy, both ways");
        EXPECT_DOUBLE_EQ(row.copy_share, row.bytes_per_second / copy.bytes_per_second);
      }
    }
  }
}

TEST(ExchangeBenchmark, SizesAreFourfoldAndMisuseIsRefused) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_THAT(exchange_sizes(), ElementsAre(kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB, 1024 * kMiB));
  ExchangeBenchmark benchmark;
  benchmark.backend = cpu();
  benchmark.bytes = {4096};
  benchmark.exchanges = {"gossip"};
  const auto run = [&] { run_exchange_benchmark(benchmark, [](const ExchangeBenchmarkRow&) {}); };
  EXPECT_THAT(run, ThrowsMessage<ConfigurationError>(HasSubstr("gossip")));
  benchmark.exchanges.clear();
  benchmark.bytes = {4096, 0};
  EXPECT_THAT(run, ThrowsMessage<ConfigurationError>(HasSubstr("--sizes: 0 bytes")));
  benchmark.bytes.clear();
  EXPECT_THAT(run, ThrowsMessage<ConfigurationError>(HasSubstr("--sizes")));
  benchmark.bytes = {4096};
  benchmark.transports.clear();
  EXPECT_THAT(run, ThrowsMessage<ConfigurationError>(HasSubstr("--transport")));
  benchmark.transports = {Transport::peer};
  benchmark.ranks = 1;
  EXPECT_THAT(run, ThrowsMessage<ConfigurationError>(HasSubstr("--ranks")));
}

// ---- predictions ----

constexpr LinkRate kSlow = {0, 1e9};

// 32/8 heads of 128 over 8 ranks, 65,536 tokens: 8,192 a rank, 4 query heads and 1 key head each, in four groups of a
// query head. Seen is the first one's way here, which brings the key head, and the last one's way back, with which the
// key head's gradients go: 8,192 x 2 x [7 128 + 7 256 + 7 128] bytes forward.
TEST(AttentionPrediction, UlyssesHidesAllButTheFirstArrivalAndTheLastReturn) {
  const AttentionPrediction prediction = predict_attention({ScheduleKind::ulysses, 8, 1}, heads(32, 8, 128), 65536, 2,
                                                           {0.25, 0.5, 0, 4}, {{kSlow}, {kSlow}});
  const double forward_bytes = 8192.0 * 2 * (7 * 128 + 7 * 256 + 7 * 128);
  const double backward_bytes = 8192.0 * 2 * (7 * 3 * 128 + 7 * 256 + 7 * 128) + 4.0 * 8192 * 7 * 256;
  EXPECT_NEAR(prediction.forward_seconds, 0.25 + forward_bytes / 1e9, 1e-12);
  EXPECT_NEAR(prediction.backward_seconds, 0.5 + backward_bytes / 1e9, 1e-12);
  EXPECT_NEAR(prediction.exposed_seconds, (forward_bytes + backward_bytes) / 1e9, 1e-12);
}

// 4 ranks of 16,384 tokens: a hop is 16,384 x 8 x 256 x 2 bytes forward, as many again and float32 gradients backward.
TEST(AttentionPrediction, RingHopsHideBehindTheAttentionAtHand) {
  const ScheduleSizes sizes = {ScheduleKind::ring, 1, 4};
  const double elements = 16384.0 * 8 * 256;
  const LinkRates links = {{kSlow}, {kSlow}};
  // Hidden: 0.067 s of a hop behind 1 s of attention, and the gradients' last trip home behind 1 s of backward.
  const AttentionPrediction hidden = predict_attention(sizes, heads(32, 8, 128), 65536, 2, {4.0, 8.0, 3}, links);
  EXPECT_NEAR(hidden.forward_seconds, 4.0, 1e-12);
  EXPECT_NEAR(hidden.backward_seconds, 8.0, 1e-12);
  // Not hidden: three hops, each longer than a fourth of the attention.
  const AttentionPrediction seen = predict_attention(sizes, heads(32, 8, 128), 65536, 2, {0.04, 0.08, 3}, links);
  EXPECT_NEAR(seen.forward_seconds, 0.04 + 3 * (2 * elements / 1e9 - 0.01), 1e-9);
  EXPECT_NEAR(seen.backward_seconds, 0.08 + 3 * (6 * elements / 1e9 - 0.02) + 4 * elements / 1e9 - 0.01, 1e-9);
  // With one key head there is nothing to keep back for the way home.
  const AttentionPrediction one = predict_attention(sizes, heads(4, 1, 128), 65536, 2, {4.0, 8.0, 3}, links);
  EXPECT_NEAR(one.backward_seconds, 8.0 + 4 * elements / 8 / 1e9, 1e-9);
  // Nobody needs another's keys.
  const AttentionPrediction none = predict_attention(sizes, heads(32, 8, 128), 65536, 2, {0.04, 0.08, 0}, links);
  EXPECT_EQ(none.exposed_seconds, 0.0);
}

// Calls are looked up by their size: of hops, which send keys and values apart.
TEST(AttentionPrediction, LinkRatesAreThoseOfTheSizeOfACall) {
  const ScheduleSizes sizes = {ScheduleKind::ring, 1, 2};
  const auto seconds = [&](int64_t tokens) {
    const LinkRates links = {{kSlow}, {{1000, 1e3}, {1 << 20, 1e6}, {1 << 30, 1e9}}};
    return predict_attention(sizes, heads(4, 4, 64), tokens, 2, {0.0, 0.0, 1}, links).forward_seconds;
  };
  // tokens / 2 x 4 x 64 x 2 bytes each of keys and of values.
  EXPECT_NEAR(seconds(2), 2 * 512 / 1e3, 1e-9);
  EXPECT_NEAR(seconds(4096), 2.0 * (1 << 20) / 1e6, 1e-9);
  EXPECT_NEAR(seconds(1 << 20), 2.0 * (1 << 28) / 1e6, 1e-6);
  EXPECT_NEAR(seconds(1 << 22), 2.0 * (1 << 30) / 1e9, 1e-9);
}

TEST(AttentionPrediction, TheBusiestRankIsMeasured) {
  const MaskRule causal;
  const auto hops = [&](const ScheduleSizes& sizes, Layout layout, const Documents& documents) {
    const RankAttention measured =
        measure_rank_attention(cpu(), sizes, layout, heads(6, 2, 8), documents, causal, 1e-6);
    EXPECT_GT(measured.forward_seconds, 0.0);
    EXPECT_GT(measured.backward_seconds, 0.0);
    return measured.hops;
  };
  const Documents one = Documents::single(96);
  EXPECT_EQ(hops({ScheduleKind::ulysses, 6, 1}, Layout::contiguous, one), 0);
  EXPECT_EQ(hops({ScheduleKind::ring, 1, 4}, Layout::zigzag, one), 3);
  EXPECT_EQ(hops({ScheduleKind::all_gather, 1, 4}, Layout::zigzag, one), 3);
  EXPECT_EQ(hops({ScheduleKind::hybrid, 2, 3}, Layout::striped, one), 2);
  // Documents of a rank's tokens: nobody needs another's keys.
  EXPECT_EQ(hops({ScheduleKind::ring, 1, 4}, Layout::contiguous, Documents(std::vector<int64_t>(4, 24))), 0);
  // As many ranks as there may be, in a moment: plans are not made for all of them.
  EXPECT_EQ(hops({ScheduleKind::ring, 1, 1024}, Layout::striped, Documents::single(1024)), 1023);
}

// ---- attention ----

TEST(AttentionBenchmark, OneTableHasSchedulesThatFitAndSaysWhichDoNot) {
  AttentionBenchmark benchmark;
  benchmark.backend = cpu();
  benchmark.heads = heads(4, 2, 8);
  benchmark.tokens = {64};
  benchmark.documents = {{DocumentMix::Kind::long_tailed, 16}, {}};
  benchmark.ranks = 4;
  benchmark.schedules = {"ulysses", "ring", "ring:striped", "all_gather", "hybrid:2x4", "hybrid:2x2", "auto"};
  benchmark.predicted_ranks = {4, 8};
  benchmark.seconds_per_measurement = 1e-6;
  int told = 0;
  const auto rows = run_attention_benchmark(benchmark, [&](const AttentionBenchmarkRow&) { ++told; });
  ASSERT_EQ(rows.size(), 2 * (1 + 7 + 2 * 7));
  EXPECT_EQ(told, static_cast<int>(rows.size()));
  std::map<std::string, std::set<std::string>> unfit;
  for (const AttentionBenchmarkRow& row : rows) {
    SCOPED_TRACE(row.schedule);
    EXPECT_EQ(row.failure, "");
    EXPECT_EQ(row.chosen.empty(), row.schedule != "auto");
    if (!row.unfit.empty()) {
      unfit[std::to_string(row.ranks) + (row.predicted ? " predicted" : "")].insert(row.schedule);
      EXPECT_EQ(row.forward_seconds, 0.0);
      continue;
    }
    // One CPU is one device; predictions are for a device of every rank.
    const double devices = row.predicted ? row.ranks : 1.0;
    const AttentionBenchmarkRow& reference = rows[row.documents == DocumentMix{} ? 0 : 22];
    ASSERT_EQ(reference.schedule, "one rank");
    EXPECT_NEAR(row.efficiency,
                (reference.forward_seconds + reference.backward_seconds) /
                    (devices * (row.forward_seconds + row.backward_seconds)),
                1e-9);
    EXPECT_EQ(row.dense_share > 0.0, row.documents != DocumentMix{});
    EXPECT_EQ(row.bytes_sent > 0, row.ranks > 1 || row.predicted);
  }
  EXPECT_EQ(rows[0].documents, DocumentMix{});  // one document comes first
  EXPECT_THAT(
      unfit, testing::UnorderedElementsAre(
                 testing::Pair("4", ElementsAre("hybrid:2x4")), testing::Pair("4 predicted", ElementsAre("hybrid:2x4")),
                 testing::Pair("8 predicted", testing::UnorderedElementsAre("hybrid:2x2", "ulysses"))));
}

// Predicted and measured for the same ranks: hops that nobody needs are in neither.
TEST(AttentionBenchmark, PredictionsSendWhatIsSent) {
  for (const int ranks : {3, 4, 7}) {
    for (const auto& [window, mean] : {std::pair(0, 0), std::pair(5, 0), std::pair(0, 40), std::pair(64, 30)}) {
      AttentionBenchmark benchmark;
      benchmark.backend = cpu();
      benchmark.heads = heads(4, 2, 8);
      benchmark.tokens = {ranks * 60 + 2};
      benchmark.window = window;
      if (mean > 0) benchmark.documents = {{DocumentMix::Kind::exponential, mean}};
      benchmark.ranks = ranks;
      benchmark.predicted_ranks = {ranks};
      benchmark.schedules = {"ring:contiguous", "ring:zigzag", "ring:striped", "all_gather:contiguous"};
      benchmark.seconds_per_measurement = 1e-4;
      std::map<std::string, int64_t> sent;
      for (const AttentionBenchmarkRow& row : run_attention_benchmark(benchmark, [](const AttentionBenchmarkRow&) {})) {
        if (row.ranks == 1) continue;
        const auto [found, fresh] = sent.emplace(row.schedule, row.bytes_sent);
        EXPECT_EQ(row.bytes_sent, found->second) << row.schedule << " " << ranks << " " << window << " " << mean;
        EXPECT_NE(fresh, row.predicted);
      }
      EXPECT_EQ(sent.size(), 4u);
      EXPECT_EQ(window > 0 && sent.at("ring:contiguous") >= sent.at("all_gather:contiguous"), false);
    }
  }
}

TEST(AttentionBenchmark, UnreadableSchedulesAreErrors) {
  AttentionBenchmark benchmark;
  benchmark.backend = cpu();
  benchmark.heads = heads(4, 2, 8);
  for (const char* schedule : {"rung", "ring:zigzag:2", "ring:diagonal", "hybrid", "hybrid:2", "hybrid:2x",
                               "hybrid:0x2", "hybrid:2x2:zigzag:1", "auto:zigzag"}) {
    benchmark.schedules = {schedule};
    EXPECT_THAT([&] { run_attention_benchmark(benchmark, [](const AttentionBenchmarkRow&) {}); },
                ThrowsMessage<ConfigurationError>(HasSubstr("--schedules")))
        << schedule;
  }
  benchmark.schedules.clear();
  benchmark.ranks = 1;
  benchmark.predicted_ranks = {4};
  EXPECT_THAT([&] { run_attention_benchmark(benchmark, [](const AttentionBenchmarkRow&) {}); },
              ThrowsMessage<ConfigurationError>(HasSubstr("--ranks")));
}

// ---- steps ----

StepBenchmark small_step(RecomputePolicy recompute) {
  StepBenchmark benchmark;
  benchmark.backend = cpu();
  benchmark.model = parse_model_description(
      R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6})",
      "a test");
  benchmark.tokens = {96};
  benchmark.recompute = {recompute};
  benchmark.ranks = 2;
  benchmark.schedule = "ring";
  benchmark.warmup = 0;
  benchmark.steps = 1;
  return benchmark;
}

StepBenchmarkRow only_row(const StepBenchmark& benchmark) {
  return run_step_benchmark(benchmark, [](const StepBenchmarkRow&) {}).rows.at(0);
}

// As a run would: by the window of the layers that see most, if all have one.
TEST(StepBenchmark, AutoKnowsTheModelsWindow) {
  StepBenchmark benchmark = small_step(RecomputePolicy::attention);
  benchmark.tokens = {2048};
  benchmark.ranks = 4;
  EXPECT_EQ(only_row(benchmark).attention, "ring, zigzag");
  for (LayerDescription& layer : benchmark.model.layers) layer.window = 16;
  EXPECT_EQ(only_row(benchmark).attention, "ring, contiguous");
  benchmark.model.layers[2].window = 0;
  EXPECT_EQ(only_row(benchmark).attention, "ring, zigzag");
}

TEST(StepBenchmark, AttentionThatIsLeftOutLeavesMemoryAsItIs) {
  for (const RecomputePolicy recompute : {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full}) {
    SCOPED_TRACE(recompute_policy_name(recompute));
    StepBenchmark benchmark = small_step(recompute);
    const StepBenchmarkRow whole = only_row(benchmark);
    benchmark.attention_layers = 1;
    const StepBenchmarkRow part = only_row(benchmark);
    EXPECT_EQ(part.memory.peak, whole.memory.peak);
    EXPECT_EQ(part.memory.peak_by_class, whole.memory.peak_by_class);
    EXPECT_EQ(whole.planned_seconds, 0.0);
    EXPECT_GT(part.planned_seconds, 0.0);
    EXPECT_DOUBLE_EQ(part.flops, whole.flops);
    EXPECT_DOUBLE_EQ(part.flops_per_second_per_device, part.flops / (part.seconds + part.planned_seconds));
    // What three of four layers' attention sends is not sent.
    benchmark.attention_layers = 2;
    const StepBenchmarkRow half = only_row(benchmark);
    EXPECT_GT(half.bytes_sent, part.bytes_sent);
    EXPECT_EQ(whole.bytes_sent - half.bytes_sent, 2 * (half.bytes_sent - part.bytes_sent));
    benchmark.attention_layers = 4;
    const StepBenchmarkRow all = only_row(benchmark);
    EXPECT_EQ(all.planned_seconds, 0.0);
    EXPECT_EQ(all.bytes_sent, whole.bytes_sent);
    EXPECT_EQ(all.loss, whole.loss);  // nothing was left out
    EXPECT_NE(part.loss, whole.loss);
  }
  StepBenchmark benchmark = small_step(RecomputePolicy::full);
  benchmark.attention_layers = 5;
  EXPECT_THAT([&] { only_row(benchmark); }, ThrowsMessage<ConfigurationError>(HasSubstr("--attention-layers")));
}

TEST(StepBenchmark, TheLongestSequenceIsFoundByRunningIt) {
  StepBenchmark benchmark = small_step(RecomputePolicy::attention);
  benchmark.tokens = {64};
  benchmark.memory_limit_bytes = int64_t{1} << 20;
  int64_t with_all_layers = 0;
  for (const int64_t layers : {0, 1}) {
    benchmark.attention_layers = layers;
    size_t told = 0;
    const LongestSequence longest = find_longest_sequence(benchmark, [&](const StepBenchmarkRow&) { ++told; });
    EXPECT_EQ(told, longest.tries.size());
    ASSERT_GT(longest.tokens, 64);
    EXPECT_GT(longest.shortest_failure, longest.tokens);
    EXPECT_LE(longest.shortest_failure - longest.tokens, std::max<int64_t>(64, longest.tokens / 16));
    for (const StepBenchmarkRow& row : longest.tries) EXPECT_EQ(row.failure.empty(), row.tokens <= longest.tokens);
    // Leaving attention out finds the same length.
    if (layers == 0) with_all_layers = longest.tokens;
    EXPECT_EQ(longest.tokens, with_all_layers);
  }
  benchmark.memory_limit_bytes = 100'000;  // less than weights take
  const LongestSequence none = find_longest_sequence(benchmark, [](const StepBenchmarkRow&) {});
  EXPECT_EQ(none.tokens, 0);
  EXPECT_EQ(none.shortest_failure, 64);
}

}  // namespace
}  // namespace ithaca
