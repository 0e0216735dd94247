// Schedules on a backend whose compute stream is as asynchronous as a GPU's: order, overlap, no waiting on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/schedule_testing.h"
#include "attention/watched_backend.h"

namespace ithaca::testing {
namespace {

BackendWrapper watched(const WatchedBackendOptions& options) {
  return [options](int rank, std::unique_ptr<Backend> backend) {
    WatchedBackendOptions own = options;
    own.seed = options.seed * 100 + static_cast<uint64_t>(rank);
    return std::make_unique<WatchedBackend>(std::move(backend), own);
  };
}

std::vector<ScheduleCase> cases() {
  const HeadShape heads{.query_heads = 6, .key_heads = 3, .key_size = 8, .value_size = 12, .scale = 0.3f};
  const HeadShape few{.query_heads = 5, .key_heads = 1, .key_size = 8, .value_size = 8, .scale = 0.3f};
  const Documents documents = random_documents(97, 30.0, 1);
  return {{ScheduleKind::ring, Layout::zigzag, 1, 4, heads, documents, {}},
          {ScheduleKind::ring, Layout::contiguous, 1, 5, heads, documents, {.causal = false, .window = 0}},
          {ScheduleKind::all_gather, Layout::striped, 1, 3, heads, documents, {}},
          {ScheduleKind::ulysses, Layout::contiguous, 4, 1, heads, documents, {}},
          {ScheduleKind::ulysses, Layout::contiguous, 3, 1, few, documents, {}},
          {ScheduleKind::hybrid, Layout::zigzag, 2, 2, heads, documents, {}},
          {ScheduleKind::hybrid, Layout::striped, 4, 2, few, documents, {.causal = true, .window = 20}}};
}

TEST(ScheduleOrder, PausesChangeNothing) {
  for (const ScheduleCase& test_case : cases()) {
    const SequenceInputs inputs = random_inputs(test_case.heads, 97, 2);
    const SequenceResults plain = run_case(test_case, inputs).results;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      EXPECT_TRUE(same_bits(plain, run_case(test_case, inputs, watched({seed, 300, 0})).results))
          << "slow compute: " << test_case.describe();
      EXPECT_TRUE(same_bits(plain, run_case(test_case, inputs, watched({seed, 0, 300})).results))
          << "slow communication: " << test_case.describe();
      EXPECT_TRUE(same_bits(plain, run_case(test_case, inputs, watched({seed, 200, 200})).results))
          << test_case.describe();
    }
  }
}

// Where kernels wait for those of other ranks, a rank's exchanges have one order over all of its groups, and those of
// all ranks must agree; they do, also where hops are skipped.
TEST(ScheduleOrder, AgreesBetweenRanksAndGroups) {
  for (const ScheduleCase& test_case : cases()) {
    const SequenceInputs inputs = random_inputs(test_case.heads, 97, 4);
    const SequenceResults plain = run_case(test_case, inputs).results;
    EXPECT_TRUE(same_bits(plain, run_case(test_case, inputs, watched({1, 200, 200}), Transport::nccl).results))
        << test_case.describe();
  }
}

// Forward and backward return while the compute stream has not even begun.
TEST(ScheduleOrder, TheHostNeverWaits) {
  for (const ScheduleCase& test_case : cases()) {
    const SequenceInputs inputs = random_inputs(test_case.heads, 97, 3);
    const SequenceTruth truth = true_results(test_case.heads, test_case.documents, test_case.mask, inputs);
    SequenceResults results = empty_results(test_case.heads, 97);
    run_on_mesh(
        test_case.ulysses, test_case.ring,
        [&](MeshRank& here) {
          const auto schedule =
              make_schedule(test_case.kind, test_case.layout, test_case.heads, here.backend, here.mesh);
          const auto plan = schedule->plan(test_case.documents, test_case.mask);
          RankTensors tensors(test_case, *plan, inputs);
          std::atomic_flag gate{};
          here.backend.enqueue(here.backend.compute_stream(), [&gate] { gate.wait(false); });
          schedule->forward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp());
          schedule->backward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp(), tensors.doutput(),
                             tensors.gradient());
          gate.test_and_set();
          gate.notify_all();
          here.finish();
          tensors.gather(here.mesh.coordinates(), results);
        },
        watched({}));
    EXPECT_LE(largest_error(results, truth), 2e-6) << test_case.describe();
  }
}

// The caller works in compute order: arguments may be written just before the call, and what is enqueued behind it sees
// the results and may overwrite the arguments, however slow the communication is.
TEST(ScheduleOrder, ComputeStreamIsBehindEverything) {
  for (const ScheduleCase& test_case : cases()) {
    const SequenceInputs inputs = random_inputs(test_case.heads, 97, 5);
    const SequenceResults plain = run_case(test_case, inputs).results;
    SequenceResults results = empty_results(test_case.heads, 97);
    run_on_mesh(
        test_case.ulysses, test_case.ring,
        [&](MeshRank& here) {
          Backend& backend = here.backend;
          Stream& compute = backend.compute_stream();
          const auto schedule = make_schedule(test_case.kind, test_case.layout, test_case.heads, backend, here.mesh);
          const auto plan = schedule->plan(test_case.documents, test_case.mask);
          RankTensors tensors(test_case, *plan, inputs);
          RankTensors kept(test_case, *plan, inputs);
          const auto keep = [&](const Tensor& from, const Tensor& to) {
            backend.copy(compute, {.from = from, .to = to});
          };
          const auto spoil = [&](const Tensor& tensor) { backend.fill(compute, {.to = tensor, .value = 1e6}); };
          const ShardedQkv qkv = tensors.qkv();
          for (const Tensor& tensor : {qkv.query, qkv.key, qkv.value}) spoil(tensor);
          here.finish();
          // The arguments come into being on the compute stream, too.
          keep(kept.qkv().query, qkv.query);
          keep(kept.qkv().key, qkv.key);
          keep(kept.qkv().value, qkv.value);
          schedule->forward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp());
          keep(tensors.output(), kept.output());
          keep(tensors.log_sum_exp(), kept.log_sum_exp());
          for (const Tensor& tensor : {qkv.query, qkv.key, qkv.value, tensors.output(), tensors.log_sum_exp()}) {
            spoil(tensor);
          }
          schedule->backward(*plan, kept.qkv(), kept.output(), kept.log_sum_exp(), kept.doutput(), tensors.gradient());
          const ShardedQkvGradient gradient = tensors.gradient();
          const ShardedQkvGradient kept_gradient = kept.gradient();
          keep(gradient.dquery, kept_gradient.dquery);
          keep(gradient.dkey, kept_gradient.dkey);
          keep(gradient.dvalue, kept_gradient.dvalue);
          // What is kept of the forward results, before backward's arguments are spoilt as well.
          RankTensors forward_results(test_case, *plan, inputs);
          keep(kept.output(), forward_results.output());
          keep(kept.log_sum_exp(), forward_results.log_sum_exp());
          keep(kept_gradient.dquery, forward_results.gradient().dquery);
          keep(kept_gradient.dkey, forward_results.gradient().dkey);
          keep(kept_gradient.dvalue, forward_results.gradient().dvalue);
          const ShardedQkv kept_qkv = kept.qkv();
          for (const Tensor& tensor : {kept_qkv.query, kept_qkv.key, kept_qkv.value, kept.output(), kept.log_sum_exp(),
                                       kept.doutput(), gradient.dquery, gradient.dkey, gradient.dvalue}) {
            spoil(tensor);
          }
          here.finish();
          forward_results.gather(here.mesh.coordinates(), results);
        },
        watched(
            {.seed = 7, .longest_compute_pause_microseconds = 300, .longest_communication_pause_microseconds = 500}));
    EXPECT_TRUE(same_bits(plain, results)) << test_case.describe();
  }
}

// What the first rank enqueues: C for an exchange, A for attention.
std::pair<std::string, std::string> order_of(const ScheduleCase& test_case, int64_t attention_rows = 1) {
  const SequenceInputs inputs = random_inputs(test_case.heads, test_case.documents.total_tokens(), 4);
  std::pair<std::string, std::string> order;
  run_on_mesh(
      test_case.ulysses, test_case.ring,
      [&](MeshRank& here) {
        auto& backend = dynamic_cast<WatchedBackend&>(here.backend);
        const auto schedule = make_schedule(test_case.kind, test_case.layout, test_case.heads, backend, here.mesh);
        const auto plan = schedule->plan(test_case.documents, test_case.mask);
        RankTensors tensors(test_case, *plan, inputs);
        backend.clear_log();
        schedule->forward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp());
        const std::string forward = backend.log();
        backend.clear_log();
        schedule->backward(*plan, tensors.qkv(), tensors.output(), tensors.log_sum_exp(), tensors.doutput(),
                           tensors.gradient());
        here.finish();
        if (here.mesh.cp_rank() == 0) order = {forward, backend.log()};
      },
      watched({.attention_rows = attention_rows}));
  return order;
}

// A backend that likes large calls gets fewer groups of heads, and the same results.
TEST(ScheduleOrder, GroupsAreNoSmallerThanCallsLikeToBe) {
  for (const ScheduleCase& test_case : cases()) {
    const SequenceInputs inputs = random_inputs(test_case.heads, 97, 6);
    const SequenceTruth truth = true_results(test_case.heads, test_case.documents, test_case.mask, inputs);
    for (const int64_t rows : {100, 1 << 20}) {
      const SequenceResults results = run_case(test_case, inputs, watched({.attention_rows = rows})).results;
      EXPECT_LE(largest_error(results, truth), 2e-6) << test_case.describe();
    }
  }
  const HeadShape heads{.query_heads = 8, .key_heads = 8, .key_size = 8, .value_size = 8, .scale = 0.3f};
  const Documents documents(std::vector<int64_t>{64});
  using Calls = std::pair<int64_t, int64_t>;
  const auto attention_calls = [&](ScheduleKind kind, int ulysses, int ring, int64_t rows) {
    const auto [forward, backward] = order_of({kind, Layout::contiguous, ulysses, ring, heads, documents, {}}, rows);
    const auto calls = [](const std::string& order) {
      return static_cast<int64_t>(std::count(order.begin(), order.end(), 'A'));
    };
    return Calls{calls(forward), calls(backward)};
  };
  // Four heads of 64 tokens each: 256 rows.
  EXPECT_EQ(attention_calls(ScheduleKind::ulysses, 2, 1, 64), (Calls{4, 4}));
  EXPECT_EQ(attention_calls(ScheduleKind::ulysses, 2, 1, 128), (Calls{2, 2}));
  EXPECT_EQ(attention_calls(ScheduleKind::ulysses, 2, 1, 129), (Calls{1, 1}));
  // Eight heads of 32 tokens each, gathered in groups of twice those rows; the first rank sees its own keys only.
  EXPECT_EQ(attention_calls(ScheduleKind::all_gather, 1, 2, 16).first, 8);
  EXPECT_EQ(attention_calls(ScheduleKind::all_gather, 1, 2, 50).first, 2);
}

TEST(ScheduleOrder, CommunicationIsEnqueuedBeforeTheComputationThatHidesIt) {
  const HeadShape heads{.query_heads = 8, .key_heads = 8, .key_size = 8, .value_size = 8, .scale = 0.3f};
  const HeadShape pairs{.query_heads = 8, .key_heads = 4, .key_size = 8, .value_size = 8, .scale = 0.3f};
  const HeadShape grouped{.query_heads = 8, .key_heads = 2, .key_size = 8, .value_size = 8, .scale = 0.3f};
  const Documents documents = Documents::single(64);
  using Order = std::pair<std::string, std::string>;
  // Ring of 4: keys and values of hop j + 1 before the attention of hop j; in backward, dK and dV of hop j during hop
  // j + 1, and at the end home, behind the attention of some heads to the own keys.
  EXPECT_EQ(order_of({ScheduleKind::ring, Layout::zigzag, 1, 4, heads, documents, {}}), (Order{"CCA"
                                                                                               "CCA"
                                                                                               "CCA"
                                                                                               "A",
                                                                                               "CCA"
                                                                                               "CCA"
                                                                                               "CCCCA"
                                                                                               "CCA"
                                                                                               "CCA"}));
  // Ulysses over 2: four groups of one head; queries, keys and values of the next group before the attention of this
  // one, its output behind it. Backward also brings output and its gradient, and returns dQ, dK, dV.
  EXPECT_EQ(order_of({ScheduleKind::ulysses, Layout::contiguous, 2, 1, heads, documents, {}}), (Order{"CCC"
                                                                                                      "CCCA"
                                                                                                      "CCCCA"
                                                                                                      "CCCCA"
                                                                                                      "CAC",
                                                                                                      "CCCCC"
                                                                                                      "CCCCCA"
                                                                                                      "CCCCCCCCA"
                                                                                                      "CCCCCCCCA"
                                                                                                      "CCCACCC"}));
  // One key head per rank: it comes with the first group, and its gradient goes with the last.
  EXPECT_EQ(order_of({ScheduleKind::ulysses, Layout::contiguous, 2, 1, grouped, documents, {}}), (Order{"CCC"
                                                                                                        "CA"
                                                                                                        "CCA"
                                                                                                        "CCA"
                                                                                                        "CAC",
                                                                                                        "CCCCC"
                                                                                                        "CCCA"
                                                                                                        "CCCCA"
                                                                                                        "CCCCA"
                                                                                                        "CACCC"}));
  // 2 x 2, one key head per rank and so one group: the ring inside, then the way back.
  EXPECT_EQ(order_of({ScheduleKind::hybrid, Layout::zigzag, 2, 2, grouped, documents, {}}), (Order{"CCC"
                                                                                                   "CCA"
                                                                                                   "A"
                                                                                                   "C",
                                                                                                   "CCCCC"
                                                                                                   "CCA"
                                                                                                   "A"
                                                                                                   "CC"
                                                                                                   "CCC"}));
  // Several groups: the ring's hop of this group goes before the exchange for the next one.
  EXPECT_EQ(order_of({ScheduleKind::hybrid, Layout::zigzag, 2, 2, pairs, documents, {}}), (Order{"CCC"
                                                                                                 "CCCCCA"
                                                                                                 "AC"
                                                                                                 "CCA"
                                                                                                 "AC",
                                                                                                 "CCCCC"
                                                                                                 "CCCCCCCA"
                                                                                                 "ACCCCC"
                                                                                                 "CCA"
                                                                                                 "ACCCCC"}));
  // All-gather over 2, two key heads: the second head's keys and values before the first head's attention (own keys,
  // then the other's).
  EXPECT_EQ(order_of({ScheduleKind::all_gather, Layout::zigzag, 1, 2, grouped, documents, {}}), (Order{"CC"
                                                                                                       "CCAA"
                                                                                                       "AA",
                                                                                                       "CC"
                                                                                                       "CCAA"
                                                                                                       "CCAA"
                                                                                                       "CC"}));
}

}  // namespace
}  // namespace ithaca::testing
