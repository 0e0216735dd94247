// verify: the first steps of a recipe on one rank and on other meshes, compared.
//
// Every mesh starts from the same weights and sees the same sequences. In float32 the first step's loss, gradient norm
// and gradients must agree with one rank's within `bound`; later steps start from weights whose rounding AdamW has
// amplified, so their loss and norm may differ by kLaterStepFactor times that. In bfloat16 (on GPUs, when no bound is
// given) everything is compared with one rank in float32, and a mesh agrees when it is at most kBfloat16Factor times as
// far from it as one rank in bfloat16. Thread-safety: the observer is called from the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/schedule.h"
#include "comm/mesh.h"
#include "train/recipe.h"

namespace ithaca {

inline constexpr double kVerifyBound = 5e-6;  // docs/design.md, "Exactness": float32 on any mesh
inline constexpr double kLaterStepFactor = 100.0;
// bfloat16 on any mesh is at most so much further from float32 than one rank's own bfloat16 is.
inline constexpr double kBfloat16Factor = 2.5;

// One way to split a sequence.
struct VerifyMesh {
  std::string text;  // as it was given
  ScheduleKind schedule = ScheduleKind::ring;
  Layout layout = Layout::contiguous;
  int ring_size = 1;
  int ulysses_size = 1;
};

// "1,ulysses:4,ring:4:zigzag,all_gather:3,hybrid:2x4": comma-separated; `1` is one rank, `hybrid:UxR` is ulysses U x
// ring R, the layout (contiguous, zigzag, striped) may follow. Throws ConfigurationError naming the part that cannot be
// read.
std::vector<VerifyMesh> parse_verify_meshes(std::string_view text);
// Meshes that suit a model: one rank, and each schedule over 2 to 4 ranks as far as its heads allow.
std::vector<VerifyMesh> default_verify_meshes(int64_t query_heads);

struct VerifyRow {
  VerifyMesh mesh;
  std::vector<double> losses;      // by step
  std::vector<double> grad_norms;  // by step
  double loss_difference = 0.0;    // relative, first step
  double grad_norm_difference = 0.0;
  // Largest over parameter tensors of ||a - b|| / max(||b||, 1e-3 x the global gradient norm): tensors whose gradient
  // is all rounding do not decide.
  double gradient_difference = 0.0;
  std::string gradient_name;      // of that tensor
  double later_difference = 0.0;  // largest of loss and norm after the first step
  int64_t bytes_sent = 0;         // by the rank that sends most, all steps
  int64_t peak_memory_bytes = 0;  // of the rank that uses most
  double seconds = 0.0;           // all steps
  bool is_finite = false;         // losses, norms and gradients
  bool agrees = false;            // what is not finite never does
};

struct VerifyOptions {
  std::vector<VerifyMesh> meshes;  // the one-rank reference always runs first, listed or not
  int64_t steps = 2;
  std::optional<double> bound;  // absent: kVerifyBound in float32, kBfloat16Factor in bfloat16
};

// Calls `on_row` as each mesh ends (the reference first) and returns all rows. `stop` ends it between meshes. Throws
// what run_training throws.
// The row of the reference of bfloat16 runs is called "1 in float32".
std::vector<VerifyRow> verify_recipe(const Recipe& recipe, const VerifyOptions& options,
                                     const std::function<void(const VerifyRow&)>& on_row,
                                     const std::atomic<bool>& stop);

}  // namespace ithaca
