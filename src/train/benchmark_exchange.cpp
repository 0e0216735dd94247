#include "train/benchmark_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "backend/device_movement.h"
#include "base/error.h"
#include "comm/host_movement.h"
#include "comm/thread_ranks.h"
#include "train/benchmark_tensors.h"
#include "train/step.h"

namespace ithaca {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kCopyOneWay = "copy, one way";
constexpr const char* kCopyBothWays = "copy, both ways";
// Elements of one token's heads that go to one rank: 16 heads of 128 in bfloat16 are as many bytes.
constexpr int64_t kHeadSliceElements = 1024;

// One rank's tensors for one exchange, and the call.
class Exchange {
 public:
  // `peers` has a place for a tensor of every rank, which all ranks have filled in by the first call().
  Exchange(const std::string& name, int64_t bytes, Backend& backend, Communicator& world, std::vector<Tensor>& peers)
      : name_(name), backend_(backend), world_(world), stream_(backend.communication_stream()), peers_(peers) {
    const int64_t ranks = world.size();
    const int64_t elements = std::max<int64_t>(bytes / element_size(DType::float32), 1);
    const int64_t block = std::max<int64_t>(elements / (ranks - 1), 1);
    if (name == "all_to_all" || name == "reduce_scatter") {
      set_blocks(send_, make(send_buffer_, {ranks, block}), 0);
      if (name == "all_to_all") set_blocks(receive_, make(receive_buffer_, {ranks, block}), 0);
      if (name == "reduce_scatter") receive_.push_back(make(receive_buffer_, {block}));
    } else if (name == "all_to_all, head slices") {
      const int64_t tokens = std::max<int64_t>(block / kHeadSliceElements, 1);
      set_blocks(send_, make(send_buffer_, {tokens, ranks, kHeadSliceElements}), 1);
      set_blocks(receive_, make(receive_buffer_, {ranks, tokens, kHeadSliceElements}), 0);
    } else if (name == "all_gather") {
      set_blocks(receive_, make(receive_buffer_, {ranks, block}), 0);
      send_.push_back(receive_[static_cast<size_t>(world.rank())]);
    } else if (name == "all_reduce") {
      send_.push_back(make(send_buffer_, {std::max<int64_t>(elements * ranks / (2 * (ranks - 1)), 1)}));
    } else {
      send_.push_back(make(send_buffer_, {elements}));
      receive_.push_back(make(receive_buffer_, {elements}));
    }
    peers_[static_cast<size_t>(world.rank())] = send_.front();
    backend.finish(backend.record(backend.compute_stream()));  // the exchanges run on another stream
  }

  void call() {
    const int rank = world_.rank();
    const int ranks = world_.size();
    if (name_ == kCopyOneWay || name_ == kCopyBothWays) {
      if (rank < (name_ == kCopyOneWay ? 1 : 2)) copy_from(peers_[static_cast<size_t>(1 - rank)]);
    } else if (name_ == "send_receive") {
      world_.send_receive(stream_, send_.front(), (rank + 1) % ranks, receive_.front(), (rank + ranks - 1) % ranks);
    } else if (name_ == "all_gather") {
      world_.all_gather(stream_, send_.front(), receive_);
    } else if (name_ == "reduce_scatter") {
      world_.reduce_scatter(stream_, send_, receive_.front());
    } else if (name_ == "all_reduce") {
      world_.all_reduce(stream_, send_.front());
    } else {
      world_.all_to_all(stream_, send_, receive_);
    }
  }

  // By this rank in one call; a copy counts as sent by the rank that is read from.
  int64_t bytes_of_call() {
    if (name_ == kCopyOneWay || name_ == kCopyBothWays) {
      call();
      return send_.front().byte_count();
    }
    const int64_t before = world_.traffic().total_bytes_sent();
    call();
    return world_.traffic().total_bytes_sent() - before;
  }

 private:
  Tensor make(Buffer& buffer, const Extents& extents) {
    buffer = backend_.arena(Tier::device)
                 .allocate("exchange benchmark", MemoryClass::communication, DType::float32, extents,
                           backend_.compute_stream());
    fill_random(backend_, buffer.tensor());
    buffer.last_used_on(stream_);
    return buffer.tensor();
  }
  static void set_blocks(std::vector<Tensor>& blocks, const Tensor& whole, int dimension) {
    for (int64_t rank = 0; rank < whole.extent(dimension); ++rank) blocks.push_back(whole.select(dimension, rank));
  }
  void copy_from(const Tensor& from) {
    const Tensor to = receive_.front();
    if (auto* const movement = dynamic_cast<DeviceMovement*>(&backend_)) {
      movement->issue(stream_, [from, to](DeviceIssuer& issuer) { issuer.copy_elements(from, to); });
    } else {
      backend_.enqueue(stream_, [from, to] { copy_elements(from, to); });
    }
  }

  std::string name_;
  Backend& backend_;
  Communicator& world_;
  Stream& stream_;
  std::vector<Tensor>& peers_;
  Buffer send_buffer_, receive_buffer_;
  std::vector<Tensor> send_, receive_;
};

void measure(Exchange& exchange, Backend& backend, Communicator& world, double seconds, ExchangeBenchmarkRow& row) {
  const auto run = [&](int64_t repetitions) {
    world.barrier();
    const auto start = Clock::now();
    for (int64_t index = 0; index < repetitions; ++index) exchange.call();
    backend.finish(backend.record(backend.communication_stream()));
    world.barrier();
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(repetitions);
  };
  const int64_t sent = exchange.bytes_of_call();
  const double once = run(2);
  // Rank 0's clock decides for all.
  const auto wanted = static_cast<int64_t>(std::clamp(seconds / kExchangeSamples / std::max(once, 1e-7), 1.0, 2000.0));
  const int64_t repetitions = gather_values(world, backend, std::array{wanted}).front();
  std::vector<double> samples;
  for (int sample = 0; sample < kExchangeSamples; ++sample) samples.push_back(run(repetitions));
  if (world.rank() != 0) return;
  row.bytes_sent = sent;
  row.seconds = median(samples);
  row.sample_seconds = std::move(samples);
  row.bytes_per_second = static_cast<double>(sent) / row.seconds;
}

// Measures rows[begin] and what follows with its transport; returns the index of the first row that is not done: one of
// another transport, or the one after a row that had no memory.
size_t measure_rows(const ExchangeBenchmark& benchmark, std::vector<ExchangeBenchmarkRow>& rows, size_t begin,
                    const std::function<void(ExchangeBenchmarkRow&)>& on_row) {
  std::vector<Tensor> peers(static_cast<size_t>(benchmark.ranks));
  size_t at = begin;  // written by rank 0, read once the ranks have ended
  size_t end = begin;
  while (end < rows.size() && rows[end].transport == rows[begin].transport) ++end;
  ThreadRankOptions options;
  options.transport = rows[begin].transport;
  try {
    run_thread_ranks(benchmark.ranks, options, [&](ThreadRank& thread) {
      const std::unique_ptr<Backend> backend = make_backend(benchmark.backend, thread.rank(), thread.size(), 0);
      const std::unique_ptr<Communicator> world = thread.connect(*backend);
      for (size_t index = begin; index < end; ++index) {
        if (world->rank() == 0) at = index;
        world->barrier();  // the row that a failure is booked under is the same for all ranks
        Exchange exchange(rows[index].exchange, rows[index].bytes, *backend, *world, peers);
        world->barrier();
        measure(exchange, *backend, *world, benchmark.seconds_per_measurement, rows[index]);
        if (world->rank() == 0) on_row(rows[index]);
        world->barrier();  // before the tensors go
      }
    });
  } catch (const OutOfMemoryError& error) {
    rows[at].failure = error.what();
    on_row(rows[at]);
    return at + 1;
  }
  return end;
}

}  // namespace

std::vector<std::string> exchange_names() {
  return {kCopyOneWay,  kCopyBothWays,    "send_receive", "all_to_all", "all_to_all, head slices",
          "all_gather", "reduce_scatter", "all_reduce"};
}

std::vector<Transport> possible_transports(const BackendChoice& backend, int ranks) {
  std::vector<Transport> possible;
  for (const Transport transport : {Transport::peer, Transport::nccl}) {
    BackendChoice choice = backend;
    try {
      settle_transport(choice, "transport", std::string(transport_name(transport)), ranks);
      possible.push_back(transport);
    } catch (const ConfigurationError&) {
      // Not for these ranks: left out.
    }
  }
  return possible;
}

std::vector<int64_t> exchange_sizes() {
  std::vector<int64_t> sizes;
  for (int64_t size = int64_t{1} << 20; size <= int64_t{1} << 30; size *= 4) sizes.push_back(size);
  return sizes;
}

void check_exchange_benchmark(const ExchangeBenchmark& benchmark) {
  if (benchmark.ranks < 2) throw ConfigurationError("--ranks: an exchange takes place between 2 or more ranks");
  if (benchmark.transports.empty()) {
    throw ConfigurationError(
        fmt::format("--transport: neither peer nor nccl can move bytes between {} ranks here; "
                    "give one of them to read why, or fewer --ranks",
                    benchmark.ranks));
  }
  if (benchmark.bytes.empty()) throw ConfigurationError("--sizes: an exchange benchmark needs a size");
  for (const int64_t bytes : benchmark.bytes) {
    if (bytes < 1) throw ConfigurationError(fmt::format("--sizes: {} bytes cannot be sent; 1 or more can", bytes));
  }
  const std::vector<std::string> all = exchange_names();
  for (const std::string& name : benchmark.exchanges) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw ConfigurationError(fmt::format("'{}' is not one of the exchanges {}", name, fmt::join(all, "; ")));
    }
  }
}

std::vector<ExchangeBenchmarkRow> run_exchange_benchmark(
    const ExchangeBenchmark& benchmark, const std::function<void(const ExchangeBenchmarkRow&)>& on_row) {
  check_exchange_benchmark(benchmark);
  const std::vector<std::string> names = benchmark.exchanges.empty() ? exchange_names() : benchmark.exchanges;
  std::vector<ExchangeBenchmarkRow> rows;
  for (const Transport transport : benchmark.transports) {
    for (const int64_t bytes : benchmark.bytes) {
      for (const std::string& name : names) {
        ExchangeBenchmarkRow row;
        row.bytes = bytes;
        row.exchange = name;
        row.transport = transport;
        rows.push_back(std::move(row));
      }
    }
  }
  ExchangeBenchmarkRow copy;  // of the size at hand; its rate is 0 where there is none
  const auto on_measured = [&](ExchangeBenchmarkRow& row) {
    if (row.exchange == names.front()) copy = {};  // another size
    if (row.exchange == kCopyBothWays) copy = row;
    // Only with a copy of about as many bytes: head slices of one token are 4 KiB at least.
    const bool is_alike = copy.bytes_per_second > 0.0 && row.bytes_sent <= 2 * copy.bytes_sent;
    if (is_alike) row.copy_share = row.bytes_per_second / copy.bytes_per_second;
    on_row(row);
  };
  for (size_t begin = 0; begin < rows.size();) begin = measure_rows(benchmark, rows, begin, on_measured);
  return rows;
}

}  // namespace ithaca
