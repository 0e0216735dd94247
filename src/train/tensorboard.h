// TensorBoard event files: the numbers of a run in the form that TensorBoard reads, also while the run goes on.
//
// A file is a sequence of records: the length of the data (uint64, little-endian), the masked CRC-32C of these eight
// bytes (uint32), the data, the masked CRC-32C of the data (uint32). The data of every record is one protobuf message
// `Event`; the first of a file holds file_version "brain.Event:2". Every event is flushed as it is written.
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/run.h"

namespace ithaca {

// Folder of a run that event files lie in.
inline constexpr const char* kTensorboardFolder = "tensorboard";

// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected, initial value and final xor all ones; RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view bytes);

// `data` framed as one record.
std::string tensorboard_record(std::string_view data);

// A message `Event` with one scalar per tag, in float32 as the format has it. `wall_time`: seconds since 1970.
std::string scalar_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

// Removes the event files in `folder`, and the folder when nothing else is in it. No folder is fine. Throws FileError.
void remove_event_files(const std::string& folder);

class TensorboardWriter {
 public:
  // Makes `folder` and a new event file in it. `steps_before`: optimizer steps of the run that earlier files hold. 0
  // removes the event files of another run; otherwise they stay, and the new file begins with the mark at which
  // TensorBoard drops what they say about later steps, so that the curves go on where the checkpoint was made.
  // Throws FileError.
  TensorboardWriter(const std::string& folder, int64_t steps_before);

  // train/loss, train/grad_norm, train/learning_rate, ..., memory/<class> in bytes. Throw FileError.
  void write(const StepMetrics& metrics);
  // eval/loss.
  void write(const EvaluationMetrics& metrics);

  const std::string& path() const { return path_; }

 private:
  void write_event(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace ithaca
