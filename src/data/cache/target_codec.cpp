#include "data/cache/target_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace ithaca {

namespace {

enum Form : uint32_t { kAllOnes = 0, kRuns = 1, kWeights = 2 };
constexpr uint32_t kWeightedFlag = 1;
constexpr uint32_t kLabelsFlag = 2;
constexpr size_t kAlignment = 8;

template <typename T>
void append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const auto raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

void fill_up(std::vector<std::byte>& bytes, size_t start) {
  while ((bytes.size() - start) % kAlignment != 0) bytes.push_back(std::byte{0});
}

size_t filled_up(size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void encode_targets(int64_t tokens, std::span<const float> weights, std::span<const int64_t> labels,
                    std::span<const int64_t> token_ids, std::vector<std::byte>& bytes) {
  const auto count = static_cast<size_t>(tokens);
  require(weights.empty() || weights.size() == count, "a document needs as many target weights as tokens");
  require(labels.empty() || (labels.size() == count && token_ids.size() == count),
          "a document needs as many labels as tokens");
  std::vector<TargetView::Run> runs;
  bool weighted = false;
  bool all_ones = true;
  for (size_t i = 1; i < weights.size(); ++i) {
    weighted = weighted || (weights[i] != 0.0f && weights[i] != 1.0f);
    all_ones = all_ones && weights[i] == 1.0f;
    if (runs.empty() || runs.back().weight != weights[i]) runs.push_back({0, weights[i], 0});
    runs.back().end = static_cast<int64_t>(i) + 1;
  }
  const bool own_labels = !labels.empty() && !std::equal(labels.begin() + 1, labels.end(), token_ids.begin() + 1);
  if (all_ones && !own_labels) return;

  const size_t run_bytes = sizeof(uint64_t) + runs.size() * sizeof(TargetView::Run);
  const Form form = all_ones ? kAllOnes : run_bytes <= count * sizeof(float) ? kRuns : kWeights;
  const size_t start = bytes.size();
  const std::array<uint32_t, 2> header = {form, (weighted ? kWeightedFlag : 0) | (own_labels ? kLabelsFlag : 0)};
  append<uint32_t>(bytes, header);
  if (form == kRuns) {
    const uint64_t run_count = runs.size();
    append<uint64_t>(bytes, std::span(&run_count, 1));
    append<TargetView::Run>(bytes, runs);
  } else if (form == kWeights) {
    append(bytes, weights);
    fill_up(bytes, start);
  }
  if (own_labels) {
    std::vector<uint32_t> narrow;
    narrow.reserve(count);
    for (const int64_t label : labels) narrow.push_back(static_cast<uint32_t>(label));
    append<uint32_t>(bytes, narrow);
    fill_up(bytes, start);
  }
}

TargetView::TargetView(std::span<const std::byte> bytes, int64_t tokens) {
  if (bytes.empty()) return;
  const auto count = static_cast<size_t>(tokens);
  std::array<uint32_t, 2> header{};
  require(bytes.size() >= sizeof(header), "a document's target bytes are cut off");
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  weighted_ = (header[1] & kWeightedFlag) != 0;
  size_t used = 0;
  if (header[0] == kRuns) {
    uint64_t run_count = 0;
    require(bytes.size() >= sizeof(run_count), "a document's target bytes are cut off");
    std::memcpy(&run_count, bytes.data(), sizeof(run_count));
    used = sizeof(run_count) + static_cast<size_t>(run_count) * sizeof(Run);
    require(run_count <= bytes.size() && used <= bytes.size(), "a document's target bytes are cut off");
    runs_ = {reinterpret_cast<const Run*>(bytes.data() + sizeof(run_count)), static_cast<size_t>(run_count)};
  } else if (header[0] == kWeights) {
    used = filled_up(count * sizeof(float));
    require(used <= bytes.size(), "a document's target bytes are cut off");
    weights_ = {reinterpret_cast<const float*>(bytes.data()), count};
  }
  if ((header[1] & kLabelsFlag) != 0) {
    require(used + count * sizeof(uint32_t) <= bytes.size(), "a document's target bytes are cut off");
    labels_ = {reinterpret_cast<const uint32_t*>(bytes.data() + used), count};
  }
}

size_t TargetView::run_of(int64_t index) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), index,
                                      [](int64_t value, const Run& run) { return value < run.end; });
  return static_cast<size_t>(after - runs_.begin());
}

TargetTotals TargetView::totals(int64_t begin, int64_t end) const {
  begin = std::max<int64_t>(begin, 1);
  TargetTotals totals;
  if (begin >= end) return totals;
  if (!weights_.empty()) {
    for (int64_t i = begin; i < end; ++i) {
      const float weight = weights_[static_cast<size_t>(i)];
      totals.count += weight > 0.0f ? 1 : 0;
      totals.weight_sum += static_cast<double>(weight);
    }
    return totals;
  }
  if (runs_.empty()) return {end - begin, static_cast<double>(end - begin)};
  for (size_t run = run_of(begin); begin < end; ++run) {
    const int64_t run_end = std::min(end, runs_[run].end);
    if (runs_[run].weight > 0.0f) {
      totals.count += run_end - begin;
      totals.weight_sum += static_cast<double>(runs_[run].weight) * static_cast<double>(run_end - begin);
    }
    begin = run_end;
  }
  return totals;
}

float TargetView::Cursor::weight(int64_t index) {
  if (index == 0) return 0.0f;
  if (!view_.weights_.empty()) return view_.weights_[static_cast<size_t>(index)];
  if (view_.runs_.empty()) return 1.0f;
  const auto holds = [&](size_t run) {
    return index < view_.runs_[run].end && (run == 0 || index >= view_.runs_[run - 1].end);
  };
  if (!holds(run_)) run_ = run_ + 1 < view_.runs_.size() && holds(run_ + 1) ? run_ + 1 : view_.run_of(index);
  return view_.runs_[run_].weight;
}

}  // namespace ithaca
