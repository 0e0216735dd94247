#include "cli/verify_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "base/text.h"
#include "checkpoint/hugging_face.h"
#include "cli/number_option.h"
#include "cli/program.h"
#include "cli/signals.h"
#include "train/backend_choice.h"
#include "train/recipe_options.h"
#include "train/verify.h"

namespace ithaca {

namespace {

// "0" for no difference at all, "1.2e-07" otherwise.
std::string difference(double value) {
  return value == 0.0 ? "0" : fmt::format("{:.1e}", value);
}

std::string layout_of(const VerifyMesh& mesh) {
  return mesh.ring_size > 1 ? std::string(layout_name(mesh.layout)) : "";
}

std::string table_header(size_t mesh_width) {
  return fmt::format("{:<{}}  {:<10}  {:>12}  {:>8}  {:>12}  {:>8}  {:>9}  {:>9}  {:>11}  {:>11}  {:>8}  {}", "mesh",
                     mesh_width, "layout", "loss", "differs", "grad norm", "differs", "gradients", "later", "sent/rank",
                     "memory/rank", "seconds", "verdict");
}

std::string table_line(const VerifyRow& row, size_t mesh_width) {
  return fmt::format("{:<{}}  {:<10}  {:>12.7f}  {:>8}  {:>12.7f}  {:>8}  {:>9}  {:>9}  {:>11}  {:>11}  {:>8.2f}  {}",
                     row.mesh.text, mesh_width, layout_of(row.mesh), row.losses.at(0), difference(row.loss_difference),
                     row.grad_norms.at(0), difference(row.grad_norm_difference), difference(row.gradient_difference),
                     difference(row.later_difference), format_bytes(row.bytes_sent),
                     format_bytes(row.peak_memory_bytes), row.seconds, row.agrees ? "agrees" : "DIFFERS");
}

}  // namespace

void declare_verify(CLI::App& app, VerifyArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("verify", "Compare the first steps of a recipe on one rank and on other meshes");
  command->add_option("recipe", arguments.recipe, "The recipe, a YAML file")->required();
  command->add_option("--backend", arguments.backend, "Where it computes: auto, cpu or cuda (train.backend)")
      ->type_name("NAME");
  command
      ->add_option("--meshes", arguments.meshes,
                   "Which: 1,ulysses:4,ring:4:zigzag,all_gather:3,hybrid:2x4 (hybrid: ulysses x ring; a layout may "
                   "follow). Default: those that suit the "
                   "model's heads, up to 4 ranks")
      ->type_name("LIST");
  add_number(command, "--steps", arguments.steps, "How many optimizer steps (default 2)")->type_name("N");
  add_number(command, "--bound", arguments.bound,
             "Largest relative difference in loss, gradient norm and gradients (default 5e-6)")
      ->type_name("X");
  command->add_option("--set", arguments.assignments, "An option of the recipe, section.name=value; may be repeated")
      ->type_name("OPTION")
      ->allow_extra_args(false);
  command->footer(
      "Every mesh starts from the same weights and sees the same sequences. 'gradients' is the largest difference of a "
      "parameter tensor, relative to "
      "its norm (or to 1e-3 of the global norm); 'later' is the largest difference in loss and norm after the first "
      "step, which may be 100 times the bound. Exit status: 0 all agree, 1 one differs, 2 "
      "usage, 3 stopped by Ctrl-C.");
}

int verify_command(const VerifyArguments& arguments, std::ostream& out) {
  const Recipe recipe = load_recipe(arguments.recipe, {arguments.assignments, std::nullopt, arguments.backend});
  VerifyOptions options;
  options.steps = arguments.steps;
  options.bound = arguments.bound;
  options.meshes = arguments.meshes.empty()
                       ? default_verify_meshes(ModelDirectory(recipe.model.path).description().query_heads)
                       : parse_verify_meshes(arguments.meshes);
  const BackendChoice backend =
      choose_backend(recipe.train.backend, recipe.model.compute_dtype, recipe.train.deterministic);
  const bool has_float32_row = backend.compute_dtype != DType::float32 && !options.bound;
  size_t mesh_width = has_float32_row ? 12 : 4;
  for (const VerifyMesh& mesh : options.meshes) mesh_width = std::max(mesh_width, mesh.text.size());
  install_stop_signals();
  bool has_head = false;
  const std::vector<VerifyRow> rows = verify_recipe(
      recipe, options,
      [&](const VerifyRow& row) {
        if (!has_head) out << table_header(mesh_width) << '\n';
        has_head = true;
        out << table_line(row, mesh_width) << '\n' << std::flush;
      },
      stop_requested());
  const double bound = options.bound.value_or(kVerifyBound);
  const auto differing = std::count_if(rows.begin(), rows.end(), [](const VerifyRow& row) { return !row.agrees; });
  if (stop_requested().load()) {
    out << "Stopped before every mesh was compared.\n";
    return kExitStoppedEarly;
  }
  if (differing == 0) {
    const size_t steps = rows.front().losses.size();
    if (has_float32_row) {
      out << fmt::format("All meshes agree: none is more than {} times as far from float32 as one rank in bfloat16.\n",
                         kBfloat16Factor);
    } else {
      out << fmt::format(
          "All meshes agree with one rank: within {:.0e} in the first step{}.\n", bound,
          steps > 1 ? fmt::format(", within {:.0e} in the {} after it", kLaterStepFactor * bound, steps - 1) : "");
    }
    if (static_cast<int64_t>(steps) < options.steps)
      out << fmt::format("The recipe has {} of the {} steps that were asked for.\n", steps, options.steps);
    return kExitDone;
  }
  for (const VerifyRow& row : rows) {
    if (!row.agrees && !row.is_finite) {
      out << fmt::format(
          "{}: the loss, the gradient norm or a gradient is not a finite number, and agrees with none.\n",
          row.mesh.text);
    } else if (!row.agrees) {
      const std::string limit =
          has_float32_row ? fmt::format("float32 by more than {} times what one rank in bfloat16 does", kBfloat16Factor)
                          : fmt::format("one rank by more than {:.0e}", bound);
      out << fmt::format("{} differs from {}; the gradient that differs most is {}.\n", row.mesh.text, limit,
                         row.gradient_name.empty() ? "none" : row.gradient_name);
    }
  }
  return kExitFailed;
}

}  // namespace ithaca
