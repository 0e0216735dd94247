// Test support: the reference cases made with Hugging Face libraries, and a way to run them on any mesh.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/hugging_face.h"
#include "data/dataset.h"
#include "model/model_options.h"
#include "train/rank.h"

namespace ithaca::testing {

using NamedValues = std::map<std::string, std::vector<float>>;

// ||a - b|| / ||b||, in double.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b);

// One reference model and what Hugging Face computed with it.
struct ReferenceCase {
  explicit ReferenceCase(const std::string& name);

  ModelDirectory directory;
  SafetensorsFile expected;
  Sequence plain;   // one document, with a prompt mask
  Sequence packed;  // the same ids as three documents
  // The documents of `packed` as sequences of their own.
  std::vector<Sequence> separate;
  double loss = 0.0, grad_norm = 0.0;
  double packed_loss = 0.0, packed_grad_norm = 0.0;
  AdamWOptions adamw;
  double learning_rate = 0.0;
  std::vector<double> step_losses, step_grad_norms;
  double loss_after_steps = 0.0;
};

// How to run.
struct RunSettings {
  BackendChoice backend;
  MeshSizes mesh;
  ScheduleKind schedule = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  ZeroStage zero = ZeroStage::optimizer_state;
  ModelOptions model;
  int64_t micro_batch_size = 1;
  int64_t accumulation = 1;
  std::string describe() const;
};

// What the rank of a run is made with.
TrainingRankOptions rank_options(const RunSettings& settings, const AdamWOptions& adamw);

struct RunOutcome {
  double loss = 0.0;
  double grad_norm = 0.0;
  NamedValues gradients;
  std::vector<StepResult> steps;  // one per optimizer step
  NamedValues weights;            // after them: the masters
  NamedValues compute_weights;    // what the next forward reads
  double loss_after_steps = 0.0;
  double evaluation_loss = 0.0;  // of the first weights, by evaluate()
};

// Loss and gradients of one step over all `sequences`, then `optimizer_steps` AdamW steps on the same step batch.
// Gradients, masters and what the next forward reads must be the same bits on all ranks, which this checks. With
// `model` given, random weights of that model are used instead of the case's.
RunOutcome run_case(const ModelDescription& model, const ModelDirectory* weights,
                    const std::vector<Sequence>& sequences, const RunSettings& settings, const AdamWOptions& adamw,
                    double learning_rate, int optimizer_steps);

// One step over `sequences`.
struct FirstStepCase {
  ModelDescription model;
  std::vector<Sequence> sequences;
};
// As run_case with one optimizer step on random weights, for several cases by the same ranks, which spend most of their
// time on being made. The models have the same parameters. Only the last case has an update, and weights after it.
std::vector<RunOutcome> run_first_steps(const std::vector<FirstStepCase>& cases, const RunSettings& settings,
                                        double learning_rate);

// Logits [tokens, vocabulary] of one sequence in its own order, computed on the mesh.
std::vector<float> run_logits(const ModelDescription& model, const ModelDirectory* weights, const Sequence& sequence,
                              const RunSettings& settings);

}  // namespace ithaca::testing
