#include "train/exactness_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/random.h"

namespace ithaca::testing {

namespace {

constexpr int64_t kTokens = 96;

struct MatrixModel {
  std::string name;
  std::unique_ptr<ReferenceCase> reference;  // null: random weights
  ModelDescription description;
};

std::vector<std::string> model_names() {
  return {"llama-plain", "llama3-rope",        "qwen2",      "qwen3",
          "heads 6/3",   "heads 5/1 window 4", "heads 28/4", "heads 40/8 window 31"};
}

MatrixModel make_model(int index) {
  MatrixModel model;
  model.name = model_names().at(static_cast<size_t>(index));
  switch (index) {
    case 4:
      model.description = random_model(6, 3, 0);
      break;
    case 5:
      model.description = random_model(5, 1, 4);
      break;
    case 6:
      model.description = random_model(28, 4, 0);
      break;
    case 7:
      model.description = random_model(40, 8, 31);
      break;
    default:
      model.reference = std::make_unique<ReferenceCase>(model.name);
      model.description = model.reference->directory.description();
  }
  return model;
}

std::vector<std::vector<int64_t>> document_cuts() {
  return {{kTokens}, {40, 31, 25}, {1, 1, 7, 60, 2, 25}};
}

// One rank's results, made once for each model and way of cutting.
struct Expected {
  MatrixModel model;
  std::vector<Sequence> sequences;
  RunOutcome outcome;
};

const Expected& expected_of(int model, int documents) {
  static std::map<std::pair<int, int>, Expected> kept;
  const auto entry = kept.find({model, documents});
  if (entry != kept.end()) return entry->second;
  Expected expected;
  expected.model = make_model(model);
  expected.sequences = {random_sequence(kTokens, expected.model.description.vocabulary,
                                        document_cuts().at(static_cast<size_t>(documents)),
                                        100 + static_cast<uint64_t>(documents))};
  expected.outcome =
      run_case(expected.model.description, expected.model.reference ? &expected.model.reference->directory : nullptr,
               expected.sequences, {}, {}, 0.0, 0);
  return kept.emplace(std::pair(model, documents), std::move(expected)).first->second;
}

}  // namespace

std::vector<MatrixMesh> matrix_meshes() {
  std::vector<MatrixMesh> meshes;
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    meshes.push_back({ScheduleKind::ulysses, Layout::contiguous, 1, ranks});
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
      meshes.push_back({ScheduleKind::ring, layout, ranks, 1});
      meshes.push_back({ScheduleKind::all_gather, layout, ranks, 1});
      for (int ulysses = 2; ulysses < ranks; ++ulysses) {
        if (ranks % ulysses == 0) meshes.push_back({ScheduleKind::hybrid, layout, ranks / ulysses, ulysses});
      }
    }
  }
  return meshes;
}

RunSettings settings_of(const MatrixMesh& mesh, RecomputePolicy policy, int64_t mlp_tile, int64_t loss_tile) {
  RunSettings run;
  run.mesh.ring = mesh.ring;
  run.mesh.ulysses = mesh.ulysses;
  run.schedule = mesh.schedule;
  run.layout = mesh.layout;
  run.model.recompute = policy;
  run.model.mlp_tile = mlp_tile;
  run.model.loss_tile = loss_tile;
  return run;
}

ModelDescription random_model(int64_t query_heads, int64_t key_heads, int64_t window) {
  ModelDescription model;
  model.vocabulary = 61;
  model.hidden_size = 20;
  model.intermediate_size = 28;
  model.query_heads = query_heads;
  model.key_heads = key_heads;
  model.head_size = 6;
  model.max_positions = 4096;
  model.initializer_range = 0.15;
  model.layers.resize(2);
  model.layers[1].window = window;
  return model;
}

Sequence random_sequence(int64_t tokens, int64_t vocabulary, const std::vector<int64_t>& documents, uint64_t seed,
                         bool masked) {
  const RandomStream random(seed, "exactness");
  Sequence sequence;
  sequence.document_lengths = documents;
  for (const int64_t length : documents) {
    for (int64_t position = 0; position < length; ++position) sequence.position_ids.push_back(position);
  }
  for (int64_t token = 0; token < tokens; ++token) {
    const auto index = static_cast<uint64_t>(token);
    sequence.token_ids.push_back(static_cast<int64_t>(random.bits(2 * index) % static_cast<uint64_t>(vocabulary)));
    const auto label = static_cast<int64_t>(random.bits(2 * index + 1) % static_cast<uint64_t>(vocabulary));
    sequence.shifted_labels.push_back(masked && token % 5 == 3 ? kNoLabel : label);
  }
  return sequence;
}

double largest_gradient_difference(const RunOutcome& outcome, const RunOutcome& expected) {
  double largest = 0.0;
  for (const auto& [name, values] : outcome.gradients) {
    largest = std::max(largest, relative_difference(values, expected.gradients.at(name)));
  }
  return largest;
}

void check_outcome(const RunOutcome& outcome, const RunOutcome& expected, const RunSettings& run) {
  EXPECT_LT(std::abs(outcome.loss - expected.loss), kMatrixBound * std::abs(expected.loss) + 1e-30) << run.describe();
  EXPECT_LT(std::abs(outcome.evaluation_loss - expected.loss), kMatrixBound * std::abs(expected.loss) + 1e-30)
      << run.describe();
  EXPECT_LT(std::abs(outcome.grad_norm - expected.grad_norm), kMatrixBound * expected.grad_norm + 1e-30)
      << run.describe();
  ASSERT_EQ(outcome.gradients.size(), expected.gradients.size());
  for (const auto& [name, values] : outcome.gradients) {
    EXPECT_LT(relative_difference(values, expected.gradients.at(name)), kMatrixBound) << name << ": " << run.describe();
  }
}

void check_against(const RunOutcome& expected, const ModelDescription& model, const std::vector<Sequence>& sequences,
                   const RunSettings& run) {
  check_outcome(run_case(model, nullptr, sequences, run, {}, 0.0, 0), expected, run);
}

std::vector<MatrixCell> exactness_matrix() {
  std::vector<MatrixCell> cells;
  for (int model = 0; model < static_cast<int>(model_names().size()); ++model) {
    const int64_t query_heads = model < 4 ? 4 : model == 4 ? 6 : model == 5 ? 5 : model == 6 ? 28 : 40;
    for (int documents = 0; documents < static_cast<int>(document_cuts().size()); ++documents) {
      for (const MatrixMesh& mesh : matrix_meshes()) {
        if (mesh.ulysses > query_heads) continue;
        for (const RecomputePolicy policy :
             {RecomputePolicy::none, RecomputePolicy::attention, RecomputePolicy::full}) {
          for (const int64_t tile : {0, 1, 13}) cells.push_back({mesh, model, documents, policy, tile});
        }
      }
    }
  }
  return cells;
}

void check_cell(const MatrixCell& cell) {
  const Expected& expected = expected_of(cell.model, cell.documents);
  SCOPED_TRACE(expected.model.name + ", documents " + std::to_string(cell.documents));
  const RunSettings run = settings_of(cell.mesh, cell.policy, cell.tile, cell.tile);
  check_outcome(
      run_case(expected.model.description, expected.model.reference ? &expected.model.reference->directory : nullptr,
               expected.sequences, run, {}, 0.0, 0),
      expected.outcome, run);
}

}  // namespace ithaca::testing
