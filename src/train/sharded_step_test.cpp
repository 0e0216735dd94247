// Whole steps at both stages of ZeRO: the same weights, what is sent and when, skipped steps, what readers find right
// behind an update. The model's sizes are odd, so that slices cut through its parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "attention/watched_backend.h"
#include "backend/cpu/cpu_backend.h"
#include "comm/collective_call.h"
#include "model/parameters.h"
#include "train/exactness_testing.h"
#include "train/initialize.h"

namespace ithaca::testing {
namespace {

ModelDescription odd_model(bool tied_head = false) {
  ModelDescription model = random_model(8, 2, 0);
  model.tied_head = tied_head;
  return model;
}

std::vector<Sequence> odd_sequences(const ModelDescription& model) {
  std::vector<Sequence> sequences;
  for (int64_t index = 0; index < 4; ++index) {
    const int64_t tokens = 37 + 11 * index;
    sequences.push_back(random_sequence(tokens, model.vocabulary, {tokens}, 50 + static_cast<uint64_t>(index)));
  }
  return sequences;
}

RunSettings settings_at(const MeshSizes& mesh, ZeroStage stage) {
  RunSettings settings;
  settings.mesh = mesh;
  settings.zero = stage;
  settings.accumulation = (4 + mesh.dp() - 1) / mesh.dp();
  if (mesh.ring == 1 && mesh.ulysses > 1) settings.schedule = ScheduleKind::ulysses;
  if (mesh.ring > 1 && mesh.ulysses > 1) settings.schedule = ScheduleKind::hybrid;
  return settings;
}

AdamWOptions decaying() {
  AdamWOptions options;
  options.weight_decay = 0.1;
  return options;
}

TEST(ShardedStep, BothStagesTrainTheSameWeights) {
  for (const bool tied_head : {false, true}) {
    const ModelDescription model = odd_model(tied_head);
    const std::vector<Sequence> sequences = odd_sequences(model);
    for (const MeshSizes& mesh : {MeshSizes{1, 1, 2}, MeshSizes{1, 2, 1}, MeshSizes{1, 1, 3}, MeshSizes{1, 2, 2},
                                  MeshSizes{1, 1, 1, 4}, MeshSizes{1, 4, 2}, MeshSizes{2, 2, 1}, MeshSizes{2, 1, 2}}) {
      for (const double max_norm : {0.0, 0.3}) {
        AdamWOptions adamw = decaying();
        adamw.max_grad_norm = max_norm;
        const RunOutcome zero =
            run_case(model, nullptr, sequences, settings_at(mesh, ZeroStage::replicated), adamw, 1e-2, 3);
        const RunSettings sharded = settings_at(mesh, ZeroStage::optimizer_state);
        SCOPED_TRACE(sharded.describe());
        const RunOutcome one = run_case(model, nullptr, sequences, sharded, adamw, 1e-2, 3);
        EXPECT_EQ(one.weights, one.compute_weights);
        EXPECT_NEAR(one.grad_norm / zero.grad_norm, 1.0, mesh.dp_replicate == 1 ? 1e-12 : 1e-6);
        EXPECT_LT(one.loss_after_steps, one.loss);
        if (mesh.dp_replicate == 1 && max_norm == 0.0) {
          // Gradients are summed in the order of the ranks at both stages, and the update is by element.
          EXPECT_EQ(one.gradients, zero.gradients);
          EXPECT_EQ(one.weights, zero.weights);
          EXPECT_EQ(one.loss_after_steps, zero.loss_after_steps);
        } else {
          EXPECT_LT(largest_gradient_difference(one, zero), 5e-6);
          EXPECT_NEAR(one.loss_after_steps / zero.loss_after_steps, 1.0, 5e-6);
        }
      }
    }
  }
}

// Calls body(rank, batch) on every rank of a mesh; the batch is all of the odd sequences.
template <typename Body>
void run_ranks(const ModelDescription& model, const MeshSizes& mesh, ZeroStage stage, const Body& body) {
  const RunSettings settings = settings_at(mesh, stage);
  const ListedDataset dataset(odd_sequences(model));
  StepLoaderOptions loader_options;
  loader_options.accumulation = settings.accumulation;
  loader_options.dp_size = mesh.dp();
  const StepLoader loader(dataset, loader_options);
  TrainingRankOptions options;
  options.mesh = mesh;
  options.schedule = settings.schedule;
  options.zero = stage;
  options.optimizer = decaying();
  options.memory_limit_bytes = int64_t{1} << 28;
  run_thread_ranks(mesh.ranks(), {120.0}, [&](ThreadRank& thread) {
    TrainingRank rank(thread, model, options);
    initialize_weights(model, 7, rank.parameters());
    body(rank, loader.load(0, rank.batch_position()));
  });
}

std::vector<std::vector<float>> all_weights(TrainingRank& rank) {
  std::vector<std::vector<float>> all;
  for (size_t spec = 0; spec < rank.parameters().specs().size(); ++spec) {
    all.emplace_back(static_cast<size_t>(rank.parameters().specs()[spec].extents.product()));
    rank.parameters().get_weights(static_cast<int64_t>(spec), all.back());
  }
  return all;
}

TEST(ShardedStep, AStepThatCannotBeAppliedIsSkippedOnEveryRank) {
  const ModelDescription model = odd_model();
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 3}, MeshSizes{2, 2, 1}}) {
    for (const ZeroStage stage : {ZeroStage::replicated, ZeroStage::optimizer_state}) {
      run_ranks(model, mesh, stage, [&](TrainingRank& rank, const StepBatch& batch) {
        const auto before = all_weights(rank);
        StepBatch unlabelled = batch;
        unlabelled.label_weight_sum = 0.0;
        EXPECT_TRUE(rank.step().run(unlabelled, 1e-2).skipped);
        EXPECT_EQ(all_weights(rank), before);

        // An infinite gradient in the slice of one rank (and of its replicas, as sums are the same on all of them).
        rank.step().accumulate_gradients(batch);
        ShardedParameters& parameters = rank.parameters();
        parameters.wait_for_gradients(1);
        const bool is_last_shard = stage == ZeroStage::replicated || rank.mesh().shard().rank() == 1;
        if (is_last_shard) {
          const OwnRange range = parameters.own_ranges(1).back();
          rank.backend().fill(rank.backend().compute_stream(),
                              {parameters.own_slice(1).gradients.slice(0, range.end - 1, range.end),
                               std::numeric_limits<double>::infinity()});
        }
        const StepResult infinite = rank.step().update(batch, 1e-2);
        EXPECT_TRUE(infinite.skipped);
        EXPECT_TRUE(std::isinf(infinite.grad_norm));
        EXPECT_EQ(infinite.applied_steps, 0);
        EXPECT_EQ(all_weights(rank), before);

        const StepResult good = rank.step().run(batch, 1e-2);
        EXPECT_FALSE(good.skipped);
        EXPECT_EQ(good.applied_steps, 1);
        EXPECT_NE(all_weights(rank), before);
      });
    }
  }
}

// What reads weights right behind an update reads those of all ranks: another rank's evaluation of the same sequences
// gives the same loss, and one rank that is given the weights does, too.
TEST(ShardedStep, EvaluationAndExportRightBehindAnUpdate) {
  const ModelDescription model = odd_model(true);
  std::vector<std::vector<float>> exported;
  double loss = 0.0;
  run_ranks(model, MeshSizes{1, 2, 2}, ZeroStage::optimizer_state, [&](TrainingRank& rank, const StepBatch& batch) {
    static_cast<void>(rank.step().run(batch, 1e-2));
    const double own_loss = rank.step().evaluate(batch.micro_batches, batch.label_weight_sum).value();
    static_cast<void>(rank.step().run(batch, 1e-2));
    const auto weights = all_weights(rank);
    const double later_loss = rank.step().evaluate(batch.micro_batches, batch.label_weight_sum).value();
    EXPECT_LT(later_loss, own_loss);
    if (rank.mesh().world().rank() > 0) return;
    exported = weights;
    loss = later_loss;
  });
  run_ranks(model, MeshSizes{1, 1, 1}, ZeroStage::optimizer_state, [&](TrainingRank& rank, const StepBatch& batch) {
    for (size_t spec = 0; spec < exported.size(); ++spec) {
      rank.parameters().set_weights(static_cast<int64_t>(spec), exported[spec]);
    }
    EXPECT_NEAR(rank.step().evaluate(batch.micro_batches, batch.label_weight_sum).value() / loss, 1.0, 5e-6);
  });
}

// Of one all_reduce of a number: its owner sends it to all others, which send theirs to the owner.
int64_t number_bytes(const Communicator& group, int64_t bytes) {
  if (group.size() == 1) return 0;
  return group.rank() == 0 ? (group.size() - 1) * bytes : bytes;
}

TEST(ShardedStep, SendsWhatTheFormulaSays) {
  const ModelDescription model = odd_model();
  const std::vector<ParameterSpec> specs = parameter_specs(model);
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 3}, MeshSizes{1, 2, 2}, MeshSizes{2, 2, 1}, MeshSizes{2, 1, 2}}) {
    for (const ZeroStage stage : {ZeroStage::replicated, ZeroStage::optimizer_state}) {
      run_ranks(model, mesh, stage, [&](TrainingRank& rank, const StepBatch& batch) {
        Mesh& own = rank.mesh();
        const auto sent = [&] {
          // shard() is gradient() where nothing is repeated.
          return own.gradient().traffic().total_bytes_sent() + own.replicate().traffic().total_bytes_sent() +
                 (&own.shard() == &own.gradient() ? 0 : own.shard().traffic().total_bytes_sent());
        };
        const int64_t before = sent();
        static_cast<void>(rank.step().run(batch, 1e-2));
        const int shards = shard_count(mesh, stage);
        Communicator& replicas = stage == ZeroStage::replicated ? own.gradient() : own.replicate();
        int64_t expected = number_bytes(own.gradient(), 8);        // the loss
        if (shards > 1) expected += number_bytes(own.shard(), 8);  // the gradient's square sum
        for (const UnitLayout& layout : unit_layouts(specs, shards)) {
          expected += 2 * (shards - 1) * layout.slice_elements * 4;  // gradients to their owners, weights from them
          const int64_t part = even_slice(layout.slice_elements, replicas.rank(), replicas.size()).count();
          expected += 4 * (layout.slice_elements - part + (replicas.size() - 1) * part);
        }
        EXPECT_EQ(sent() - before, expected) << mesh.describe() << ", zero " << zero_stage_name(stage);
      });
    }
  }
}

TEST(ShardedStep, TakesTheMemoryThatIsPlanned) {
  const ModelDescription model = odd_model();
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 1}, MeshSizes{1, 1, 3}, MeshSizes{2, 2, 1}}) {
    for (const ZeroStage stage : {ZeroStage::replicated, ZeroStage::optimizer_state}) {
      const ParameterBytes bytes = parameter_bytes(parameter_specs(model), DType::float32, shard_count(mesh, stage));
      run_ranks(model, mesh, stage, [&](TrainingRank& rank, const StepBatch&) {
        const MemoryUsage& usage = rank.backend().arena(Tier::device).usage();
        EXPECT_EQ(usage.current_by_class[static_cast<size_t>(MemoryClass::optimizer)], adamw_bytes(bytes));
        EXPECT_EQ(usage.current, bytes.weights + bytes.gradients + adamw_bytes(bytes));
      });
    }
  }
}

TEST(ShardedStep, OutOfMemoryNamesTheStageThatTakesLess) {
  MemoryUsage usage;
  usage.current_by_class[static_cast<size_t>(MemoryClass::optimizer)] = 1000;
  TrainingRankOptions options;
  options.mesh = MeshSizes{1, 1, 2};
  options.zero = ZeroStage::replicated;
  EXPECT_EQ(memory_advice(options, usage).rfind("parallel.zero: 1", 0), 0u) << memory_advice(options, usage);
  options.zero = ZeroStage::optimizer_state;
  EXPECT_EQ(memory_advice(options, usage).find("parallel.zero"), std::string::npos);
  options.backend.kind = BackendKind::cuda;  // where more ranks are more memory
  EXPECT_EQ(memory_advice(options, usage).rfind("parallel.sp_size or parallel.dp_shard_size", 0), 0u);
  options.mesh = MeshSizes{2, 1, 1};  // nobody to share with
  options.zero = ZeroStage::replicated;
  EXPECT_EQ(memory_advice(options, usage).find("parallel.zero"), std::string::npos);
}

// The parts of a TrainingRank over a backend whose compute stream is as asynchronous as a GPU's.
struct WatchedRun {
  std::vector<std::vector<float>> weights;
  std::string log;  // of rank 0's last step
};

WatchedRun run_watched(const MeshSizes& mesh_sizes, const WatchedBackendOptions& options) {
  const ModelDescription model = odd_model(true);
  const ListedDataset dataset(odd_sequences(model));
  StepLoaderOptions loader_options;
  loader_options.micro_batch_size = 4;
  loader_options.dp_size = mesh_sizes.dp();
  const StepLoader loader(dataset, loader_options);
  WatchedRun run;
  run_thread_ranks(mesh_sizes.ranks(), {120.0}, [&](ThreadRank& thread) {
    CpuBackendOptions backend_options;
    backend_options.memory_limit_bytes = int64_t{1} << 26;
    backend_options.host_memory_limit_bytes = int64_t{1} << 20;
    WatchedBackendOptions own = options;
    own.seed = options.seed * 100 + static_cast<uint64_t>(thread.rank());
    WatchedBackend backend(make_cpu_backend(backend_options), own);
    Mesh mesh(thread.connect(backend), mesh_sizes);
    const auto schedule = make_schedule(ScheduleKind::ring, Layout::zigzag, attention_heads(model), backend, mesh);
    ShardedParameters parameters(parameter_specs(model), backend, mesh, ZeroStage::optimizer_state);
    AdamWOptimizer optimizer({}, parameters, backend);
    ModelOptions model_options;
    model_options.recompute = RecomputePolicy::none;
    Transformer transformer(model, model_options, backend, *schedule, parameters);
    TrainingStep step(transformer, parameters, optimizer, *schedule, backend, mesh);
    initialize_weights(model, 7, parameters);
    const MeshCoordinates& at = mesh.coordinates();
    const StepBatch batch =
        loader.load(0, {mesh.dp_rank(), at.ring, mesh_sizes.ring, at.ulysses, mesh_sizes.ulysses, Layout::zigzag});
    for (int each = 0; each < 3; ++each) {
      backend.clear_log();
      static_cast<void>(step.run(batch, 1e-2));
    }
    if (thread.rank() == 0) run.log = backend.log();
    for (size_t spec = 0; spec < parameters.specs().size(); ++spec) {
      std::vector<float> values(static_cast<size_t>(parameters.specs()[spec].extents.product()));
      parameters.get_weights(static_cast<int64_t>(spec), values);
      if (thread.rank() == 0) run.weights.push_back(std::move(values));
    }
  });
  return run;
}

TEST(ShardedStep, PausesOfEitherStreamChangeNothing) {
  for (const MeshSizes& mesh : {MeshSizes{1, 1, 2}, MeshSizes{2, 1, 2}, MeshSizes{1, 3, 1}}) {
    const WatchedRun plain = run_watched(mesh, {});
    EXPECT_EQ(run_watched(mesh, {1, 200, 0}).weights, plain.weights) << "slow compute, " << mesh.describe();
    EXPECT_EQ(run_watched(mesh, {2, 0, 300}).weights, plain.weights) << "slow communication, " << mesh.describe();
    EXPECT_EQ(run_watched(mesh, {3, 100, 100}).weights, plain.weights) << mesh.describe();
  }
}

// Data-parallel ranks exchange nothing but units. In the order in which they are enqueued: two layers forward; the
// head's gradients, on their way before the backward of layer 1 is, and so on; then the weights of all four units.
TEST(ShardedStep, ExchangesComeBeforeTheWorkThatHidesThem) {
  EXPECT_EQ(run_watched(MeshSizes{1, 2, 1}, {}).log,
            "AA"
            "C"
            "AC"
            "AC"
            "C"
            "CCCC");
}

}  // namespace
}  // namespace ithaca::testing
