#include "data/packing/deal.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/error.h"

namespace ithaca {

namespace {

double cost_of(const std::vector<int64_t>& items, std::span<const double> costs) {
  double sum = 0.0;
  for (const int64_t item : items) sum += costs[static_cast<size_t>(item)];
  return sum;
}

}  // namespace

std::pair<int64_t, int64_t> even_part(int64_t size, int64_t part, int64_t parts) {
  const int64_t share = size / parts;
  const int64_t larger = size % parts;
  const int64_t begin = part * share + std::min(part, larger);
  return {begin, begin + share + (part < larger ? 1 : 0)};
}

std::vector<std::vector<int64_t>> deal_evenly(std::span<const double> costs, int64_t parts) {
  require(parts > 0, "there must be someone to deal to");
  const auto count = static_cast<int64_t>(costs.size());
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return costs[static_cast<size_t>(a)] > costs[static_cast<size_t>(b)]; });
  std::vector<std::vector<int64_t>> result(static_cast<size_t>(parts));
  const auto room = [&](int64_t part) {
    const auto [begin, end] = even_part(count, part, parts);
    return end - begin - static_cast<int64_t>(result[static_cast<size_t>(part)].size());
  };
  // Least cost first; of equal ones whoever has most room, then the first.
  using Entry = std::tuple<double, int64_t, int64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> waiting;
  for (int64_t part = 0; part < parts; ++part) {
    if (room(part) > 0) waiting.push({0.0, -room(part), part});
  }
  for (const int64_t item : order) {
    const auto [cost, ignored, part] = waiting.top();
    waiting.pop();
    result[static_cast<size_t>(part)].push_back(item);
    if (room(part) > 0) waiting.push({cost + costs[static_cast<size_t>(item)], -room(part), part});
  }
  for (std::vector<int64_t>& items : result) std::sort(items.begin(), items.end());
  return result;
}

std::vector<std::vector<std::vector<int64_t>>> deal_step(std::span<const double> costs, int64_t dp_size,
                                                         int64_t accumulation) {
  require(!costs.empty() && dp_size > 0 && accumulation > 0, "a step needs sequences, ranks and micro-batches");
  // Micro-batches that would be empty on every rank are left out: they would take time and add nothing.
  const int64_t most_of_a_rank = (static_cast<int64_t>(costs.size()) - 1) / dp_size + 1;
  const int64_t micro_batches = std::min(accumulation, most_of_a_rank);
  std::vector<std::vector<std::vector<int64_t>>> result;
  for (const std::vector<int64_t>& own : deal_evenly(costs, dp_size)) {
    std::vector<double> own_costs;
    for (const int64_t item : own) own_costs.push_back(costs[static_cast<size_t>(item)]);
    std::vector<std::vector<int64_t>>& batches = result.emplace_back(deal_evenly(own_costs, micro_batches));
    for (std::vector<int64_t>& batch : batches) {
      for (int64_t& item : batch) item = own[static_cast<size_t>(item)];
    }
    // Empty ones come last, so that some rank has something in each.
    std::stable_sort(batches.begin(), batches.end(), [&](const auto& a, const auto& b) {
      if (a.empty() != b.empty()) return b.empty();
      return cost_of(a, costs) > cost_of(b, costs);
    });
  }
  return result;
}

double deal_imbalance(const std::vector<std::vector<std::vector<int64_t>>>& deal, std::span<const double> costs) {
  if (deal.empty()) return 0.0;
  double work = 0.0;
  double time = 0.0;
  for (size_t batch = 0; batch < deal.front().size(); ++batch) {
    double slowest = 0.0;
    for (const auto& rank : deal) {
      const double cost = cost_of(rank[batch], costs);
      work += cost;
      slowest = std::max(slowest, cost);
    }
    time += slowest * static_cast<double>(deal.size());
  }
  return time > 0.0 ? 1.0 - work / time : 0.0;
}

}  // namespace ithaca
