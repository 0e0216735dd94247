// Bandwidth of the exchanges that schedules and gradients are made of, beside a plain copy between two ranks' memory.
// What `ithaca bench exchange` runs, and where predictions have their link rates from.
//
// Thread-safety: call from one thread; ranks are threads of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "train/backend_choice.h"

namespace ithaca {

struct ExchangeBenchmark {
  BackendChoice backend;
  int ranks = 2;
  // That each rank sends in one call, at every size: tensors are as large as that takes.
  std::vector<int64_t> bytes;
  std::vector<std::string> exchanges;                     // of exchange_names(); empty: all of them
  std::vector<Transport> transports = {Transport::peer};  // everything is measured with one, then with the next
  double seconds_per_measurement = 0.3;                   // of which every one has kExchangeSamples samples
};

inline constexpr int kExchangeSamples = 5;

struct ExchangeBenchmarkRow {
  int64_t bytes = 0;  // as asked for
  std::string exchange;
  Transport transport = Transport::peer;
  int64_t bytes_sent = 0;              // by rank 0 in one call, counted: `bytes` in whole elements
  std::vector<double> sample_seconds;  // of one call, each the mean over the calls of a sample
  double seconds = 0.0;                // their median
  double bytes_per_second = 0.0;       // that one rank sends; it receives as much, but for `copy, one way`
  double copy_share = 0.0;             // of what `copy, both ways` reached at this size; 0 where that was not measured
  std::string failure;                 // why it could not run (out of memory)
};

// In the order in which they are measured. All float32, over all ranks but for the copies:
//   copy, one way    rank 0 copies a contiguous tensor of rank 1's: what a copy engine reaches
//   copy, both ways  and rank 1 one of rank 0's at the same time
//   send_receive     to the next rank of the ring, from the one before: a hop of `ring`
//   all_to_all       contiguous blocks
//   all_to_all, head slices   blocks that are slices of [tokens, heads, size], 4 KiB of every token, as `ulysses` sends
//   all_gather, reduce_scatter   one block of every rank: `all_gather`, and gradients
//   all_reduce       one tensor
std::vector<std::string> exchange_names();

// The transports that `ranks` ranks can have on the backend, by the rules of settle_transport.
std::vector<Transport> possible_transports(const BackendChoice& backend, int ranks);

// Sizes from 1 MiB to 1 GiB, each four times the one before.
std::vector<int64_t> exchange_sizes();

// Throws ConfigurationError for fewer than two ranks, no or impossible sizes, no transport and unknown exchanges.
void check_exchange_benchmark(const ExchangeBenchmark& benchmark);

// Calls `on_row` as each row ends. Throws what check_exchange_benchmark throws.
std::vector<ExchangeBenchmarkRow> run_exchange_benchmark(
    const ExchangeBenchmark& benchmark, const std::function<void(const ExchangeBenchmarkRow&)>& on_row);

}  // namespace ithaca
