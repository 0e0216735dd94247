#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

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
    const int64_t first = parse_size(text, std::string_view(text).substr(0, dots));
    if (first > last) {
      throw ConfigurationError(fmt::format("--sizes: '{}' begins above its end; write the smaller size first", text));
    }
    for (int64_t size = first; size <= last; size *= 4) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

namespace {

nlohmann::ordered_json raw_exchange(const ExchangeBenchmarkRow& row, const ExchangeBenchmark& benchmark) {
  nlohmann::ordered_json line = raw_row("exchange", benchmark.backend, benchmark.ranks);
  line["transport"] = transport_name(row.transport);
  line["exchange"] = row.exchange;
  line["bytes"] = row.bytes;
  line["failure"] = row.failure;
  line["bytes_sent"] = row.bytes_sent;
  line["seconds"] = row.seconds;
  line["sample_seconds"] = row.sample_seconds;
  line["bytes_per_second"] = row.bytes_per_second;
  line["copy_share"] = row.copy_share;
  return line;
}

// Two transports beside each other: `rows` has those of the one, then as many of the other.
void compare_transports(const std::vector<ExchangeBenchmarkRow>& rows, std::ostream& out) {
  const size_t half = rows.size() / 2;
  out << fmt::format("\n{:>10} {:<24} {:>10} {:>10} {:>8}\n", "sent", "exchange, GB/s",
                     transport_name(rows[0].transport), transport_name(rows[half].transport), "ratio");
  for (size_t index = 0; index < half; ++index) {
    const ExchangeBenchmarkRow& one = rows[index];
    const ExchangeBenchmarkRow& other = rows[half + index];
    if (!one.failure.empty() || !other.failure.empty()) continue;
    out << fmt::format("{:>10} {:<24} {:>10.3f} {:>10.3f} {:>8.3f}\n", format_bytes(one.bytes_sent), one.exchange,
                       giga(one.bytes_per_second), giga(other.bytes_per_second),
                       other.bytes_per_second / one.bytes_per_second);
  }
  out << "ratio: the second over the first. The copies are the same work with both.\n";
}

}  // namespace

int bench_exchange(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out) {
  ExchangeBenchmark benchmark;
  benchmark.backend = backend;
  benchmark.ranks = arguments.ranks;
  benchmark.bytes = arguments.sizes.empty() ? exchange_sizes() : parse_sizes(arguments.sizes);
  if (arguments.transports.empty()) {
    benchmark.transports = possible_transports(backend, arguments.ranks);
  } else {
    benchmark.transports.clear();
    for (const std::string& text : arguments.transports) {
      BackendChoice settled = backend;
      settle_transport(settled, "--transport", text, arguments.ranks);
      benchmark.transports.push_back(settled.transport);
    }
    if (benchmark.transports.size() > 2) throw ConfigurationError("--transport: one of peer and nccl, or peer,nccl");
  }
  benchmark.seconds_per_measurement = arguments.seconds;
  check_exchange_benchmark(benchmark);
  raw.open();
  out << fmt::format("exchanges between ranks\n{}; medians of {} samples\n", device_text(backend, arguments.ranks),
                     kExchangeSamples);
  out << fmt::format("{:>10} {:<24} {:<9} {:>11} {:>9} {:>8}\n", "sent", "exchange", "transport", "us", "GB/s",
                     "of copy");
  bool all_ran = true;
  const auto rows = run_exchange_benchmark(benchmark, [&](const ExchangeBenchmarkRow& row) {
    raw.add(raw_exchange(row, benchmark));
    out << fmt::format("{:>10} {:<24} {:<9} ", format_bytes(row.failure.empty() ? row.bytes_sent : row.bytes),
                       row.exchange, transport_name(row.transport));
    if (!row.failure.empty()) {
      all_ran = false;
      out << fmt::format("did not run: {}\n", row.failure);
      return;
    }
    out << fmt::format("{:>11.2f} {:>9.3f} {:>8}\n", 1e6 * row.seconds, giga(row.bytes_per_second),
                       percent(row.copy_share))
        << std::flush;
  });
  out << "sent: by each rank in one call; GB/s: what one rank sends, while it receives as much (but for the copy one "
         "way);\nof copy: of the copy both ways, in which ranks 0 and 1 copy a tensor of the other's; - where an "
         "exchange cannot send "
         "as little as the copy.\n";
  if (benchmark.transports.size() == 2) compare_transports(rows, out);
  return all_ran ? 0 : 1;
}

}  // namespace ithaca
