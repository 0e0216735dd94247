#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "cli/bench_tables.h"
#include "train/benchmark_exchange.h"

namespace ithaca {

namespace {

int64_t parse_size(const std::string& whole, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, bytes] : {std::pair("", int64_t{1}), std::pair("KiB", int64_t{1} << 10),
                                    std::pair("MiB", int64_t{1} << 20), std::pair("GiB", int64_t{1} << 30)}) {
    constexpr int64_t kLargest = int64_t{1} << 40;
    if (error == std::errc() && unit == name && value >= 1 && value <= kLargest / bytes) return value * bytes;
  }
  throw ConfigurationError(
      fmt::format("--sizes: '{}' is not a size; write 64MiB, or 1MiB..1GiB for every fourfold size in between, up to "
                  "1024GiB",
                  whole));
}

double giga(double bytes_per_second) {
  return bytes_per_second * 1e-9;
}

}  // namespace

std::vector<int64_t> parse_sizes(const std::vector<std::string>& texts) {
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) {
    const size_t dots = text.find("..");
    if (dots == std::string::npos) {
      sizes.push_back(parse_size(text, text));
      continue;
    }
    const int64_t last = parse_size(text, std::string_view(text).substr(dots + 2));
    for (int64_t size = parse_size(text, std::string_view(text).substr(0, dots)); size <= last; size *= 4) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

int bench_exchange(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out) {
  ExchangeBenchmark benchmark;
  benchmark.backend = backend;
  benchmark.ranks = arguments.ranks;
  benchmark.bytes = arguments.sizes.empty() ? exchange_sizes() : parse_sizes(arguments.sizes);
  benchmark.seconds_per_measurement = arguments.seconds;
  out << fmt::format("exchanges between ranks\n{}; medians of {} samples\n", device_text(backend, arguments.ranks),
                     kExchangeSamples);
  out << fmt::format("{:>10} {:<24} {:>11} {:>9} {:>8}\n", "sent", "exchange", "us", "GB/s", "of copy");
  bool all_ran = true;
  run_exchange_benchmark(benchmark, [&](const ExchangeBenchmarkRow& row) {
    nlohmann::ordered_json line = raw_row("exchange", backend, arguments.ranks);
    line["exchange"] = row.exchange;
    line["bytes"] = row.bytes;
    line["failure"] = row.failure;
    line["bytes_sent"] = row.bytes_sent;
    line["seconds"] = row.seconds;
    line["sample_seconds"] = row.sample_seconds;
    line["bytes_per_second"] = row.bytes_per_second;
    line["copy_share"] = row.copy_share;
    raw.add(line);
    if (!row.failure.empty()) {
      all_ran = false;
      out << fmt::format("{:>10} {:<24} did not run: {}\n", format_bytes(row.bytes), row.exchange, row.failure);
      return;
    }
    const std::string share = row.copy_share > 0.0 ? fmt::format("{:.1f}%", 100.0 * row.copy_share) : "-";
    out << fmt::format("{:>10} {:<24} {:>11.2f} {:>9.3f} {:>8}\n", format_bytes(row.bytes_sent), row.exchange,
                       1e6 * row.seconds, giga(row.bytes_per_second), share)
        << std::flush;
  });
  out << "sent: by each rank in one call; GB/s: what one rank sends, while it receives as much (but for the copy one "
         "way);\nof copy: of the copy both ways, in which ranks 0 and 1 copy a tensor of the other's.\n";
  return all_ran ? 0 : 1;
}

}  // namespace ithaca
