// The tables of `ithaca bench`: one function for each of its commands. Internal to cli/bench_command.
//
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/line_output.h"
#include "cli/bench_command.h"
#include "model/description.h"
#include "train/backend_choice.h"
#include "train/benchmark.h"

namespace ithaca {

// The raw numbers of a benchmark's rows, one JSON object a line, on the disk as soon as the row has been measured.
// Nothing is touched before open(): a file from an earlier benchmark stays until the arguments of this one are known to
// be good.
class RawRows {
 public:
  // Empty: nowhere.
  explicit RawRows(std::string path) : path_(std::move(path)) {}
  // Empties the file. Throws ConfigurationError where it is in no place for rows (check_output_file), FileError where
  // it cannot be written.
  void open();
  void add(const nlohmann::ordered_json& row);

 private:
  std::string path_;
  std::optional<LineOutput> file_;
};

// Exit statuses, as bench_command's.
int bench_step(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out);
int bench_attention(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out);
int bench_exchange(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out);
int bench_gemm(const BenchArguments& arguments, const BackendChoice& backend, RawRows& raw, std::ostream& out);

// ---- what they share ----
ModelDescription chosen_model(const BenchArguments& arguments);
std::string model_text(const BenchArguments& arguments, const ModelDescription& model);
std::string device_text(const BackendChoice& backend, int ranks);
std::string transport_text(const BackendChoice& backend, int ranks);  // ", nccl" between GPUs, else empty
std::string documents_text(const std::vector<DocumentMix>& documents);
std::vector<DocumentMix> document_mixes(const BenchArguments& arguments);
// --tokens, or what suits the device.
std::vector<int64_t> tokens_or(const BenchArguments& arguments, const BackendChoice& backend);
inline double tera(double flops_per_second) {
  return flops_per_second * 1e-12;
}
// `text` names options of recipes: with the flags of `ithaca bench step` instead, or of the others, which have fewer.
enum class BenchFlags { of_step, of_others };
std::string in_flags(std::string text, BenchFlags flags);
// A share; "-" where it was not measured.
std::string percent(double share);
// The beginning of every raw row.
nlohmann::ordered_json raw_row(const char* bench, const BackendChoice& backend, int ranks);

inline constexpr const char* kDefaultBenchShape = "qwen3-0.6b";
inline constexpr int64_t kDefaultBenchTokensOnGpu = 8192;
inline constexpr int64_t kDefaultBenchTokensOnCpu = 512;

// "1MiB,64MiB" or "1MiB..1GiB" (each four times the one before); bytes without a unit. Throws ConfigurationError that
// names --sizes.
std::vector<int64_t> parse_sizes(const std::vector<std::string>& texts);

}  // namespace ithaca
