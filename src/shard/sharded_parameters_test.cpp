// The store without a model: every rank's slices, what a step exchanges and when, and what a reader sees.
#include "shard/sharded_parameters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "attention/watched_backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/random.h"
#include "comm/collective_call.h"
#include "comm/thread_ranks.h"

namespace ithaca::testing {
namespace {

// Claims another compute dtype than the CPU's, which a store notices only in its blocks.
class DtypeBackend final : public WatchedBackend {
 public:
  DtypeBackend(std::unique_ptr<Backend> inner, const WatchedBackendOptions& options, DType compute_dtype)
      : WatchedBackend(std::move(inner), options), compute_dtype_(compute_dtype) {}
  DType compute_dtype() const override { return compute_dtype_; }

 private:
  DType compute_dtype_;
};

// Three units: one parameter, several of odd sizes of which two are joined, a single element.
std::vector<ParameterSpec> odd_specs() {
  std::vector<ParameterSpec> specs(5);
  specs[0] = {.name = "a", .extents = {7, 11}, .unit = 0};
  specs[1] = {.name = "b", .extents = {3, 5}, .unit = 1};
  specs[2] = {.name = "c", .extents = {2, 5}, .unit = 1, .joined_to_previous = true};
  specs[3] = {.name = "d", .extents = {130}, .unit = 1};
  specs[4] = {.name = "e", .extents = {1}, .unit = 2};
  return specs;
}

struct Case {
  MeshSizes mesh;
  ZeroStage stage = ZeroStage::optimizer_state;
  DType compute_dtype = DType::float32;
  std::string describe() const {
    return mesh.describe() + ", zero " + std::string(zero_stage_name(stage)) + ", " +
           std::string(dtype_name(compute_dtype));
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 1}, MeshSizes{1, 1, 2}, MeshSizes{1, 1, 5}, MeshSizes{1, 2, 2},
                                MeshSizes{2, 1, 2}, MeshSizes{2, 2, 1}, MeshSizes{3, 1, 1}, MeshSizes{1, 3, 1, 2}}) {
    for (const ZeroStage stage : {ZeroStage::replicated, ZeroStage::optimizer_state}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) all.push_back({mesh, stage, dtype});
    }
  }
  return all;
}

// What one rank works with.
struct StoreRank {
  Backend& backend;
  Mesh& mesh;
  ShardedParameters& store;
  Stream& compute;

  void finish() const { backend.finish(backend.record(compute)); }
  // As the model reads it.
  std::vector<float> acquired(int64_t spec) const {
    const ParameterSpec& description = store.specs()[static_cast<size_t>(spec)];
    int index = 0;
    while (spec - index > 0 && store.specs()[static_cast<size_t>(spec - index - 1)].unit == description.unit) ++index;
    const Tensor tensor = store.acquire(description.unit, compute)[index];
    std::vector<float> values(static_cast<size_t>(tensor.element_count()));
    const Buffer wide =
        backend.arena(Tier::device)
            .allocate("values in float32", MemoryClass::workspace, DType::float32, tensor.extents, compute);
    backend.copy(compute, {tensor, wide.tensor()});
    backend.copy_to_host(compute, wide.tensor(), std::as_writable_bytes(std::span(values)));
    finish();
    return values;
  }
  std::vector<float> weights(int64_t spec) const { return whole(spec, &ShardedParameters::get_weights); }
  std::vector<float> gradients(int64_t spec) const { return whole(spec, &ShardedParameters::get_gradients); }
  std::vector<float> whole(int64_t spec, void (ShardedParameters::*get)(int64_t, std::span<float>)) const {
    std::vector<float> values(static_cast<size_t>(store.specs()[static_cast<size_t>(spec)].extents.product()));
    (store.*get)(spec, values);
    return values;
  }
  // Adds to the gradients of a unit's parameters what this rank's micro-batch gives: a number for each element.
  void contribute(UnitId unit, double number) const {
    for (const Tensor& gradient : store.gradients(unit, compute).tensors) backend.fill(compute, {gradient, number});
    store.gradients_ready(unit, backend.record(compute));
  }
  // A step like AdamW's: every own element gets a value by its parameter.
  void update(UnitId unit, double number) const {
    const OwnSlice& own = store.own_slice(unit);
    for (const OwnRange& range : store.own_ranges(unit)) {
      const Tensor piece = own.weights.slice(0, range.begin, range.end);
      backend.fill(compute, {piece, number + static_cast<double>(range.spec)});
      if (!own.compute_weights.is_absent()) {
        backend.copy(compute, {piece, own.compute_weights.slice(0, range.begin, range.end)});
      }
    }
    store.weights_updated(unit);
  }
};

void run_store(const Case& test_case, const WatchedBackendOptions& options,
               const std::function<void(const StoreRank&)>& body, const std::vector<ParameterSpec>& specs = odd_specs(),
               int64_t memory_limit_bytes = int64_t{1} << 20) {
  ThreadRankOptions ranks;
  ranks.timeout_seconds = 60.0;
  run_thread_ranks(test_case.mesh.ranks(), ranks, [&](ThreadRank& thread) {
    CpuBackendOptions backend_options;
    backend_options.memory_limit_bytes = memory_limit_bytes;
    backend_options.host_memory_limit_bytes = int64_t{1} << 20;
    WatchedBackendOptions own = options;
    own.seed = options.seed * 100 + static_cast<uint64_t>(thread.rank());
    DtypeBackend backend(make_cpu_backend(backend_options), own, test_case.compute_dtype);
    Mesh mesh(thread.connect(backend), test_case.mesh);
    ShardedParameters store(specs, backend, mesh, test_case.stage);
    body({backend, mesh, store, backend.compute_stream()});
  });
}

TEST(UnitLayout, SlicesAreEqualAndAlignedWhateverTheyCutThrough) {
  const std::vector<UnitLayout> one = unit_layouts(odd_specs(), 1);
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(one[0].elements, 128);  // 77
  EXPECT_EQ(one[1].offsets, (std::vector<int64_t>{0, 15, 64}));
  EXPECT_EQ(one[1].elements, 256);  // 64 + 130
  EXPECT_EQ(one[2].elements, 64);   // 1
  const std::vector<UnitLayout> five = unit_layouts(odd_specs(), 5);
  EXPECT_EQ(five[0].slice_elements, 64);  // 77 of 320: three ranks have padding alone
  EXPECT_EQ(five[1].slice_elements, 64);
  EXPECT_EQ(five[1].elements, 320);
  EXPECT_EQ(five[1].offsets, one[1].offsets);
  EXPECT_EQ(five[2].elements, 320);
}

TEST(UnitLayout, BytesAreThoseOfTheBlocks) {
  // Blocks of 128, 256 and 64 elements.
  const ParameterBytes one = parameter_bytes(odd_specs(), DType::bfloat16, 1);
  EXPECT_EQ(one.gradients, 448 * 4);
  EXPECT_EQ(one.slices, 448 * 4);
  EXPECT_EQ(one.weights, 448 * 4 + (256 + 512 + 256));  // an arena rounds 128 bytes up to 256
  // Of 128, 256 and 128 elements for two.
  const ParameterBytes two = parameter_bytes(odd_specs(), DType::float32, 2);
  EXPECT_EQ(two.gradients, 512 * 4);
  EXPECT_EQ(two.weights, 512 * 4);
  EXPECT_EQ(two.slices, 512 * 4 / 2);
}

TEST(ShardedParameters, OwnRangesAreAPartitionOfEveryParameter) {
  for (const Case& test_case : cases()) {
    SCOPED_TRACE(test_case.describe());
    std::mutex mutex;
    std::map<int64_t, int64_t> elements;  // by parameter
    int64_t ranks_with_nothing = 0;
    run_store(test_case, {}, [&](const StoreRank& here) {
      const std::lock_guard lock(mutex);
      for (UnitId unit = 0; unit < here.store.unit_count(); ++unit) {
        int64_t at = 0;
        for (const OwnRange& range : here.store.own_ranges(unit)) {
          EXPECT_LE(at, range.begin);
          EXPECT_LT(range.begin, range.end);
          elements[range.spec] += range.end - range.begin;
          at = range.end;
        }
        EXPECT_LE(at, here.store.own_slice(unit).weights.element_count());
        if (here.store.own_ranges(unit).empty()) ++ranks_with_nothing;
      }
    });
    const int copies = test_case.mesh.ranks() / shard_count(test_case.mesh, test_case.stage);
    for (size_t spec = 0; spec < odd_specs().size(); ++spec) {
      EXPECT_EQ(elements[static_cast<int64_t>(spec)], copies * odd_specs()[spec].extents.product()) << spec;
    }
    if (copies == 1 && test_case.mesh.ranks() == 5) {
      EXPECT_EQ(ranks_with_nothing, 3 + 1 + 4);
    }
  }
}

TEST(ShardedParameters, TakesTheMemoryThatWasPlanned) {
  for (const Case& test_case : cases()) {
    SCOPED_TRACE(test_case.describe());
    const ParameterBytes planned =
        parameter_bytes(odd_specs(), test_case.compute_dtype, shard_count(test_case.mesh, test_case.stage));
    run_store(test_case, {}, [&](const StoreRank& here) {
      const MemoryUsage& usage = here.backend.arena(Tier::device).usage();
      EXPECT_EQ(usage.current_by_class[static_cast<size_t>(MemoryClass::weights)], planned.weights);
      EXPECT_EQ(usage.current_by_class[static_cast<size_t>(MemoryClass::gradients)], planned.gradients);
      EXPECT_EQ(usage.current, planned.weights + planned.gradients);
    });
  }
}

TEST(ShardedParameters, WhatIsSetIsReadOnEveryRank) {
  for (const Case& test_case : cases()) {
    SCOPED_TRACE(test_case.describe());
    run_store(test_case, {}, [&](const StoreRank& here) {
      for (size_t spec = 0; spec < odd_specs().size(); ++spec) {
        std::vector<float> values(static_cast<size_t>(odd_specs()[spec].extents.product()));
        const RandomStream random(3, odd_specs()[spec].name);
        for (size_t index = 0; index < values.size(); ++index) values[index] = static_cast<float>(random.normal(index));
        const auto number = static_cast<int64_t>(spec);
        here.store.set_weights(number, values);
        EXPECT_EQ(here.weights(number), values) << "masters are exact";
        for (float& value : values) {
          if (test_case.compute_dtype == DType::bfloat16) value = to_float(to_bfloat16(value));
        }
        EXPECT_EQ(here.acquired(number), values);
      }
      // A rank that has no use for the values takes part; the others get theirs.
      if (here.mesh.world().rank() == 0) {
        EXPECT_EQ(here.weights(0).size(), 77u);
      } else {
        here.store.get_weights(0, {});
      }
    });
  }
}

TEST(ShardedParameters, LargeParametersTravelInPieces) {
  std::vector<ParameterSpec> specs(2);
  specs[0] = {.name = "small", .extents = {77}, .unit = 0};
  specs[1] = {.name = "large", .extents = {ShardedParameters::kTransferElements + 1001}, .unit = 0};
  std::vector<float> values(static_cast<size_t>(specs[1].extents.product()));
  for (size_t index = 0; index < values.size(); ++index)
    values[index] = static_cast<float>(index % 251);  // in bfloat16
  const auto check = [&](const StoreRank& here) {
    here.store.set_weights(1, values);
    EXPECT_TRUE(here.weights(1) == values);
    const MemoryUsage& usage = here.backend.arena(Tier::device).usage();
    EXPECT_EQ(usage.peak - usage.current, ShardedParameters::kTransferElements * 4);
    EXPECT_TRUE(here.acquired(1) == values);
  };
  run_store({MeshSizes{1, 1, 2}, ZeroStage::optimizer_state, DType::bfloat16}, {}, check, specs, int64_t{1} << 28);
}

// Two steps: sums of gradients, one update, the new weights everywhere, and the bytes of all that.
void run_steps(const StoreRank& here, const Case& test_case) {
  const int ranks = test_case.mesh.ranks();
  const int64_t specs = static_cast<int64_t>(odd_specs().size());
  const std::vector<float> zeros(130, 0.0f);
  for (int64_t spec = 0; spec < specs; ++spec) {
    here.store.set_weights(
        spec, std::span(zeros).first(static_cast<size_t>(odd_specs()[static_cast<size_t>(spec)].extents.product())));
  }
  for (int step = 0; step < 2; ++step) {
    const int64_t sent_before = here.mesh.total_bytes_sent();
    here.store.begin_step();
    // Those of an earlier micro-batch are not exchanged.
    for (UnitId unit = 2; unit >= 0; --unit) here.contribute(unit, 1e6);
    EXPECT_EQ(here.mesh.total_bytes_sent(), sent_before);
    here.store.begin_last_micro_batch();
    for (UnitId unit = 2; unit >= 0; --unit) here.contribute(unit, here.mesh.world().rank() + 1.0 + step);
    for (UnitId unit = 2; unit >= 0; --unit) here.store.wait_for_gradients(unit);
    for (UnitId unit = 0; unit <= 2; ++unit) here.update(unit, 0.5 + 8 * step);

    int64_t expected = 0;
    const int shards = shard_count(test_case.mesh, test_case.stage);
    for (const UnitLayout& layout : unit_layouts(odd_specs(), shards)) {
      const int64_t weights = layout.slice_elements * element_size(test_case.compute_dtype);
      expected += (shards - 1) * (layout.slice_elements * 4 + weights);  // reduce-scatter, all-gather
      // all-reduce over those who have the same slice
      const int replicas = ranks / shards;
      const int replica =
          test_case.stage == ZeroStage::replicated ? here.mesh.gradient().rank() : here.mesh.coordinates().dp_replicate;
      const int64_t own = even_slice(layout.slice_elements, replica, replicas).count();
      if (replicas > 1) expected += 4 * (layout.slice_elements - own + (replicas - 1) * own);
    }
    EXPECT_EQ(here.mesh.total_bytes_sent() - sent_before, expected);

    const float sum = static_cast<float>(ranks * (ranks + 1)) / 2.0f + static_cast<float>(step * ranks);
    for (int64_t spec = 0; spec < specs; ++spec) {
      const auto count = static_cast<size_t>(odd_specs()[static_cast<size_t>(spec)].extents.product());
      const float weight = 0.5f + 8.0f * static_cast<float>(step) + static_cast<float>(spec);
      EXPECT_EQ(here.acquired(spec), std::vector<float>(count, weight)) << spec;
      EXPECT_EQ(here.weights(spec), std::vector<float>(count, weight)) << spec;
      EXPECT_EQ(here.gradients(spec), std::vector<float>(count, sum)) << spec;
    }
    // Padding has stayed zero: the square sum of a slice is that of its parameters.
    for (UnitId unit = 0; unit <= 2; ++unit) {
      const Tensor& own = here.store.own_slice(unit).weights;
      std::vector<float> slice(static_cast<size_t>(own.element_count()));
      here.backend.copy_to_host(here.compute, own, std::as_writable_bytes(std::span(slice)));
      here.finish();
      for (const OwnRange& range : here.store.own_ranges(unit)) {
        std::fill(slice.begin() + range.begin, slice.begin() + range.end, 0.0f);
      }
      EXPECT_EQ(slice, std::vector<float>(slice.size(), 0.0f));
    }
  }
}

TEST(ShardedParameters, StepsSumGradientsAndSpreadTheUpdate) {
  for (const Case& test_case : cases()) {
    SCOPED_TRACE(test_case.describe());
    run_store(test_case, {}, [&](const StoreRank& here) { run_steps(here, test_case); });
  }
}

TEST(ShardedParameters, PausesChangeNothing) {
  for (const Case& test_case : cases()) {
    SCOPED_TRACE(test_case.describe());
    for (const WatchedBackendOptions& pauses :
         {WatchedBackendOptions{1, 200, 0}, WatchedBackendOptions{2, 0, 200}, WatchedBackendOptions{3, 100, 100}}) {
      run_store(test_case, pauses, [&](const StoreRank& here) { run_steps(here, test_case); });
    }
  }
}

// Holds a stream until it is opened; whoever waits for the stream meanwhile is let go after a while, and known.
class Gate {
 public:
  Gate(Backend& backend, Stream& stream)
      : watch_([this](const std::stop_token& stop) {
          for (int waited = 0; waited < 2000 && !stop.stop_requested(); ++waited) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          if (!stop.stop_requested()) had_to_open_ = true;
          is_open_ = true;
          is_open_.notify_all();
        }) {
    backend.enqueue(stream, [this] { is_open_.wait(false); });
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }
  void open() {
    watch_.request_stop();
    if (watch_.joinable()) watch_.join();
  }
  bool had_to_open() const { return had_to_open_; }

 private:
  std::atomic<bool> is_open_ = false;
  std::atomic<bool> had_to_open_ = false;
  std::jthread watch_;
};

// The sum of unit 2's gradients is complete while the compute stream is still busy with the backward of unit 1.
TEST(ShardedParameters, GradientsAreSummedDuringTheNextUnitsBackward) {
  for (const ZeroStage stage : {ZeroStage::replicated, ZeroStage::optimizer_state}) {
    for (const MeshSizes& mesh : {MeshSizes{1, 1, 2}, MeshSizes{2, 2, 1}}) {
      run_store({mesh, stage, DType::bfloat16}, {}, [&](const StoreRank& here) {
        here.store.begin_step();
        here.store.begin_last_micro_batch();
        std::atomic<bool> has_summed_unit_2 = false;
        std::atomic<bool> has_summed_unit_1 = false;
        Stream& communication = here.backend.communication_stream();
        here.contribute(2, 1.0);
        here.backend.enqueue(communication, [&] { has_summed_unit_2 = true; });
        Gate backward_of_unit_1(here.backend, here.compute);
        here.contribute(1, 1.0);
        here.backend.enqueue(communication, [&] { has_summed_unit_1 = true; });
        while (!has_summed_unit_2 && !backward_of_unit_1.had_to_open()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_FALSE(has_summed_unit_1);
        EXPECT_FALSE(backward_of_unit_1.had_to_open());
        backward_of_unit_1.open();
        here.contribute(0, 1.0);
        for (UnitId unit = 2; unit >= 0; --unit) here.store.wait_for_gradients(unit);
        here.finish();
      });
    }
  }
}

// acquire makes its stream wait for the gather of that one unit: while unit 1 is still on its way, unit 0 can be
// computed with; what reads unit 1 runs behind its gather.
TEST(ShardedParameters, AReaderWaitsForItsOwnUnitAlone) {
  run_store({MeshSizes{1, 1, 2}, ZeroStage::optimizer_state, DType::bfloat16}, {}, [&](const StoreRank& here) {
    here.update(0, 1.0);
    Gate gather_of_unit_1(here.backend, here.backend.communication_stream());
    here.update(1, 1.0);
    EXPECT_EQ(here.acquired(0), std::vector<float>(77, 1.0f));
    EXPECT_FALSE(gather_of_unit_1.had_to_open());
    std::atomic<bool> has_read = false;
    static_cast<void>(here.store.acquire(1, here.compute));
    here.backend.enqueue(here.compute, [&] { has_read = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(has_read);
    gather_of_unit_1.open();
    EXPECT_EQ(here.acquired(3), std::vector<float>(130, 4.0f));
    EXPECT_TRUE(has_read);
  });
}

TEST(ShardedParameters, CallsOutOfOrderAreErrors) {
  run_store({MeshSizes{1, 1, 1}, ZeroStage::optimizer_state, DType::float32}, {}, [&](const StoreRank& here) {
    here.store.begin_step();
    EXPECT_THROW(here.store.wait_for_gradients(0), ContractError);
    here.store.begin_last_micro_batch();
    here.contribute(0, 1.0);
    EXPECT_THROW(here.contribute(0, 1.0), ContractError);
    std::vector<float> few(3);
    EXPECT_THROW(here.store.get_weights(0, few), ContractError);
    EXPECT_THROW(here.store.set_weights(0, few), ContractError);
  });
  std::vector<ParameterSpec> specs = odd_specs();
  specs[1].joined_to_previous = true;
  EXPECT_THROW(unit_layouts(specs, 1), ContractError);
  EXPECT_THROW(unit_layouts(odd_specs(), 0), ContractError);
}

}  // namespace
}  // namespace ithaca::testing
