#include "train/plan_file.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/file_output.h"

namespace ithaca {

namespace {

using Json = nlohmann::ordered_json;

// Mesh directions, outermost first.
std::array<std::pair<const char*, int>, 5> mesh_parts(const MeshSizes& mesh) {
  return {{{"dp_replicate", mesh.dp_replicate},
           {"dp_shard", mesh.dp_shard},
           {"ring", mesh.ring},
           {"ulysses", mesh.ulysses},
           {"tp", mesh.tp}}};
}

}  // namespace

std::string plan_json(const RunPlan& plan) {
  Json json;
  Json& model = json["model"];
  model["family"] = family_name(plan.model.family);
  model["parameters"] = plan.parameters;
  model["layers"] = plan.model.layer_count();
  model["hidden_size"] = plan.model.hidden_size;
  model["query_heads"] = plan.model.query_heads;
  model["key_heads"] = plan.model.key_heads;
  model["head_size"] = plan.model.head_size;
  Json& data = json["data"];
  data["train_sequences"] = plan.train_sequences;
  data["train_tokens"] = plan.train_tokens;
  data["longest_sequence"] = plan.longest_sequence;
  data["eval_sequences"] = plan.eval_sequences;
  Json& backend = json["backend"];
  backend["kind"] = backend_kind_name(plan.backend.kind);
  backend["compute_dtype"] = dtype_name(plan.backend.compute_dtype);
  backend["devices"] = plan.backend.devices;
  backend["device_name"] = plan.backend.device_name;
  if (plan.backend.kind == BackendKind::cuda) {
    backend["transport"] = transport_name(plan.backend.transport);
    backend["transport_reason"] = plan.backend.transport_reason;
  }
  json["ranks"] = plan.mesh.ranks();
  for (const auto& [name, size] : mesh_parts(plan.mesh)) json["mesh"][name] = size;
  json["zero"]["stage"] = static_cast<int>(plan.zero);
  json["zero"]["shards"] = plan.state_shards;
  Json& attention = json["attention"];
  attention["schedule"] = schedule_name(plan.schedule);
  attention["layout"] = layout_name(plan.layout);
  attention["reason"] = plan.schedule_reason;
  json["steps"] = plan.steps;
  json["sequences_per_step"] = plan.sequences_per_step;
  for (int index = 0; index < kMemoryClasses; ++index) {
    const int64_t bytes = plan.state_bytes_per_rank[static_cast<size_t>(index)];
    if (bytes > 0) {
      json["state_bytes_per_rank"][std::string(memory_class_name(static_cast<MemoryClass>(index)))] = bytes;
    }
  }
  json["notes"] = plan.notes;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string SavedPlan::attention_text() const {
  if (mesh.find("ring") == std::string::npos && mesh.find("ulysses") == std::string::npos) {
    return "each sequence stays whole on one rank";
  }
  return layout.empty() ? schedule : fmt::format("{}, {} layout", schedule, layout);
}

std::optional<SavedPlan> read_plan_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const Json json = parse_json(read_whole_file(path), path);
  SavedPlan plan;
  try {
    const Json none = Json::object();
    const Json model = json.value("model", none);
    plan.family = model.value("family", std::string());
    plan.parameters = model.value("parameters", int64_t{0});
    plan.layers = model.value("layers", int64_t{0});
    plan.hidden_size = model.value("hidden_size", int64_t{0});
    const Json data = json.value("data", none);
    plan.train_sequences = data.value("train_sequences", int64_t{0});
    plan.train_tokens = data.value("train_tokens", int64_t{0});
    plan.longest_sequence = data.value("longest_sequence", int64_t{0});
    const Json backend = json.value("backend", none);
    plan.backend = backend.value("kind", std::string());
    const std::string device = backend.value("device_name", std::string());
    if (!device.empty()) plan.backend += fmt::format(" ({} x {})", backend.value("devices", int64_t{0}), device);
    const std::string dtype = backend.value("compute_dtype", std::string());
    if (!dtype.empty()) plan.backend += (plan.backend.empty() ? "" : ", ") + dtype;
    plan.ranks = json.value("ranks", int64_t{0});
    const Json mesh = json.value("mesh", none);
    for (const auto& [name, size] : mesh.get_ref<const Json::object_t&>()) {
      if (size.get<int64_t>() == 1) continue;
      if (!plan.mesh.empty()) plan.mesh += " x ";
      plan.mesh += fmt::format("{} {}", name, size.get<int64_t>());
    }
    const Json attention = json.value("attention", none);
    plan.schedule = attention.value("schedule", std::string());
    plan.layout = attention.value("layout", std::string());
    plan.reason = attention.value("reason", std::string());
    plan.steps = json.value("steps", int64_t{0});
    plan.sequences_per_step = json.value("sequences_per_step", int64_t{0});
  } catch (const Json::exception& complaint) {
    throw InputError(path + ": not the plan of a run: " + json_complaint(complaint.what()));
  }
  return plan;
}

}  // namespace ithaca
