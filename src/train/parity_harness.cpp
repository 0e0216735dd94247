#include "train/parity_harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
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

// Adds what one rank has to what others have brought.
void merge(RunOutcome& all, RunOutcome own) {
  collect(all.gradients, own.gradients);
  collect(all.weights, own.weights);
  collect(all.compute_weights, own.compute_weights);
  all.loss = own.loss;
  all.grad_norm = own.grad_norm;
  all.steps = std::move(own.steps);
  all.loss_after_steps = own.loss_after_steps;
  all.evaluation_loss = own.evaluation_loss;
}

// Sequences that make up one step. Stays where it is, as the loader refers to the dataset.
class OneStepData {
 public:
  OneStepData(const std::vector<Sequence>& sequences, const RunSettings& settings)
      : dataset_(sequences), loader_(dataset_, loader_options(settings)) {
    require(loader_.steps_per_epoch() == 1, "the settings must take all sequences in one step");
  }
  OneStepData(const OneStepData&) = delete;
  OneStepData& operator=(const OneStepData&) = delete;

  StepBatch batch(const TrainingRank& rank) const { return loader_.load(0, rank.batch_position()); }

 private:
  static StepLoaderOptions loader_options(const RunSettings& settings) {
    StepLoaderOptions options;
    options.micro_batch_size = settings.micro_batch_size;
    options.accumulation = settings.accumulation;
    options.dp_size = settings.mesh.dp();
    options.shuffle = false;
    return options;
  }

  ListedDataset dataset_;
  StepLoader loader_;
};

// Evaluation, gradients and update of one step.
RunOutcome first_step(TrainingRank& rank, TrainingStep& step, const StepBatch& batch, double learning_rate) {
  RunOutcome own;
  own.evaluation_loss = step.evaluate(batch.micro_batches, batch.label_weight_sum).value_or(0.0);
  step.accumulate_gradients(batch);
  own.gradients = whole_values(rank.parameters(), &ShardedParameters::get_gradients);
  own.steps = {step.update(batch, learning_rate)};
  own.loss = own.steps.front().loss;
  own.grad_norm = own.steps.front().grad_norm;
  return own;
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

std::string RunSettings::describe() const {
  return fmt::format("{}, {} {}, zero {}, recompute {}, mlp tile {}, loss tile {}, micro-batch {}, accumulation {}",
                     mesh.describe(), schedule_name(schedule), layout_name(layout), zero_stage_name(zero),
                     recompute_policy_name(model.recompute), model.mlp_tile, model.loss_tile, micro_batch_size,
                     accumulation);
}

RunOutcome run_case(const ModelDescription& model, const ModelDirectory* weights,
                    const std::vector<Sequence>& sequences, const RunSettings& settings, const AdamWOptions& adamw,
                    double learning_rate, int optimizer_steps) {
  const OneStepData data(sequences, settings);
  RunOutcome outcome;
  std::mutex mutex;
  run_thread_ranks(settings.mesh.ranks(), {120.0, settings.backend.transport}, [&](ThreadRank& thread) {
    TrainingRank rank(thread, model, rank_options(settings, adamw));
    give_weights(model, weights, rank);
    const StepBatch batch = data.batch(rank);
    // Without an update: a rate of zero and no decay.
    RunOutcome own = first_step(rank, rank.step(), batch, optimizer_steps > 0 ? learning_rate : 0.0);
    for (int step = 1; step < optimizer_steps; ++step) {
      rank.step().accumulate_gradients(batch);
      own.steps.push_back(rank.step().update(batch, learning_rate));
    }
    own.loss_after_steps = rank.step().evaluate(batch.micro_batches, batch.label_weight_sum).value_or(0.0);
    own.weights = whole_values(rank.parameters(), &ShardedParameters::get_weights);
    own.compute_weights = acquired_values(rank);
    const std::lock_guard lock(mutex);
    merge(outcome, std::move(own));
  });
  return outcome;
}

std::vector<RunOutcome> run_first_steps(const std::vector<FirstStepCase>& cases, const RunSettings& settings,
                                        double learning_rate) {
  std::deque<OneStepData> data;
  for (const FirstStepCase& each : cases) data.emplace_back(each.sequences, settings);
  std::vector<RunOutcome> outcomes(cases.size());
  std::mutex mutex;
  run_thread_ranks(settings.mesh.ranks(), {120.0, settings.backend.transport}, [&](ThreadRank& thread) {
    TrainingRank rank(thread, cases.front().model, rank_options(settings, {}));
    give_weights(cases.front().model, nullptr, rank);
    for (size_t index = 0; index < cases.size(); ++index) {
      Transformer transformer(cases[index].model, settings.model, rank.backend(), rank.schedule(), rank.parameters());
      TrainingStep step(transformer, rank.parameters(), rank.optimizer(), rank.schedule(), rank.backend(), rank.mesh());
      const bool is_last = index + 1 == cases.size();
      RunOutcome own = first_step(rank, step, data[index].batch(rank), is_last ? learning_rate : 0.0);
      if (is_last) {
        own.weights = whole_values(rank.parameters(), &ShardedParameters::get_weights);
        own.compute_weights = acquired_values(rank);
      }
      const std::lock_guard lock(mutex);
      merge(outcomes[index], std::move(own));
    }
  });
  return outcomes;
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
