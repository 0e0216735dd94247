// How fast texts become token ids, on one core.
//
//   scripts/fetch_tokenizers.sh && build/bench/bin/tokenizer_bench [TEXT]
//
// TEXT: English to encode (default: the text of the quickstart, else made-up words). Without the fetched tokenizers
// only the small ones of the tests are measured.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace {

using ithaca::Tokenizer;

constexpr int64_t kTextBytes = int64_t{16} << 20U;
constexpr int64_t kLongLineBytes = int64_t{100} << 20U;

// The same every time; words with the lengths of English ones.
std::string made_up_text(int64_t bytes) {
  std::string text;
  uint64_t state = 88172645463325252ULL;
  const auto below = [&](uint64_t limit) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    return state % limit;
  };
  constexpr std::string_view kLetters = "etaoinshrdlucmfwypvbgkjqxz";
  std::vector<std::string> words(20000);
  for (std::string& word : words) {
    for (uint64_t left = 1 + below(4) + below(6); left > 0; --left) word.push_back(kLetters[below(1 + below(26))]);
  }
  while (static_cast<int64_t>(text.size()) < bytes) {
    text += words[below(1 + below(words.size()))];
    text += below(12) == 0 ? ". " : " ";
  }
  return text;
}

std::string text_of(const std::string& path) {
  if (path.empty()) return made_up_text(kTextBytes);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text, bool spans) {
  int64_t tokens = 0;
  for (auto _ : state) {
    const ithaca::Encoding encoding = tokenizer.encode(text, {false, spans});
    tokens = static_cast<int64_t>(encoding.ids.size());
    benchmark::DoNotOptimize(tokens);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes/token"] = static_cast<double>(text.size()) / static_cast<double>(std::max<int64_t>(tokens, 1));
}

void decode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int64_t> ids = tokenizer.encode(text, {}).ids;
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids, {}).size());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string text = text_of(argc > 1 ? argv[1] : "");
  std::string without_space = made_up_text(100000);
  std::erase_if(without_space, [](char letter) { return letter == ' ' || letter == '.'; });
  std::string long_line;
  while (static_cast<int64_t>(long_line.size()) < kLongLineBytes) long_line += text;
  for (char& letter : long_line) {
    if (letter == '\n' || letter == '\r') letter = ' ';
  }
  const std::filesystem::path source = ITHACA_SOURCE_DIR;
  std::vector<std::filesystem::path> folders;
  for (const char* name : {"qwen3", "llama3_1", "llama2", "gemma3"}) {
    if (std::filesystem::exists(source / "build/tokenizers" / name))
      folders.push_back(source / "build/tokenizers" / name);
  }
  if (folders.empty()) {
    std::cerr << "build/tokenizers is not there (scripts/fetch_tokenizers.sh); measuring small tokenizers\n";
    for (const auto& entry : std::filesystem::directory_iterator(source / "tests/data/tokenizers")) {
      if (std::filesystem::exists(entry.path() / "tokenizer.json")) folders.push_back(entry.path());
    }
  }
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (const auto& folder : folders) {
    tokenizers.push_back(ithaca::open_tokenizer(folder));
    const Tokenizer& tokenizer = *tokenizers.back();
    const std::string name = folder.filename().string();
    benchmark::RegisterBenchmark(("open/" + name).c_str(), [folder](benchmark::State& state) {
      for (auto _ : state) benchmark::DoNotOptimize(ithaca::open_tokenizer(folder)->vocabulary_size());
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("encode/" + name).c_str(), [&](benchmark::State& state) {
      encode(state, tokenizer, text, false);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("encode_with_spans/" + name).c_str(), [&](benchmark::State& state) {
      encode(state, tokenizer, text, true);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("decode/" + name).c_str(), [&](benchmark::State& state) {
      decode(state, tokenizer, text);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("100_kB_without_a_space/" + name).c_str(), [&](benchmark::State& state) {
      encode(state, tokenizer, without_space, false);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("100_MiB_line/" + name).c_str(),
                                 [&](benchmark::State& state) {
                                   const double before = peak_mebibytes();
                                   encode(state, tokenizer, long_line, false);
                                   state.counters["peak_growth_MiB"] = peak_mebibytes() - before;
                                 })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
