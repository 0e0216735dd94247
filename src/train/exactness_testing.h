// Test support: the exactness matrix of whole training steps.
#pragma once

#include <string>
#include <vector>

#include "train/parity_harness.h"

namespace ithaca::testing {

// docs/design.md, "Exactness": loss, gradient norm and each gradient tensor, float32, on any mesh.
inline constexpr double kMatrixBound = 5e-6;

struct MatrixMesh {
  ScheduleKind schedule = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  int ring = 1;
  int ulysses = 1;
};

// Every schedule and layout over 1, 2, 3, 4, 5 and 8 ranks.
std::vector<MatrixMesh> matrix_meshes();
RunSettings settings_of(const MatrixMesh& mesh, RecomputePolicy policy, int64_t mlp_tile, int64_t loss_tile);

// A small model with odd sizes; `window` > 0 on every second layer. Weights come from run_case's fixed seed.
ModelDescription random_model(int64_t query_heads, int64_t key_heads, int64_t window);

// Random ids and labels, `documents` as lengths; with `masked` every fifth token has no label.
Sequence random_sequence(int64_t tokens, int64_t vocabulary, const std::vector<int64_t>& documents, uint64_t seed,
                         bool masked = true);

double largest_gradient_difference(const RunOutcome& outcome, const RunOutcome& expected);

// Compares loss, gradient norm and all gradients of a run with `expected`.
void check_outcome(const RunOutcome& outcome, const RunOutcome& expected, const RunSettings& run);
// The same of a run that it makes.
void check_against(const RunOutcome& expected, const ModelDescription& model, const std::vector<Sequence>& sequences,
                   const RunSettings& run);

struct MatrixCell {
  MatrixMesh mesh;
  int model = 0;      // index into reference models, then random shapes
  int documents = 0;  // index into ways to cut the tokens into documents
  RecomputePolicy policy = RecomputePolicy::attention;
  int64_t tile = 0;
};

std::vector<MatrixCell> exactness_matrix();
// Compares the cell with one rank (whose results are kept for the next cell of the same model and documents).
void check_cell(const MatrixCell& cell);

}  // namespace ithaca::testing
