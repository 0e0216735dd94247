#include "train/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "checkpoint/hugging_face.h"
#include "model/parameters.h"
#include "train/initialize.h"
#include "train/plan_run.h"
#include "train/rank.h"

namespace ithaca {

namespace {

constexpr int kMostRanks = 1024;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

[[noreturn]] void throw_unreadable(std::string_view mesh, const std::string& reason) {
  throw ConfigurationError(fmt::format(
      "--meshes: '{}': {}; write 1, ulysses:4, ring:4, ring:4:zigzag, all_gather:3 or hybrid:2x4 (ulysses x ring)",
      mesh, reason));
}

int parse_size(std::string_view mesh, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostRanks) {
    throw_unreadable(mesh, fmt::format("'{}' is not a number of ranks from 1 to {}", text, kMostRanks));
  }
  return value;
}

Layout parse_layout(std::string_view mesh, std::string_view text) {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    if (layout_name(layout) == text) return layout;
  }
  throw_unreadable(mesh, fmt::format("'{}' is not a layout (contiguous, zigzag, striped)", text));
}

VerifyMesh parse_mesh(std::string_view text) {
  VerifyMesh mesh;
  mesh.text = std::string(text);
  if (text == "1") return mesh;
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3) throw_unreadable(text, "a schedule, ':' and a size are needed");
  const auto kinds = {ScheduleKind::ulysses, ScheduleKind::ring, ScheduleKind::all_gather, ScheduleKind::hybrid};
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](ScheduleKind each) { return schedule_name(each) == parts[0]; });
  if (kind == kinds.end()) throw_unreadable(text, fmt::format("'{}' is not a schedule", parts[0]));
  mesh.schedule = *kind;
  if (mesh.schedule == ScheduleKind::hybrid) {
    const std::vector<std::string_view> sizes = split(parts[1], 'x');
    if (sizes.size() != 2) throw_unreadable(text, "hybrid needs two sizes, ulysses x ring");
    mesh.ulysses_size = parse_size(text, sizes[0]);
    mesh.ring_size = parse_size(text, sizes[1]);
    if (mesh.ulysses_size * mesh.ring_size > kMostRanks) {
      throw_unreadable(text, fmt::format("{} ranks are more than {}", mesh.ulysses_size * mesh.ring_size, kMostRanks));
    }
  } else if (mesh.schedule == ScheduleKind::ulysses) {
    mesh.ulysses_size = parse_size(text, parts[1]);
  } else {
    mesh.ring_size = parse_size(text, parts[1]);
  }
  if (parts.size() == 3) mesh.layout = parse_layout(text, parts[2]);
  return mesh;
}

double relative(double value, double reference) {
  if (value == reference) return 0.0;
  return reference != 0.0 ? std::abs(value / reference - 1.0) : std::abs(value);
}

using Gradients = std::map<std::string, std::vector<float>>;

double norm_of_difference(const std::vector<float>& a, const std::vector<float>* b) {
  double sum = 0.0;
  for (size_t index = 0; index < a.size(); ++index) {
    const double difference = static_cast<double>(a[index]) - (b != nullptr ? static_cast<double>((*b)[index]) : 0.0);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

// Everything that all meshes share, and the reference's gradients once they are known.
class Verification {
 public:
  Verification(const Recipe& recipe, const VerifyOptions& options)
      : recipe_(recipe),
        options_(options),
        directory_(recipe.model.path),
        train_(open_training_data(recipe, directory_.description())) {
    if (recipe.model.init != "random") require_weights(directory_);
    Recipe single = recipe;
    single.parallel = {};
    single.parallel.zero = recipe.parallel.zero;
    decisions_ = decide_run(single, directory_.description(), *train_);
    // The same sequences per step, whatever the recipe's own mesh is.
    decisions_.loader.accumulation *= recipe.parallel.dp_replicate_size * recipe.parallel.dp_shard_size;
    steps_ = std::min(options.steps, decisions_.steps);
  }

  // Throws ConfigurationError when the model's heads or the transport do not fit the mesh, so that nothing runs first.
  void check(const VerifyMesh& mesh) const {
    BackendChoice backend = decisions_.rank.backend;
    with_places(recipe_.given, [&] {
      settle_transport(backend, "parallel.transport", recipe_.parallel.transport, mesh.ulysses_size * mesh.ring_size);
    });
    const int64_t query_heads = directory_.description().query_heads;
    if (mesh.ulysses_size <= query_heads) return;
    throw ConfigurationError(
        fmt::format("--meshes: '{}': {} ulysses ranks cannot share {} query heads, each needs at least one; ring:{} "
                    "has as many ranks",
                    mesh.text, mesh.ulysses_size, query_heads, mesh.ulysses_size * mesh.ring_size));
  }

  // Whether one rank in float32 comes first, as what bfloat16 is measured by.
  bool is_relative() const { return decisions_.rank.backend.compute_dtype != DType::float32 && !options_.bound; }

  VerifyRow run(const VerifyMesh& mesh, bool in_float32 = false) {
    TrainingRankOptions rank_options = decisions_.rank;
    if (in_float32) rank_options.backend.compute_dtype = DType::float32;
    rank_options.mesh.ring = mesh.ring_size;
    rank_options.mesh.ulysses = mesh.ulysses_size;
    settle_transport(rank_options.backend, "parallel.transport", recipe_.parallel.transport, rank_options.mesh.ranks());
    rank_options.schedule = mesh.schedule;
    rank_options.layout = mesh.layout;
    VerifyRow row;
    row.mesh = mesh;
    Gradients gradients;
    std::mutex mutex;
    const StepLoader loader(*train_, decisions_.loader);
    const ModelDescription& model = directory_.description();
    const ThreadRankOptions ranks = thread_rank_options(recipe_, rank_options);
    try {
      run_thread_ranks(rank_options.mesh.ranks(), ranks, [&](ThreadRank& thread) {
        TrainingRank rank(thread, model, rank_options);
        {
          const HostWork loading(rank.mesh().world());
          give_first_weights(recipe_, directory_, rank.parameters());
        }
        rank.mesh().world().barrier();
        int64_t sent_to_compare = 0;
        const auto start = std::chrono::steady_clock::now();
        for (int64_t step = 0; step < steps_; ++step) {
          const StepBatch batch = loader.load(step, rank.batch_position());
          rank.step().accumulate_gradients(batch);
          if (step == 0) {
            sent_to_compare -= rank.mesh().total_bytes_sent();
            read_gradients(rank, thread.rank() == 0 ? &gradients : nullptr);
            sent_to_compare += rank.mesh().total_bytes_sent();
          }
          const StepResult result = rank.step().update(batch, learning_rate(decisions_.rate, step));
          if (thread.rank() == 0) {
            row.losses.push_back(result.loss);
            row.grad_norms.push_back(result.grad_norm);
          }
        }
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        const std::lock_guard lock(mutex);
        row.seconds = std::max(row.seconds, elapsed.count());
        row.bytes_sent = std::max(row.bytes_sent, rank.mesh().total_bytes_sent() - sent_to_compare);
        row.peak_memory_bytes = std::max(row.peak_memory_bytes, rank.backend().arena(Tier::device).usage().peak);
      });
    } catch (const OutOfMemoryError& error) {
      throw OutOfMemoryError(fmt::format("--meshes: '{}': {}", mesh.text, error.what()));
    }
    compare(row, gradients);
    if (!reference_) {
      reference_ = row;
      reference_gradients_ = std::move(gradients);
    } else if (is_relative() && !own_error_) {
      own_error_ = row;
    }
    return row;
  }

 private:
  // Collective; a rank without `gradients` only takes part.
  static void read_gradients(TrainingRank& rank, Gradients* gradients) {
    for (size_t index = 0; index < rank.parameters().specs().size(); ++index) {
      const ParameterSpec& spec = rank.parameters().specs()[index];
      std::vector<float> values(gradients != nullptr ? static_cast<size_t>(spec.extents.product()) : 0);
      rank.parameters().get_gradients(static_cast<int64_t>(index), values);
      if (gradients != nullptr) gradients->emplace(spec.name, std::move(values));
    }
  }

  void compare(VerifyRow& row, const Gradients& gradients) const {
    const VerifyRow& reference = reference_ ? *reference_ : row;
    const Gradients& expected = reference_ ? reference_gradients_ : gradients;
    row.loss_difference = relative(row.losses.at(0), reference.losses.at(0));
    row.grad_norm_difference = relative(row.grad_norms.at(0), reference.grad_norms.at(0));
    for (const auto& [name, values] : expected) {
      const double scale = std::max(norm_of_difference(values, nullptr), 1e-3 * reference.grad_norms[0]);
      const double difference = norm_of_difference(gradients.at(name), &values);
      const double ratio = difference == 0.0 ? 0.0 : difference / scale;
      if (ratio <= row.gradient_difference || std::isnan(row.gradient_difference)) continue;
      row.gradient_difference = ratio;
      row.gradient_name = name;
    }
    for (size_t step = 1; step < row.losses.size(); ++step) {
      for (const double each : {relative(row.losses[step], reference.losses[step]),
                                relative(row.grad_norms[step], reference.grad_norms[step])}) {
        // Not std::max, which would drop a NaN.
        if (!(each <= row.later_difference) && !std::isnan(row.later_difference)) row.later_difference = each;
      }
    }
    const double bound = options_.bound.value_or(kVerifyBound);
    // What one rank's bfloat16 differs by, or `least`: a difference that happens to be nothing allows no other.
    const auto allowed = [&](double VerifyRow::*difference, double least, double of_float32) {
      if (!is_relative() || !reference_) return of_float32;
      const double own = own_error_ ? *own_error_.*difference : row.*difference;
      return kBfloat16Factor * std::max(own, least);
    };
    const auto all_finite = [](const auto& values) {
      return std::all_of(values.begin(), values.end(), [](auto value) { return std::isfinite(value); });
    };
    row.is_finite = all_finite(row.losses) && all_finite(row.grad_norms) &&
                    std::all_of(gradients.begin(), gradients.end(),
                                [&](const auto& gradient) { return all_finite(gradient.second); });
    row.agrees = row.is_finite && row.loss_difference <= allowed(&VerifyRow::loss_difference, 1e-4, bound) &&
                 row.grad_norm_difference <= allowed(&VerifyRow::grad_norm_difference, 1e-3, bound) &&
                 row.gradient_difference <= allowed(&VerifyRow::gradient_difference, 1e-3, bound) &&
                 row.later_difference <= allowed(&VerifyRow::later_difference, 1e-3, kLaterStepFactor * bound);
  }

  const Recipe& recipe_;
  const VerifyOptions& options_;
  ModelDirectory directory_;
  std::unique_ptr<Dataset> train_;
  RunDecisions decisions_;
  int64_t steps_ = 0;
  std::optional<VerifyRow> reference_;
  std::optional<VerifyRow> own_error_;  // of one rank in bfloat16, against the reference in float32
  Gradients reference_gradients_;
};

}  // namespace

std::vector<VerifyMesh> parse_verify_meshes(std::string_view text) {
  std::vector<VerifyMesh> meshes;
  for (const std::string_view part : split(text, ',')) {
    const std::string_view mesh = trimmed(part);
    if (mesh.empty()) throw_unreadable(text, "an empty entry");
    meshes.push_back(parse_mesh(mesh));
  }
  return meshes;
}

std::vector<VerifyMesh> default_verify_meshes(int64_t query_heads) {
  std::string text = "1,ring:2,ring:3:zigzag,ring:4:striped,all_gather:3";
  if (query_heads >= 2) text += ",ulysses:2,hybrid:2x2:zigzag";
  if (query_heads >= 4) text += ",ulysses:4";
  return parse_verify_meshes(text);
}

std::vector<VerifyRow> verify_recipe(const Recipe& recipe, const VerifyOptions& options,
                                     const std::function<void(const VerifyRow&)>& on_row,
                                     const std::atomic<bool>& stop) {
  if (options.steps < 1)
    throw ConfigurationError(fmt::format("--steps: {} is not a number of steps; at least 1 is needed", options.steps));
  if (options.bound && !(*options.bound > 0.0 && std::isfinite(*options.bound))) {
    throw ConfigurationError(fmt::format("--bound: {} is not a bound; it must be above 0, and finite", *options.bound));
  }
  Verification verification(recipe, options);
  std::vector<VerifyMesh> meshes = {parse_mesh("1")};
  for (const VerifyMesh& mesh : options.meshes) {
    if (mesh.text != "1") meshes.push_back(mesh);
  }
  for (const VerifyMesh& mesh : meshes) verification.check(mesh);
  std::vector<VerifyRow> rows;
  if (verification.is_relative()) {
    VerifyMesh exact = meshes.front();
    exact.text = "1 in float32";
    rows.push_back(verification.run(exact, true));
    on_row(rows.back());
  }
  for (const VerifyMesh& mesh : meshes) {
    if (stop.load()) break;
    rows.push_back(verification.run(mesh));
    on_row(rows.back());
  }
  return rows;
}

}  // namespace ithaca
