#include "train/parity_harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "train/device_batch.h"
#include "train/initialize.h"

namespace ithaca::testing {

namespace {

// ITHACA_TEST_DATA in the environment: where a program that was carried to another machine finds the cases.
std::string case_folder(const std::string& name) {
  const char* const carried = std::getenv("ITHACA_TEST_DATA");
  return std::string(carried != nullptr ? carried : ITHACA_TEST_DATA) + "/models/" + name;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

Sequence slice_sequence(const Sequence& whole, int64_t begin, int64_t end) {
  const auto part = [&](const std::vector<int64_t>& values) {
    return std::vector<int64_t>(values.begin() + begin, values.begin() + end);
  };
  Sequence result;
  result.token_ids = part(whole.token_ids);
  result.position_ids = part(whole.position_ids);
  result.shifted_labels = part(whole.shifted_labels);
  result.document_lengths = {end - begin};
  return result;
}

std::vector<float> host_values(Backend& backend, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.element_count()));
  Stream& stream = backend.compute_stream();
  Buffer converted;
  if (tensor.dtype != DType::float32) {
    converted = backend.arena(Tier::device)
                    .allocate("values in float32", MemoryClass::workspace, DType::float32, tensor.extents, stream);
    backend.copy(stream, {tensor, converted.tensor()});
  }
  backend.copy_to_host(stream, converted.is_empty() ? tensor : converted.tensor(),
                       std::as_writable_bytes(std::span(values)));
  backend.finish(backend.record(backend.compute_stream()));
  return values;
}

TrainingRankOptions rank_options(const RunSettings& settings, const AdamWOptions& adamw) {
  TrainingRankOptions options;
  options.backend = settings.backend;
  options.mesh = settings.mesh;
  options.schedule = settings.schedule;
  options.layout = settings.layout;
  options.zero = settings.zero;
  options.model = settings.model;
  options.optimizer = adamw;
  options.memory_limit_bytes = int64_t{1} << 30;
  return options;
}

void give_weights(const ModelDescription& model, const ModelDirectory* weights, TrainingRank& rank) {
  if (weights != nullptr) {
    load_weights(*weights, rank.parameters());
  } else {
    initialize_weights(model, 7, rank.parameters());
  }
}

// All parameters as `get` reads them, which is collective.
NamedValues whole_values(ShardedParameters& parameters, void (ShardedParameters::*get)(int64_t, std::span<float>)) {
  NamedValues all;
  for (size_t spec = 0; spec < parameters.specs().size(); ++spec) {
    std::vector<float>& values = all[parameters.specs()[spec].name];
    values.resize(static_cast<size_t>(parameters.specs()[spec].extents.product()));
    (parameters.*get)(static_cast<int64_t>(spec), values);
  }
  return all;
}

// All parameters as the model reads them.
NamedValues acquired_values(TrainingRank& rank) {
  ShardedParameters& parameters = rank.parameters();
  NamedValues all;
  size_t spec = 0;
  for (UnitId unit = 0; unit < parameters.unit_count(); ++unit) {
    for (const Tensor& tensor : parameters.acquire(unit, rank.backend().compute_stream()).tensors) {
      all[parameters.specs()[spec++].name] = host_values(rank.backend(), tensor);
    }
    parameters.release(unit, rank.backend().compute_stream());
  }
  return all;
}

// Collects one rank's named tensors; later ranks must bring the same bits.
void collect(NamedValues& all, const NamedValues& own) {
  for (const auto& [name, values] : own) {
    const auto [entry, is_first] = all.emplace(name, values);
    if (!is_first && entry->second != values) throw ContractError("ranks disagree about " + name);
  }
}

}  // namespace

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (size_t index = 0; index < a.size(); ++index) {
    const double delta = static_cast<double>(a[index]) - static_cast<double>(b[index]);
    difference += delta * delta;
    norm += static_cast<double>(b[index]) * static_cast<double>(b[index]);
  }
  if (norm == 0.0) return difference == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference / norm);
}

ReferenceCase::ReferenceCase(const std::string& name)
    : directory(case_folder(name)), expected(case_folder(name) + "/expected.safetensors") {
  const nlohmann::json json = read_json(case_folder(name) + "/case.json");
  plain.token_ids = json.at("input_ids").get<std::vector<int64_t>>();
  plain.position_ids = json.at("position_ids").get<std::vector<int64_t>>();
  plain.shifted_labels = json.at("shift_labels").get<std::vector<int64_t>>();
  plain.document_lengths = {static_cast<int64_t>(plain.token_ids.size())};
  loss = json.at("loss");
  grad_norm = json.at("grad_norm");

  const nlohmann::json& documents = json.at("packed");
  packed.token_ids = plain.token_ids;
  packed.position_ids = documents.at("position_ids").get<std::vector<int64_t>>();
  packed.shifted_labels = documents.at("shift_labels").get<std::vector<int64_t>>();
  packed.document_lengths = documents.at("doc_lengths").get<std::vector<int64_t>>();
  packed_loss = documents.at("loss");
  packed_grad_norm = documents.at("grad_norm");
  int64_t begin = 0;
  for (const int64_t length : packed.document_lengths) {
    separate.push_back(slice_sequence(packed, begin, begin + length));
    begin += length;
  }

  const nlohmann::json& steps = json.at("adamw");
  learning_rate = steps.at("lr");
  adamw.beta1 = steps.at("betas").at(0);
  adamw.beta2 = steps.at("betas").at(1);
  adamw.epsilon = steps.at("eps");
  adamw.weight_decay = steps.at("weight_decay");
  adamw.decay_all = true;
  adamw.max_grad_norm = steps.at("max_grad_norm");
  step_losses = steps.at("losses").get<std::vector<double>>();
  step_grad_norms = steps.at("grad_norms").get<std::vector<double>>();
  loss_after_steps = steps.at("loss_after");
}

std::string RunSettings::describe() const {
  return fmt::format("{}, {} {}, zero {}, recompute {}, mlp tile {}, loss tile {}, micro-batch {}, accumulation {}",
                     mesh.describe(), schedule_name(schedule), layout_name(layout), zero_stage_name(zero),
                     recompute_policy_name(model.recompute), model.mlp_tile, model.loss_tile, micro_batch_size,
                     accumulation);
}

RunOutcome run_case(const ModelDescription& model, const ModelDirectory* weights,
                    const std::vector<Sequence>& sequences, const RunSettings& settings, const AdamWOptions& adamw,
                    double learning_rate, int optimizer_steps) {
  const ListedDataset dataset(sequences);
  StepLoaderOptions loader_options;
  loader_options.micro_batch_size = settings.micro_batch_size;
  loader_options.accumulation = settings.accumulation;
  loader_options.dp_size = settings.mesh.dp();
  loader_options.shuffle = false;
  const StepLoader loader(dataset, loader_options);
  require(loader.steps_per_epoch() == 1, "the settings must take all sequences in one step");

  RunOutcome outcome;
  std::mutex mutex;
  run_thread_ranks(settings.mesh.ranks(), {120.0, settings.backend.transport}, [&](ThreadRank& thread) {
    TrainingRank rank(thread, model, rank_options(settings, adamw));
    give_weights(model, weights, rank);
    const StepBatch batch = loader.load(0, rank.batch_position());
    const std::optional<double> evaluation = rank.step().evaluate(batch.micro_batches, batch.label_weight_sum);

    // Gradients and norm without an update: a rate of zero and no decay.
    rank.step().accumulate_gradients(batch);
    const NamedValues gradients = whole_values(rank.parameters(), &ShardedParameters::get_gradients);
    std::vector<StepResult> steps;
    double first_loss = 0.0;
    double first_norm = 0.0;
    for (int step = 0; step < std::max(optimizer_steps, 1); ++step) {
      if (step > 0) rank.step().accumulate_gradients(batch);
      steps.push_back(rank.step().update(batch, optimizer_steps > 0 ? learning_rate : 0.0));
      if (step == 0) {
        first_loss = steps[0].loss;
        first_norm = steps[0].grad_norm;
      }
    }
    const std::optional<double> after = rank.step().evaluate(batch.micro_batches, batch.label_weight_sum);

    const NamedValues weights = whole_values(rank.parameters(), &ShardedParameters::get_weights);
    const NamedValues read = acquired_values(rank);

    const std::lock_guard lock(mutex);
    collect(outcome.gradients, gradients);
    collect(outcome.weights, weights);
    collect(outcome.compute_weights, read);
    outcome.loss = first_loss;
    outcome.grad_norm = first_norm;
    outcome.steps = steps;
    outcome.loss_after_steps = after.value_or(0.0);
    outcome.evaluation_loss = evaluation.value_or(0.0);
  });
  return outcome;
}

std::vector<float> run_logits(const ModelDescription& model, const ModelDirectory* weights, const Sequence& sequence,
                              const RunSettings& settings) {
  std::vector<float> logits(sequence.token_ids.size() * static_cast<size_t>(model.vocabulary));
  std::mutex mutex;
  run_thread_ranks(settings.mesh.ranks(), {120.0, settings.backend.transport}, [&](ThreadRank& thread) {
    TrainingRank rank(thread, model, rank_options(settings, {}));
    give_weights(model, weights, rank);
    const MicroBatch micro_batch = cut_micro_batch({sequence}, rank.batch_position());
    const DeviceBatch batch(micro_batch, model, rank.backend(), rank.schedule());
    const Buffer own = rank.transformer().logits(batch.context());
    const std::vector<float> values = host_values(rank.backend(), own.tensor());
    const std::lock_guard lock(mutex);
    for (int64_t local = 0; local < micro_batch.shard.size(); ++local) {
      std::copy_n(values.begin() + local * model.vocabulary, model.vocabulary,
                  logits.begin() + micro_batch.shard.position(local) * model.vocabulary);
    }
  });
  return logits;
}

}  // namespace ithaca::testing
