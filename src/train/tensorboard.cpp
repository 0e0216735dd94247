#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace ithaca {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFilePrefix = "events.out.tfevents.";

// ---- protobuf's wire format, as far as Event needs it: https://protobuf.dev/programming-guides/encoding ----

constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kLengthDelimited = 2;
constexpr uint32_t kFixed32 = 5;

// Field numbers of Event, Summary, Summary.Value and SessionLog.
constexpr uint32_t kEventWallTime = 1;
constexpr uint32_t kEventStep = 2;
constexpr uint32_t kEventFileVersion = 3;
constexpr uint32_t kEventSummary = 5;
constexpr uint32_t kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimpleValue = 2;
constexpr uint32_t kSessionLogStatus = 1;
constexpr uint64_t kSessionStart = 1;

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

template <typename Unsigned>
void append_little_endian(std::string& out, Unsigned value) {
  for (size_t byte = 0; byte < sizeof(value); ++byte) out.push_back(static_cast<char>(value >> (8 * byte) & 0xff));
}

void append_key(std::string& out, uint32_t field, uint32_t wire_type) {
  append_varint(out, field << 3 | wire_type);
}

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, kLengthDelimited);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_head(double wall_time, int64_t step) {
  std::string event;
  append_key(event, kEventWallTime, kFixed64);
  append_little_endian(event, std::bit_cast<uint64_t>(wall_time));
  append_key(event, kEventStep, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

std::string session_start_event(double wall_time, int64_t step) {
  std::string log;
  append_key(log, kSessionLogStatus, kVarint);
  append_varint(log, kSessionStart);
  std::string event = event_head(wall_time, step);
  append_bytes(event, kEventSessionLog, log);
  return event;
}

std::array<uint32_t, 256> make_crc32c_table() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest & 1) != 0 ? rest >> 1 ^ kReflectedPolynomial : rest >> 1;
    table[byte] = rest;
  }
  return table;
}

// A CRC that is stored beside what it covers is disturbed, so that a CRC over both does not degenerate.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

[[noreturn]] void fail(const fs::path& path, const char* action, const std::error_code& error) {
  throw FileError(fmt::format("{}: {}: {}", path.string(), action, error.message()));
}

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kEventFilePrefix)) files.push_back(entry.path());
  }
  return files;
}

// TensorBoard reads the files of a folder in the order of their names, so the name of a new one has to be the last.
int64_t next_second(const fs::path& folder) {
  auto second = static_cast<int64_t>(seconds_since_1970());
  for (const fs::path& file : event_files(folder)) {
    const std::string digits = file.filename().string().substr(kEventFilePrefix.size(), 10);
    second = std::max<int64_t>(second, std::strtoll(digits.c_str(), nullptr, 10) + 1);
  }
  return second;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = make_crc32c_table();
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

std::string tensorboard_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(data.size()));
  append_little_endian(record, masked_crc(record));
  record += data;
  append_little_endian(record, masked_crc(data));
  return record;
}

std::string scalar_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, scalar] : scalars) {
    std::string value;
    append_bytes(value, kValueTag, tag);
    append_key(value, kValueSimpleValue, kFixed32);
    append_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(scalar)));
    append_bytes(summary, kSummaryValue, value);
  }
  std::string event = event_head(wall_time, step);
  append_bytes(event, kEventSummary, summary);
  return event;
}

void remove_event_files(const std::string& folder) {
  std::error_code error;
  for (const fs::path& file : event_files(folder)) {
    fs::remove(file, error);
    if (error) fail(file, "cannot be removed", error);
  }
  if (fs::is_directory(folder, error) && fs::is_empty(folder, error)) fs::remove(folder, error);
}

TensorboardWriter::TensorboardWriter(const std::string& folder, int64_t steps_before) {
  if (steps_before == 0) remove_event_files(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, "cannot be made", error);
  path_ =
      (fs::path(folder) / fmt::format("{}{:010}.{}.{}", kEventFilePrefix, next_second(folder), host_name(), getpid()))
          .string();
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) throw FileError(path_ + ": cannot be written; check the folder's permissions and the space left");
  const double now = seconds_since_1970();
  std::string version = event_head(now, 0);
  append_bytes(version, kEventFileVersion, "brain.Event:2");
  write_event(version);
  if (steps_before > 0) write_event(session_start_event(now, steps_before + 1));
}

void TensorboardWriter::write(const StepMetrics& metrics) {
  std::vector<std::pair<std::string, double>> scalars = {
      {"train/loss", metrics.loss},
      {"train/grad_norm", metrics.grad_norm},
      {"train/learning_rate", metrics.learning_rate},
      {"train/valid_tokens", static_cast<double>(metrics.valid_tokens)},
      {"train/skipped_steps", static_cast<double>(metrics.skipped_steps)},
      {"speed/tokens_per_second", metrics.tokens_per_second},
      {"speed/step_seconds", metrics.step_seconds},
      {"speed/exposed_wait_seconds", metrics.exposed_wait_seconds},
      {"speed/bytes_sent", static_cast<double>(metrics.bytes_sent)},
      {"memory/total", static_cast<double>(metrics.memory.peak)},
  };
  for (int index = 0; index < kMemoryClasses; ++index) {
    scalars.emplace_back("memory/" + std::string(memory_class_name(static_cast<MemoryClass>(index))),
                         static_cast<double>(metrics.memory.peak_by_class[static_cast<size_t>(index)]));
  }
  write_event(scalar_event(seconds_since_1970(), metrics.step, scalars));
}

void TensorboardWriter::write(const EvaluationMetrics& metrics) {
  write_event(scalar_event(seconds_since_1970(), metrics.step, {{"eval/loss", metrics.loss}}));
}

void TensorboardWriter::write_event(std::string_view event) {
  file_ << tensorboard_record(event) << std::flush;
  if (!file_) throw FileError(path_ + ": writing failed; the disk may be full");
}

}  // namespace ithaca
