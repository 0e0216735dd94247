// From documents to steps: hashing of contents, building a token cache of bytes, packing, and loading a step.
//
//   data_bench                         all of them
//   data_bench --benchmark_filter=pack only packing
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/random.h"
#include "data/cache/content_hash.h"
#include "data/open_data.h"
#include "data/packing/deal.h"
#include "data/packing/packing.h"
#include "data/step_loader.h"

namespace ithaca {
namespace {

// Log-normal lengths, as of documents on the web: a mean of about 1,600 tokens, a long tail.
int64_t length_of(const RandomStream& random, uint64_t document) {
  return 2 + static_cast<int64_t>(std::exp(6.5 + 1.3 * random.normal(document)));
}

class MadeTable : public DocumentTable {
 public:
  explicit MadeTable(int64_t documents) {
    const RandomStream random(1, "lengths");
    lengths_.reserve(static_cast<size_t>(documents));
    for (int64_t i = 0; i < documents; ++i) {
      lengths_.push_back(static_cast<uint32_t>(length_of(random, static_cast<uint64_t>(i))));
    }
  }
  int64_t samples() const override { return documents(); }
  int64_t documents() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t first_document(int64_t sample) const override { return sample; }
  int64_t length(int64_t document) const override { return lengths_[static_cast<size_t>(document)]; }

 private:
  std::vector<uint32_t> lengths_;
};

void hash(benchmark::State& state) {
  const std::string text(size_t{64} << 20, 'x');
  for (auto _ : state) {
    ContentHash hash;
    hash.add(text);
    benchmark::DoNotOptimize(hash.digest());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(text.size()));
}
BENCHMARK(hash);

void pack(benchmark::State& state, PackingKind kind) {
  const MadeTable table(state.range(0));
  double filled = 0.0;
  for (auto _ : state) {
    const auto packing = make_packing(table, {kind, Overlong::split, 8192});
    filled = static_cast<double>(packing->totals().tokens) /
             static_cast<double>(packing->totals().tokens + packing->totals().unfilled);
  }
  state.counters["filled"] = filled;
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK_CAPTURE(pack, none, PackingKind::none)->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pack, wrapped, PackingKind::wrapped)->Arg(1'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pack, best_fit, PackingKind::best_fit)
    ->Arg(1'000'000)
    ->Arg(10'000'000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

void deal(benchmark::State& state) {
  const RandomStream random(1, "lengths");
  std::vector<double> costs;
  for (uint64_t i = 0; i < 512; ++i) {
    const auto length = static_cast<double>(length_of(random, i));
    costs.push_back(length * length);
  }
  double lost = 0.0;
  for (auto _ : state) lost = deal_imbalance(deal_step(costs, 8, 4), costs);
  state.counters["lost"] = lost;
}
BENCHMARK(deal)->Unit(benchmark::kMicrosecond);

// A folder with 32 MB of text in documents of 2 kB.
class MadeText {
 public:
  MadeText() : folder_(std::filesystem::temp_directory_path() / fmt::format("ithaca-data-bench-{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
    std::ofstream file(folder_ / "text.jsonl");
    const std::string sentence = "the quick brown fox jumps over the lazy dog ";
    for (int document = 0; document < 16000; ++document) {
      file << R"({"text": ")";
      for (int i = 0; i < 45; ++i) file << sentence;
      file << document << "\"}\n";
    }
  }
  MadeText(const MadeText&) = delete;
  MadeText& operator=(const MadeText&) = delete;
  ~MadeText() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  DataOptions options() const {
    DataOptions options;
    options.paths = {(folder_ / "text.jsonl").string()};
    options.packing = PackingKind::best_fit;
    options.stages = {{0, 65536}};
    options.vocabulary = 256;
    options.cache_dir = (folder_ / "caches").string();
    return options;
  }
  void clear() const { std::filesystem::remove_all(folder_ / "caches"); }
  int64_t bytes() const { return static_cast<int64_t>(std::filesystem::file_size(folder_ / "text.jsonl")); }

 private:
  std::filesystem::path folder_;
};

void build_cache(benchmark::State& state) {
  const MadeText text;
  for (auto _ : state) {
    text.clear();
    benchmark::DoNotOptimize(open_data(text.options()));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * text.bytes());
}
BENCHMARK(build_cache)->Unit(benchmark::kMillisecond)->UseRealTime();

void open_cache(benchmark::State& state) {
  const MadeText text;
  open_data(text.options());
  for (auto _ : state) benchmark::DoNotOptimize(open_data(text.options()));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * text.bytes());
}
BENCHMARK(open_cache)->Unit(benchmark::kMillisecond)->UseRealTime();

// One rank of four loads its part of a sequence of 65,536 tokens.
void load_step(benchmark::State& state) {
  const MadeText text;
  const auto data = open_data(text.options());
  const StepLoader loader(*data, {});
  BatchPosition position;
  position.ring_size = 4;
  position.layout = Layout::zigzag;
  int64_t step = 0;
  for (auto _ : state) benchmark::DoNotOptimize(loader.load(step++, position));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * 65536 / 4);
}
BENCHMARK(load_step)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ithaca

BENCHMARK_MAIN();
