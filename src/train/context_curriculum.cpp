#include "train/context_curriculum.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"

namespace ithaca {

namespace {

constexpr int64_t kLongest = 1'000'000'000'000;
constexpr double kLargestTheta = 1e15;
constexpr double kLargestFactor = 1e6;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// A whole number, perhaps grouped, perhaps with K or M.
std::optional<int64_t> parse_count(std::string_view text) {
  int64_t unit = 1;
  if (!text.empty() && (text.back() == 'K' || text.back() == 'k')) unit = 1024;
  if (!text.empty() && (text.back() == 'M' || text.back() == 'm')) unit = int64_t{1024} * 1024;
  if (unit > 1) text.remove_suffix(1);
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (value < 0 || value > kLongest / unit) return std::nullopt;
  return value * unit;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// One entry: a value and the step it holds from.
struct Entry {
  std::string_view text;  // as it was written
  std::string_view value;
  int64_t step = 0;
};

// All entries of the list; a text may hold several, separated by commas.
std::vector<Entry> parse_entries(const char* option, const std::vector<std::string>& texts) {
  std::vector<Entry> entries;
  for (const std::string& text : texts) {
    for (const std::string_view part : split(text, ',')) {
      Entry entry;
      entry.text = part;
      const size_t at = part.find('@');
      entry.value = trimmed(part.substr(0, at));
      if (at != std::string_view::npos) {
        const std::optional<int64_t> step = parse_count(trimmed(part.substr(at + 1)));
        if (!step) {
          throw ConfigurationError(
              fmt::format("{}: \"{}\": what follows @ is the number of steps before, a whole number", option, part));
        }
        entry.step = *step;
      }
      if (!entries.empty() && entry.step <= entries.back().step) {
        throw ConfigurationError(
            fmt::format("{}: \"{}\" begins at step {}, but \"{}\" before it at step {}; steps must rise", option, part,
                        entry.step, entries.back().text, entries.back().step));
      }
      entries.push_back(entry);
    }
  }
  return entries;
}

double parse_factor(const Entry& entry, std::string_view text) {
  const std::optional<double> factor = parse_number(text);
  if (!factor || *factor < 1.0 || *factor > kLargestFactor) {
    throw ConfigurationError(fmt::format("model.rope_scaling: \"{}\": the factor must be a number from 1 to {:g}",
                                         entry.text, kLargestFactor));
  }
  return *factor;
}

// `own` with its scaling replaced by what the entry says.
RopeDescription scaled(const RopeDescription& own, const ModelDescription& model, const Entry& entry) {
  RopeDescription rope;
  rope.theta = own.theta;
  const std::vector<std::string_view> parts = split(entry.value, ':');
  if (parts[0] == "none" && parts.size() == 1) return rope;
  std::optional<RopeKind> kind;
  for (const RopeKind each : {RopeKind::linear, RopeKind::dynamic, RopeKind::yarn, RopeKind::llama3}) {
    if (rope_name(each) == parts[0]) kind = each;
  }
  const bool takes_length = kind == RopeKind::yarn || kind == RopeKind::llama3;
  if (!kind || parts.size() < 2 || parts.size() > (takes_length ? 3u : 2u)) {
    throw ConfigurationError(
        fmt::format("model.rope_scaling: \"{}\": none, linear:4, dynamic:4, yarn:4, yarn:4:32768, llama3:8 or "
                    "llama3:8:8192 is needed",
                    entry.text));
  }
  rope.kind = *kind;
  rope.factor = parse_factor(entry, parts[1]);
  // A model that is scaled already says what it was scaled from.
  rope.original_max_positions = takes_length && own.original_max_positions > 0 && own.kind != RopeKind::dynamic
                                    ? own.original_max_positions
                                    : model.max_positions;
  if (parts.size() == 3) {
    const std::optional<int64_t> length = parse_count(parts[2]);
    if (!length || *length < 1) {
      throw ConfigurationError(fmt::format(
          "model.rope_scaling: \"{}\": the length after the factor must be a whole number above 0", entry.text));
    }
    rope.original_max_positions = *length;
  }
  return rope;
}

const Entry* entry_at(const std::vector<Entry>& entries, int64_t step) {
  const Entry* found = nullptr;
  for (const Entry& entry : entries) {
    if (entry.step <= step) found = &entry;
  }
  return found;
}

}  // namespace

std::vector<ContextStage> parse_context_stages(const std::vector<std::string>& entries) {
  std::vector<ContextStage> stages;
  for (const Entry& entry : parse_entries("data.max_length", entries)) {
    const std::optional<int64_t> length = parse_count(entry.value);
    if (!length || *length < 1) {
      throw ConfigurationError(fmt::format(
          "data.max_length: \"{}\": a number of tokens from 1 to {} is needed, such as 8192, 32K or 1M, or a schedule "
          "such as [4K@0, 32K@1000]",
          entry.text, kLongest));
    }
    stages.push_back({entry.step, *length});
  }
  if (stages.empty() || stages.front().first_step != 0) {
    throw ConfigurationError(
        "data.max_length: the schedule says nothing about the first step; begin it with, for "
        "example, 4096@0");
  }
  return stages;
}

std::vector<RopeStage> parse_rope_stages(const std::vector<std::string>& thetas,
                                         const std::vector<std::string>& scalings, const ModelDescription& model) {
  const std::vector<Entry> theta_entries = parse_entries("model.rope_theta", thetas);
  const std::vector<Entry> scaling_entries = parse_entries("model.rope_scaling", scalings);
  std::set<int64_t> steps;
  for (const Entry& entry : theta_entries) steps.insert(entry.step);
  for (const Entry& entry : scaling_entries) steps.insert(entry.step);
  std::vector<RopeStage> stages;
  for (const int64_t step : steps) {
    RopeDescription rope = model.rope;
    if (const Entry* entry = entry_at(scaling_entries, step)) rope = scaled(model.rope, model, *entry);
    if (const Entry* entry = entry_at(theta_entries, step)) {
      const std::optional<double> theta = parse_number(entry->value);
      if (!theta || *theta <= 1.0 || *theta > kLargestTheta) {
        throw ConfigurationError(fmt::format("model.rope_theta: \"{}\": a number above 1 and at most {:g} is needed",
                                             entry->text, kLargestTheta));
      }
      rope.theta = *theta;
    }
    if (rope.kind == RopeKind::dynamic && model.head_size <= 2) {
      throw ConfigurationError("model.rope_scaling: dynamic needs heads of more than 2 dimensions");
    }
    stages.push_back({step, rope});
  }
  return stages;
}

int64_t positions_with(const RopeDescription& rope, const ModelDescription& model, int64_t longest) {
  if (rope.kind == RopeKind::dynamic) return model.max_positions;
  if (rope.kind == RopeKind::yarn) {
    // Readers that find both take the quotient for the factor.
    return static_cast<int64_t>(std::llround(rope.factor * static_cast<double>(rope.original_max_positions)));
  }
  return std::max(model.max_positions, longest);
}

}  // namespace ithaca
