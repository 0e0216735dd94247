// Hand-written gradients against finite differences, for the model options that the reference cases do not have: all
// biases, windows, tied heads with untied shapes, every kind of RoPE.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "train/initialize.h"
#include "train/parity_harness.h"

namespace ithaca::testing {
namespace {

ModelDescription small_model() {
  ModelDescription model;
  model.vocabulary = 37;
  model.hidden_size = 24;
  model.intermediate_size = 20;
  model.query_heads = 6;
  model.key_heads = 3;
  model.head_size = 10;
  model.max_positions = 64;
  model.initializer_range = 0.2;
  model.layers.resize(2);
  return model;
}

Sequence random_sequence(int64_t tokens, int64_t vocabulary, const std::vector<int64_t>& documents) {
  const RandomStream random(3, "gradient test");
  Sequence sequence;
  sequence.document_lengths = documents;
  for (const int64_t length : documents) {
    for (int64_t position = 0; position < length; ++position) sequence.position_ids.push_back(position);
  }
  for (int64_t token = 0; token < tokens; ++token) {
    sequence.token_ids.push_back(
        static_cast<int64_t>(random.bits(static_cast<uint64_t>(token)) % static_cast<uint64_t>(vocabulary)));
    const bool none = token % 5 == 2;
    sequence.shifted_labels.push_back(none ? kNoLabel
                                           : static_cast<int64_t>(random.bits(static_cast<uint64_t>(1000 + token)) %
                                                                  static_cast<uint64_t>(vocabulary)));
    sequence.label_weights.push_back(0.5f + static_cast<float>(random.uniform(static_cast<uint64_t>(2000 + token))));
  }
  return sequence;
}

// For each parameter tensor: the directional derivative along its gradient, by central differences, must be the
// gradient's norm.
void check_gradients(const ModelDescription& model) {
  const Sequence sequence = random_sequence(29, model.vocabulary, {17, 12});
  run_thread_ranks(1, {}, [&](ThreadRank& thread) {
    TrainingRankOptions options;
    options.memory_limit_bytes = int64_t{1} << 28;
    options.model.mlp_tile = 8;
    options.model.loss_tile = 11;
    TrainingRank rank(thread, model, options);
    initialize_weights(model, 5, rank.parameters());
    ShardedParameters& parameters = rank.parameters();
    const auto specs = static_cast<int64_t>(parameters.specs().size());
    // Biases and norms get values of their own, so that no gradient hides behind a zero or a one.
    for (int64_t spec = 0; spec < specs; ++spec) {
      std::vector<float> values(static_cast<size_t>(parameters.specs()[static_cast<size_t>(spec)].extents.product()));
      parameters.get_weights(spec, values);
      const RandomStream random(11, parameters.specs()[static_cast<size_t>(spec)].name);
      if (parameters.specs()[static_cast<size_t>(spec)].initialization != Initialization::normal) {
        for (size_t i = 0; i < values.size(); ++i) values[i] += static_cast<float>(0.2 * random.normal(i));
        parameters.set_weights(spec, values);
      }
    }

    StepBatch batch;
    batch.micro_batches.push_back(cut_micro_batch({sequence}, rank.batch_position()));
    for (size_t token = 0; token < sequence.token_ids.size(); ++token) {
      if (sequence.shifted_labels[token] >= 0) batch.label_weight_sum += sequence.label_weights[token];
    }
    const auto loss = [&] { return rank.step().evaluate(batch.micro_batches, batch.label_weight_sum).value(); };

    rank.step().accumulate_gradients(batch);
    for (int64_t spec = 0; spec < specs; ++spec) {
      const std::string& name = parameters.specs()[static_cast<size_t>(spec)].name;
      std::vector<float> weights(static_cast<size_t>(parameters.specs()[static_cast<size_t>(spec)].extents.product()));
      std::vector<float> gradient(weights.size());
      parameters.get_weights(spec, weights);
      parameters.get_gradients(spec, gradient);
      double square_norm = 0.0;
      for (const float value : gradient) square_norm += static_cast<double>(value) * static_cast<double>(value);
      const double norm = std::sqrt(square_norm);
      if (name.find("k_proj.bias") != std::string::npos && model.rope.kind == RopeKind::standard && norm < 1e-6)
        continue;
      ASSERT_GT(norm, 1e-6) << name << " has no gradient: the test would show nothing";

      const double step = 2e-3;
      const auto loss_at = [&](double distance) {
        std::vector<float> moved = weights;
        for (size_t i = 0; i < moved.size(); ++i) {
          moved[i] =
              static_cast<float>(static_cast<double>(weights[i]) + distance * static_cast<double>(gradient[i]) / norm);
        }
        parameters.set_weights(spec, moved);
        return loss();
      };
      // Richardson's combination of two central differences: the error falls with the fourth power of the step.
      const double wide = (loss_at(2 * step) - loss_at(-2 * step)) / (4 * step);
      const double narrow = (loss_at(step) - loss_at(-step)) / (2 * step);
      parameters.set_weights(spec, weights);
      const double derivative = (4.0 * narrow - wide) / 3.0;
      EXPECT_NEAR(derivative / norm, 1.0, 2e-2 * std::max(1.0, 2e-3 / norm)) << name << ", gradient norm " << norm;
    }
  });
}

TEST(Gradients, EveryBias) {
  ModelDescription model = small_model();
  model.query_key_value_bias = true;
  model.output_bias = true;
  model.mlp_bias = true;
  check_gradients(model);
}

TEST(Gradients, HeadNormsBiasesAndMixedWindows) {
  ModelDescription model = small_model();
  model.family = Family::qwen3;
  model.query_key_norm = true;
  model.query_key_value_bias = true;
  model.layers[1].window = 5;
  check_gradients(model);
}

TEST(Gradients, TiedHeadSmallerThanItsModel) {
  ModelDescription model = small_model();
  model.tied_head = true;
  model.vocabulary = 5;
  check_gradients(model);
}

TEST(Gradients, EveryKindOfRope) {
  for (const RopeKind kind : {RopeKind::linear, RopeKind::dynamic, RopeKind::llama3, RopeKind::yarn}) {
    SCOPED_TRACE(rope_name(kind));
    ModelDescription model = small_model();
    model.layers.resize(1);
    model.rope.kind = kind;
    model.rope.factor = 4.0;
    model.rope.original_max_positions = 8;
    model.max_positions = 8;
    check_gradients(model);
  }
}

}  // namespace
}  // namespace ithaca::testing
