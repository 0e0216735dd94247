#include "train/plan_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "attention/auto_schedule.h"
#include "backend/cpu/address_space.h"
#include "base/choice.h"
#include "base/evenly_spaced.h"
#include "base/integer.h"
#include "base/text.h"
#include "model/parameters.h"
#include "train/context_curriculum.h"
#include "train/recipe_data.h"

namespace ithaca {

namespace {

// Errors about a file say which option named it.
std::unique_ptr<Dataset> open_naming(const std::string& option, const Recipe& recipe,
                                     const std::vector<std::string>& files, const ModelDescription& model,
                                     const DataWatch& watch) {
  const auto named = [&](const char* text) {
    return std::string_view(text).starts_with("data.") ? std::string(text) : option + ": " + text;
  };
  try {
    return with_places(recipe.given,
                       [&] { return open_data(data_options(recipe, files, model, option == "data.eval"), watch); });
  } catch (const InputError& error) {
    throw InputError(named(error.what()));
  } catch (const FileError& error) {
    throw FileError(named(error.what()));
  }
}

}  // namespace

std::unique_ptr<Dataset> open_training_data(const Recipe& recipe, const ModelDescription& model,
                                            const DataWatch& watch) {
  return open_naming("data.train", recipe, recipe.data.train, model, watch);
}

std::unique_ptr<Dataset> open_evaluation_data(const Recipe& recipe, const ModelDescription& model,
                                              const DataWatch& watch) {
  if (recipe.data.eval.empty()) return nullptr;
  return open_naming("data.eval", recipe, recipe.data.eval, model, watch);
}

void require_weights(const ModelDirectory& directory) {
  if (!directory.has_weights()) throw InputError(directory.missing_weights_reason());
  directory.check(parameter_specs(directory.description()));
}

ModelOptions decide_model_options(const Recipe& recipe) {
  ModelOptions options;
  options.recompute =
      parse_choice("memory.recompute", recipe.memory.recompute,
                   {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full}, recompute_policy_name);
  options.mlp_tile = recipe.memory.mlp_tile;
  options.loss_tile = recipe.memory.loss_tile;
  return options;
}

namespace {

// What the recipe and the model say about it; what the data says is added by who knows it.
AutoScheduleRequest schedule_request(const Recipe& recipe, const ModelDescription& model, DType compute_dtype) {
  AutoScheduleRequest request;
  request.cp_size = static_cast<int>(recipe.parallel.sp_size);
  if (recipe.parallel.ulysses_size > 0) request.ulysses_size = static_cast<int>(recipe.parallel.ulysses_size);
  if (recipe.parallel.ring_size > 0) request.ring_size = static_cast<int>(recipe.parallel.ring_size);
  request.kind = parse_choice_or_auto(
      "parallel.schedule", recipe.parallel.schedule,
      {ScheduleKind::ulysses, ScheduleKind::ring, ScheduleKind::all_gather, ScheduleKind::hybrid}, schedule_name);
  request.layout = parse_choice_or_auto("parallel.layout", recipe.parallel.layout,
                                        {Layout::contiguous, Layout::zigzag, Layout::striped}, layout_name);
  request.heads = attention_heads(model);
  request.element_bytes = element_size(compute_dtype);
  request.mask = widest_mask(model);
  return request;
}

// Options that a schedule which does not fit may come from, where the one that it names was not given.
const std::vector<std::string>& schedule_options() {
  static const std::vector<std::string> options = {"parallel.schedule", "parallel.ulysses_size", "parallel.ring_size",
                                                   "parallel.sp_size"};
  return options;
}

MeshSizes mesh_of(const Recipe& recipe, const ScheduleSizes& sizes) {
  MeshSizes mesh;
  mesh.ring = sizes.ring_size;
  mesh.ulysses = sizes.ulysses_size;
  mesh.dp_replicate = static_cast<int>(recipe.parallel.dp_replicate_size);
  mesh.dp_shard = static_cast<int>(recipe.parallel.dp_shard_size);
  return mesh;
}

ZeroStage zero_of(const Recipe& recipe) {
  return recipe.parallel.zero == 0 ? ZeroStage::replicated : ZeroStage::optimizer_state;
}

// The part of a plan that says what the state of the model takes.
void describe_state(const ModelDescription& model, const BackendChoice& backend, const MeshSizes& mesh, ZeroStage zero,
                    RunPlan& plan) {
  plan.backend = backend;
  plan.mesh = mesh;
  plan.zero = zero;
  plan.state_shards = shard_count(mesh, zero);
  const ParameterBytes bytes = parameter_bytes(parameter_specs(model), backend.compute_dtype, plan.state_shards);
  plan.state_bytes_per_rank[static_cast<size_t>(MemoryClass::weights)] = bytes.weights;
  plan.state_bytes_per_rank[static_cast<size_t>(MemoryClass::gradients)] = bytes.gradients;
  plan.state_bytes_per_rank[static_cast<size_t>(MemoryClass::optimizer)] = adamw_bytes(bytes);
}

// Some micro batches of the stage with the longest sequences, evenly from its beginning to its end.
std::vector<Documents> typical_sequences(const Dataset& dataset, int64_t micro_batch_size) {
  constexpr int64_t kSequences = 8;
  constexpr int64_t kDocuments = 100'000;  // more are not needed, and would take seconds
  const std::vector<DatasetStage> stages = dataset.stages();
  const DatasetStage stage = *std::max_element(
      stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.max_length < b.max_length; });
  std::vector<Documents> sequences;
  int64_t documents = 0;
  for (const int64_t batch : evenly_spaced(ceiling_divide(stage.size(), micro_batch_size), kSequences)) {
    if (documents >= kDocuments) break;
    const int64_t begin = stage.begin + batch * micro_batch_size;
    std::vector<int64_t> lengths;
    for (int64_t each = begin; each < std::min(stage.end, begin + micro_batch_size); ++each) {
      const SequenceShape shape = dataset.shape(each);
      lengths.insert(lengths.end(), shape.document_lengths.begin(), shape.document_lengths.end());
    }
    documents += static_cast<int64_t>(lengths.size());
    sequences.emplace_back(lengths);
  }
  return sequences;
}

RunDecisions decide(const Recipe& recipe, const ModelDescription& model, const Dataset& dataset) {
  RunDecisions decisions;
  const BackendChoice backend =
      choose_backend(recipe.train.backend, recipe.model.compute_dtype, recipe.train.deterministic);
  decisions.rank.backend = backend;

  AutoScheduleRequest request = schedule_request(recipe, model, backend.compute_dtype);
  if (request.cp_size > 1) request.sequences = typical_sequences(dataset, recipe.train.micro_batch_size);
  request.preferred_attention_rows = preferred_attention_rows(backend.kind);
  const AutoScheduleChoice choice = with_places(
      recipe.given, [&] { return choose_schedule(request); }, schedule_options());
  const bool chosen_freely = recipe.parallel.schedule == "auto" && recipe.parallel.sp_size > 1;
  if (chosen_freely) decisions.schedule_reason = choice.reason;

  TrainingRankOptions& rank = decisions.rank;
  rank.mesh = mesh_of(recipe, choice.sizes);
  settle_transport(rank.backend, "parallel.transport", recipe.parallel.transport, rank.mesh.ranks());
  rank.zero = zero_of(recipe);
  rank.schedule = choice.sizes.kind;
  rank.layout = choice.layout;
  rank.model = decide_model_options(recipe);
  rank.optimizer.beta1 = recipe.optim.adam_beta1;
  rank.optimizer.beta2 = recipe.optim.adam_beta2;
  rank.optimizer.epsilon = recipe.optim.adam_epsilon;
  rank.optimizer.weight_decay = recipe.optim.weight_decay;
  rank.optimizer.decay_all = recipe.optim.weight_decay_on == "all";
  rank.optimizer.max_grad_norm = recipe.optim.max_grad_norm;
  rank.memory_limit_bytes =
      recipe.memory.limit_gib > 0.0 ? static_cast<int64_t>(std::ldexp(recipe.memory.limit_gib, 30)) : 0;

  decisions.loader.micro_batch_size = recipe.train.micro_batch_size;
  decisions.loader.accumulation = recipe.train.gradient_accumulation_steps;
  decisions.loader.dp_size = rank.mesh.dp();
  decisions.loader.seed = recipe.train.seed;
  decisions.loader.shuffle = recipe.data.shuffle;
  decisions.loader.rope = parse_rope_stages(recipe.model.rope_theta, recipe.model.rope_scaling, model);

  const StepLoader loader(dataset, decisions.loader);
  decisions.steps = recipe.train.max_steps > 0
                        ? recipe.train.max_steps
                        : static_cast<int64_t>(
                              std::ceil(recipe.train.num_train_epochs * static_cast<double>(loader.steps_per_epoch())));
  if (decisions.steps < 1) {
    throw ConfigurationError(
        "train.num_train_epochs: the run would have no step; give more epochs, or train.max_steps");
  }

  decisions.rate.shape = parse_rate_shape(recipe.optim.lr_scheduler_type);
  decisions.rate.peak = recipe.optim.learning_rate;
  decisions.rate.min_ratio = recipe.optim.min_lr_ratio;
  decisions.rate.warmup_steps = recipe.optim.warmup_steps;
  decisions.rate.total_steps = decisions.steps;
  decisions.rate.decay_ratio = recipe.optim.decay_ratio;
  return decisions;
}

}  // namespace

RunDecisions decide_run(const Recipe& recipe, const ModelDescription& model, const Dataset& dataset) {
  return with_places(recipe.given, [&] { return decide(recipe, model, dataset); });
}

ThreadRankOptions thread_rank_options(const Recipe& recipe, const TrainingRankOptions& rank) {
  ThreadRankOptions options;
  options.timeout_seconds = recipe.parallel.comm_timeout_seconds;
  options.timeout_name = "parallel.comm_timeout_seconds";
  options.transport = rank.backend.transport;
  return options;
}

void check_run(const Recipe& recipe, OptionMistakes& mistakes) {
  const auto are_clear = [&](const std::vector<std::string>& names) {
    return std::none_of(names.begin(), names.end(), [&](const std::string& name) { return mistakes.concern(name); });
  };
  // `names`: what `check` is about; nothing is said where a mistake is about one of them already.
  const auto collect = [&](const std::vector<std::string>& names, const auto& check) {
    return are_clear(names) && mistakes.collect([&] { with_places(recipe.given, check, names); }, names);
  };
  std::optional<BackendChoice> backend;
  collect({"train.backend"}, [&] { backend = choose_backend(recipe.train.backend, "auto", false); });
  collect({"model.compute_dtype", "train.backend"}, [&] {
    backend = choose_backend(recipe.train.backend, recipe.model.compute_dtype, recipe.train.deterministic);
  });
  const std::vector<std::string> mesh_options = {"parallel.sp_size", "parallel.ulysses_size", "parallel.ring_size",
                                                 "parallel.dp_replicate_size", "parallel.dp_shard_size"};
  if (backend && are_clear(mesh_options)) {
    const ParallelSection& p = recipe.parallel;
    collect({"parallel.transport"}, [&] {
      settle_transport(*backend, "parallel.transport", p.transport,
                       static_cast<int>(p.sp_size * p.dp_replicate_size * p.dp_shard_size));
    });
  }
  // What the model says does not matter to how bases are written.
  collect({"model.rope_theta"}, [&] { parse_rope_stages(recipe.model.rope_theta, {}, {}); });

  std::optional<ModelDirectory> directory;
  try {
    if (!mistakes.concern("model.path")) directory.emplace(recipe.model.path);
  } catch (const InputError&) {
  } catch (const FileError&) {
  }
  if (!directory) return;
  const ModelDescription& model = directory->description();
  collect({"model.rope_scaling"}, [&] { parse_rope_stages({}, recipe.model.rope_scaling, model); });
  collect({"data.tokenizer", "data.format", "model.init"},
          [&] { static_cast<void>(data_options(recipe, recipe.data.train, model, false)); });
  std::optional<AutoScheduleChoice> choice;
  collect(schedule_options(), [&] { choice = choose_schedule(schedule_request(recipe, model, DType::float32)); });
  if (!backend || !choice || recipe.memory.limit_gib <= 0.0 || !are_clear({"parallel.zero", "model.compute_dtype"})) {
    return;
  }
  collect({"memory.limit_gib"}, [&] {
    RunPlan plan;
    describe_state(model, *backend, mesh_of(recipe, choice->sizes), zero_of(recipe), plan);
    require_room_for_state(recipe, plan);
  });
}

void require_room_for_state(const Recipe& recipe, const RunPlan& plan) {
  const int64_t state = std::accumulate(plan.state_bytes_per_rank.begin(), plan.state_bytes_per_rank.end(), int64_t{0});
  const auto of = [&](MemoryClass memory_class) {
    return format_bytes(plan.state_bytes_per_rank[static_cast<size_t>(memory_class)]);
  };
  const std::string needed =
      fmt::format("{} per rank ({} of weights, {} of gradients, {} of optimizer state)", format_bytes(state),
                  of(MemoryClass::weights), of(MemoryClass::gradients), of(MemoryClass::optimizer));
  // What would take less: ranks that could share the optimizer state, but do not.
  const bool can_share = plan.zero == ZeroStage::replicated && shard_count(plan.mesh, ZeroStage::optimizer_state) > 1;
  const std::string advice = can_share ? ". parallel.zero: 1 leaves each rank a part of the optimizer state" : "";
  if (recipe.memory.limit_gib > 0.0) {
    if (static_cast<double>(state) <= std::ldexp(recipe.memory.limit_gib, 30)) return;
    throw ConfigurationError(recipe.given.located(
        fmt::format("memory.limit_gib {} is not enough for the state of this model, which takes {} before the first "
                    "token; memory.limit_gib {:.4g} or more is needed, and activations come on top{}",
                    recipe.memory.limit_gib, needed, std::ldexp(static_cast<double>(state), -30) * 1.05, advice)));
  }
  if (plan.backend.kind != BackendKind::cpu) return;
  const int64_t machine = cpu::physical_memory_bytes();
  if (state <= machine / plan.mesh.ranks()) return;
  throw OutOfMemoryError(fmt::format(
      "the state of this model takes {}, so {} ranks need {}, but this machine has {}; nothing was allocated. Fewer "
      "ranks, a smaller model or a larger machine would do{}",
      needed, plan.mesh.ranks(), format_bytes(state * plan.mesh.ranks()), format_bytes(machine), advice));
}

namespace {

// Says how positions are turned, and where sequences reach positions that the model has never seen.
void add_rope_notes(const RunDecisions& decisions, const Dataset& train, const ModelDescription& model, RunPlan& plan) {
  for (const RopeStage& stage : decisions.loader.rope) {
    const RopeDescription rope = stage.rope.value_or(model.rope);
    const std::string when =
        stage.first_step == 0 ? "" : fmt::format(" after {} steps", format_count(stage.first_step));
    std::string text =
        fmt::format("RoPE{}: theta {:g}, {}", when, rope.theta,
                    rope.kind == RopeKind::standard ? std::string("not scaled")
                                                    : fmt::format("{} by {:g}", rope_name(rope.kind), rope.factor));
    if (rope.original_max_positions > 0) text += fmt::format(" from {}", format_count(rope.original_max_positions));
    plan.notes.push_back(std::move(text));
  }
  for (const DatasetStage& stage : train.stages()) {
    const bool own = !rope_at(decisions.loader.rope, stage.first_step).has_value();
    const int64_t longest = std::min(stage.max_length, plan.longest_sequence);
    if (!own || longest <= model.max_positions || model.rope.kind != RopeKind::standard) continue;
    plan.notes.push_back(
        fmt::format("sequences of {} tokens are longer than the model's max_position_embeddings of {}; its RoPE is not "
                    "scaled, so it "
                    "has never seen such positions (model.rope_scaling, for example yarn:{}, would extend them)",
                    format_count(longest), format_count(model.max_positions), (longest - 1) / model.max_positions + 1));
    return;
  }
}

}  // namespace

RunPlan describe_run(const Recipe& recipe, const ModelDescription& model, const RunDecisions& decisions,
                     const Dataset& train, const Dataset* eval) {
  RunPlan plan;
  plan.model = model;
  plan.parameters = model.parameter_count();
  plan.schedule = decisions.rank.schedule;
  plan.layout = decisions.rank.layout;
  plan.schedule_reason = decisions.schedule_reason;
  plan.train_sequences = train.summary().sequences;
  plan.train_tokens = train.summary().tokens;
  plan.longest_sequence = train.summary().longest_sequence;
  plan.eval_sequences = eval != nullptr ? eval->summary().sequences : 0;
  plan.train_data = train.summary();
  plan.stages = train.stages();
  plan.tokens_are_bytes = plan.train_data.tokens_are_bytes;
  plan.steps = decisions.steps;
  const StepLoader loader(train, decisions.loader);
  plan.sequences_per_step = loader.most_sequences_in_a_step();
  describe_state(model, decisions.rank.backend, decisions.rank.mesh, decisions.rank.zero, plan);
  plan.output_dir = recipe.train.output_dir;
  plan.notes = plan.train_data.notes;
  add_rope_notes(decisions, train, model, plan);
  if (plan.sequences_per_step < loader.sequences_per_step()) {
    plan.notes.push_back(fmt::format("a step would take {} sequences, but there are {}: every step is a whole epoch",
                                     format_count(loader.sequences_per_step()), format_count(plan.sequences_per_step)));
  }
  if (recipe.parallel.schedule != "auto" && recipe.parallel.sp_size == 1) {
    plan.notes.push_back(
        fmt::format("parallel.schedule {} has no effect here: schedules split sequences over ranks, and each is on one",
                    recipe.parallel.schedule));
  }
  if (recipe.parallel.layout != "auto" && recipe.parallel.layout != "contiguous" && plan.mesh.ring == 1) {
    plan.notes.push_back(
        fmt::format("parallel.layout {} has no effect here: layouts deal tokens to ring ranks, and the mesh has one",
                    recipe.parallel.layout));
  }
  if (decisions.rate.warmup_steps >= plan.steps) {
    plan.notes.push_back(
        fmt::format("optim.warmup_steps {} is not below the run's {} steps: the full learning rate is never reached",
                    decisions.rate.warmup_steps, plan.steps));
  }
  return plan;
}

}  // namespace ithaca
