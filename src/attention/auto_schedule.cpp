#include "attention/auto_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "attention/communication_cost.h"
#include "base/error.h"
#include "base/text.h"

namespace ithaca {
namespace {

struct Candidate {
  ScheduleSizes sizes;
  int64_t bytes = 0;  // of the busiest rank, one layer forward and backward
  int64_t exchanges = 0;
  bool even = true;  // every rank computes as many query heads
};

std::string describe(const ScheduleSizes& sizes) {
  if (sizes.kind == ScheduleKind::hybrid)
    return fmt::format("hybrid (ulysses {} x ring {})", sizes.ulysses_size, sizes.ring_size);
  return fmt::format("{} over {} ranks", schedule_name(sizes.kind), sizes.ulysses_size * sizes.ring_size);
}

bool shape_allows(const ScheduleSizes& sizes) {
  switch (sizes.kind) {
    case ScheduleKind::ulysses:
      return sizes.ring_size == 1;
    case ScheduleKind::ring:
    case ScheduleKind::all_gather:
      return sizes.ulysses_size == 1;
    case ScheduleKind::hybrid:
      return sizes.ulysses_size > 1 && sizes.ring_size > 1;
  }
  return false;
}

Candidate make_candidate(const ScheduleSizes& sizes, const ScheduleRequest& request) {
  Candidate candidate;
  candidate.sizes = sizes;
  candidate.even = request.heads.query_heads % sizes.ulysses_size == 0;
  const int64_t tokens_per_rank = (request.tokens + request.cp_size - 1) / request.cp_size;
  for (int rank = 0; rank < sizes.ulysses_size; ++rank) {
    const CommunicationCost cost =
        communication_cost(sizes, request.heads, rank, tokens_per_rank, request.element_bytes);
    candidate.bytes = std::max(candidate.bytes, cost.forward_bytes + cost.backward_bytes);
    candidate.exchanges = std::max(candidate.exchanges, cost.forward_exchanges + cost.backward_exchanges);
  }
  return candidate;
}

// Everything that the group size, the heads and the user's wishes allow.
std::vector<Candidate> candidates(const ScheduleRequest& request) {
  std::vector<Candidate> result;
  for (int ulysses = 1; ulysses <= request.cp_size; ++ulysses) {
    if (request.cp_size % ulysses != 0 || ulysses > request.heads.query_heads) continue;
    const int ring = request.cp_size / ulysses;
    if (request.ulysses_size > 0 && request.ulysses_size != ulysses) continue;
    if (request.ring_size > 0 && request.ring_size != ring) continue;
    for (const ScheduleKind kind :
         {ScheduleKind::ulysses, ScheduleKind::ring, ScheduleKind::all_gather, ScheduleKind::hybrid}) {
      if (request.kind && *request.kind != kind) continue;
      const ScheduleSizes sizes = {kind, ulysses, ring};
      if (shape_allows(sizes)) result.push_back(make_candidate(sizes, request));
    }
  }
  return result;
}

int kind_order(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::ulysses:
      return 0;
    case ScheduleKind::ring:
      return 1;
    case ScheduleKind::hybrid:
      return 2;
    case ScheduleKind::all_gather:
      return 3;
  }
  return 4;
}

std::string wishes(const ScheduleRequest& request) {
  std::string text = fmt::format("parallel.sp_size {}", request.cp_size);
  if (request.kind) text += fmt::format(", schedule {}", schedule_name(*request.kind));
  if (request.ulysses_size > 0) text += fmt::format(", ulysses_size {}", request.ulysses_size);
  if (request.ring_size > 0) text += fmt::format(", ring_size {}", request.ring_size);
  return text;
}

[[noreturn]] void throw_nothing_fits(const ScheduleRequest& request) {
  ScheduleRequest free = request;
  free.kind.reset();
  free.ulysses_size = 0;
  free.ring_size = 0;
  std::string fits;
  for (const Candidate& candidate : candidates(free)) fits += (fits.empty() ? "" : ", ") + describe(candidate.sizes);
  throw ConfigurationError(
      fmt::format("{} cannot run a model of {} query heads ({} ranks share a sequence; ulysses needs at most as many "
                  "ranks as query "
                  "heads, hybrid needs two sizes above 1); these would fit: {}",
                  wishes(request), request.heads.query_heads, request.cp_size, fits));
}

std::string reason_for(const Candidate& chosen, const std::vector<Candidate>& all) {
  std::string text = fmt::format("{} sends {} per rank and layer", describe(chosen.sizes), format_bytes(chosen.bytes));
  for (const Candidate& other : all) {
    if (other.sizes.kind == chosen.sizes.kind && other.sizes.ulysses_size == chosen.sizes.ulysses_size) continue;
    text += fmt::format("; {} {}{}", describe(other.sizes), format_bytes(other.bytes),
                        other.even ? "" : " with heads that cannot be dealt evenly");
  }
  return text;
}

}  // namespace

ScheduleChoice choose_schedule(const ScheduleRequest& request) {
  require(request.cp_size >= 1, "choose_schedule: a sequence needs at least one rank");
  ScheduleChoice choice;
  if (request.cp_size == 1) {
    if (request.ulysses_size > 1 || request.ring_size > 1) throw_nothing_fits(request);
    choice.kind = request.kind.value_or(ScheduleKind::ring);
    choice.layout = request.layout.value_or(Layout::contiguous);
    return choice;
  }
  const std::vector<Candidate> all = candidates(request);
  if (all.empty()) throw_nothing_fits(request);
  const auto rank_of = [](const Candidate& candidate) {
    return std::tuple(!candidate.even, candidate.bytes, candidate.exchanges, kind_order(candidate.sizes.kind));
  };
  const Candidate& best = *std::min_element(
      all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) { return rank_of(a) < rank_of(b); });
  choice.kind = best.sizes.kind;
  choice.ulysses_size = best.sizes.ulysses_size;
  choice.ring_size = best.sizes.ring_size;
  if (all.size() > 1) choice.reason = reason_for(best, all);
  // Causal attention gives later tokens more work: zigzag and striped deal it evenly over ring ranks, contiguous does
  // not.
  choice.layout = request.layout.value_or(choice.ring_size > 1 ? Layout::zigzag : Layout::contiguous);
  if (!request.layout && choice.ring_size > 1) {
    choice.reason += choice.reason.empty() ? "" : ". ";
    choice.reason += "Layout zigzag gives every ring rank the same share of the causal work";
  }
  return choice;
}

}  // namespace ithaca
