#include "attention/auto_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "attention/head_deal.h"
#include "base/error.h"
#include "base/integer.h"
#include "base/text.h"

namespace ithaca {
namespace {

// Forward and backward attention in units of the forward: two products become seven.
constexpr double kForwardAndBackward = 3.5;
constexpr double kBackward = 2.5;
// Prices up to so many times the lowest are equal to it: they know nothing of how kernels like the shapes of calls.
constexpr double kEqualPrices = 1.03;

struct Candidate {
  ScheduleSizes sizes;
  Layout layout;
  std::string layout_reason;
  // Bytes' worth of time of the busiest rank: what it computes, and the communication that nothing hides.
  double attention = 0.0;
  double exposed = 0.0;
  int64_t bytes = 0;          // that the rank which sends most sends, forward and backward
  double heads_excess = 0.0;  // share by which the busiest rank has more query heads than the mean

  double price() const { return attention + exposed; }
};

// Whether several documents share the axis. A mean a little below the whole axis only says that some sequences are
// shorter than others.
bool is_packed(const AutoScheduleRequest& request) {
  return request.mean_document_tokens > 0 && request.mean_document_tokens <= request.tokens - request.tokens / 4;
}

// How far back a query looks, at most, on average over documents.
int64_t reach_of(const AutoScheduleRequest& request) {
  int64_t reach = is_packed(request) ? request.mean_document_tokens : request.tokens;
  if (request.mask.window > 0) reach = std::min(reach, request.mask.window);
  return std::min(reach, request.tokens);
}

void choose_layout(const AutoScheduleRequest& request, Candidate& candidate) {
  const int64_t part = ceiling_divide(request.tokens, candidate.sizes.ring_size);
  if (request.layout) {
    candidate.layout = *request.layout;
    candidate.layout_reason = "as configured";
  } else if (candidate.sizes.ring_size == 1) {
    candidate.layout = Layout::contiguous;
    candidate.layout_reason = "without a ring every rank computes over all tokens";
  } else if (!request.mask.causal) {
    candidate.layout = Layout::contiguous;
    candidate.layout_reason = "without causality every part has the same work";
  } else if (reach_of(request) <= part) {
    candidate.layout = Layout::contiguous;
    candidate.layout_reason =
        fmt::format("queries look back at most {} tokens, so hops beyond the neighbour are skipped",
                    format_count(reach_of(request)));
  } else if (is_packed(request)) {
    candidate.layout = Layout::striped;
    candidate.layout_reason = "it balances documents of any length";
  } else {
    candidate.layout = Layout::zigzag;
    candidate.layout_reason = "it balances causal work";
  }
}

void set_price(const AutoScheduleRequest& request, Candidate& candidate) {
  const ScheduleSizes& sizes = candidate.sizes;
  const HeadShape& heads = request.heads;
  const int ranks = sizes.ulysses_size * sizes.ring_size;
  const int64_t tokens_per_rank = ceiling_divide(request.tokens, ranks);
  const int64_t part = ceiling_divide(request.tokens, sizes.ring_size);
  const HeadDeal deal(heads.query_heads, heads.key_heads, sizes.ulysses_size, sizes.ring_size == 1);

  const int64_t most_queries = deal.most_query_heads();
  candidate.heads_excess =
      static_cast<double>(most_queries * sizes.ulysses_size) / static_cast<double>(heads.query_heads) - 1.0;

  // Attention of the busiest rank.
  const bool is_windowed = request.mask.window > 0 && request.mask.window <= reach_of(request);
  const double keys_per_query =
      static_cast<double>(reach_of(request)) * (request.mask.causal && !is_windowed ? 0.5 : 1.0);
  double ring_share = 1.0 / sizes.ring_size;
  if (candidate.layout == Layout::contiguous && request.mask.causal && !is_windowed && !is_packed(request)) {
    ring_share = (2.0 * sizes.ring_size - 1.0) / (static_cast<double>(sizes.ring_size) * sizes.ring_size);
  }
  const double attention = kForwardAndBackward * 2.0 * static_cast<double>(heads.key_size + heads.value_size) *
                           static_cast<double>(request.tokens) * keys_per_query * static_cast<double>(most_queries) *
                           ring_share / kAttentionFlopsPerByte;

  // Hops that are needed, and what a ring hop sends: keys and values twice, and float32 gradients once.
  int hops = sizes.ring_size - 1;
  if (sizes.kind != ScheduleKind::all_gather && candidate.layout == Layout::contiguous &&
      reach_of(request) < request.tokens) {
    hops = static_cast<int>(std::min<int64_t>(hops, ceiling_divide(reach_of(request), part)));
  }
  double exposed = 0.0;
  for (int rank = 0; rank < sizes.ulysses_size; ++rank) {
    ScheduleSizes inside = sizes;
    inside.ring_size = 1;
    inside.kind = ScheduleKind::ulysses;
    const CommunicationCost whole = communication_cost(sizes, heads, rank, tokens_per_rank, request.element_bytes);
    const CommunicationCost exchange = communication_cost(inside, heads, rank, tokens_per_rank, request.element_bytes);
    const int64_t exchange_bytes = exchange.forward_bytes + exchange.backward_bytes;
    const int64_t all_hops = whole.forward_bytes + whole.backward_bytes - exchange_bytes;
    const double hop = sizes.ring_size > 1 ? static_cast<double>(all_hops) / (sizes.ring_size - 1) : 0.0;
    CommunicationTimes times;
    times.exchanges = static_cast<double>(exchange_bytes);
    times.groups = deal.groups();
    times.hop = hop;
    times.hops = hops;
    times.attention = attention;
    times.way_home =
        4.0 * static_cast<double>(part * deal.key_heads(rank).count() * (heads.key_size + heads.value_size));
    times.behind_way_home =
        share_behind_way_home(sizes, heads) * attention * kBackward / kForwardAndBackward / (hops + 1);
    exposed = std::max(exposed, exposed_communication(times));
    candidate.bytes = std::max(candidate.bytes, exchange_bytes + static_cast<int64_t>(hop) * hops);
  }
  candidate.attention = attention;
  candidate.exposed = exposed;
}

std::string name_of(const Candidate& candidate) {
  const ScheduleSizes& sizes = candidate.sizes;
  if (sizes.kind == ScheduleKind::hybrid) {
    return fmt::format("hybrid (ulysses_size {} x ring_size {})", sizes.ulysses_size, sizes.ring_size);
  }
  return fmt::format("{} over {} ranks", schedule_name(sizes.kind), sizes.ulysses_size * sizes.ring_size);
}

std::string numbers_of(const Candidate& candidate) {
  const auto size = [](double bytes) {
    return format_bytes(static_cast<int64_t>(std::llround(std::min(bytes, 9e18))));
  };
  std::string text = fmt::format("cost {} (attention {}, waiting {}), {} sent", size(candidate.price()),
                                 size(candidate.attention), size(candidate.exposed), format_bytes(candidate.bytes));
  if (candidate.heads_excess > 0.005) {
    text += fmt::format(", busiest rank {:.0f}% above the mean in heads", 100.0 * candidate.heads_excess);
  }
  return text;
}

// Sizes that the fixed ones leave open.
std::vector<ScheduleSizes> possible_sizes(const AutoScheduleRequest& request) {
  const int ranks = request.cp_size;
  for (const auto& [name, size] :
       {std::pair("ulysses_size", request.ulysses_size), std::pair("ring_size", request.ring_size)}) {
    if (size && (*size < 1 || ranks % *size != 0)) {
      std::string divisors;
      for (int divisor = 1; divisor <= ranks; ++divisor) {
        if (ranks % divisor == 0) divisors += fmt::format("{}{}", divisors.empty() ? "" : ", ", divisor);
      }
      throw ConfigurationError(
          fmt::format("parallel.{}: {} does not divide sp_size {}; possible: {}", name, *size, ranks, divisors));
    }
  }
  if (request.ulysses_size && request.ring_size && *request.ulysses_size * *request.ring_size != ranks) {
    throw ConfigurationError(
        fmt::format("parallel.ulysses_size {} x parallel.ring_size {} is {}, but sp_size is {}; ring_size {} would fit",
                    *request.ulysses_size, *request.ring_size, *request.ulysses_size * *request.ring_size, ranks,
                    ranks / *request.ulysses_size));
  }
  std::vector<ScheduleSizes> result;
  const auto is_real_hybrid = [](const ScheduleSizes& sizes) { return sizes.ulysses_size > 1 && sizes.ring_size > 1; };
  for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
    if (ranks % ulysses != 0) continue;
    if (request.ulysses_size && ulysses != *request.ulysses_size) continue;
    if (request.ring_size && ranks / ulysses != *request.ring_size) continue;
    ScheduleSizes sizes{ScheduleKind::hybrid, ulysses, ranks / ulysses};
    if (sizes.ring_size == 1) sizes.kind = ScheduleKind::ulysses;
    if (ulysses == 1 && sizes.ring_size > 1) sizes.kind = ScheduleKind::ring;
    if (request.kind) sizes.kind = *request.kind;
    result.push_back(sizes);
  }
  const bool sizes_are_open = result.size() > 1;
  if (request.kind && sizes_are_open && ranks > 1) {
    // A kind that is asked for by name means its own sizes, where there are any.
    const auto is_unfit = [&](const ScheduleSizes& sizes) {
      if (*request.kind == ScheduleKind::ulysses) return sizes.ring_size != 1;
      if (*request.kind == ScheduleKind::hybrid) return !is_real_hybrid(sizes);
      return sizes.ulysses_size != 1;
    };
    std::vector<ScheduleSizes> fit;
    std::remove_copy_if(result.begin(), result.end(), std::back_inserter(fit), is_unfit);
    if (!fit.empty()) result = fit;
  }
  return result;
}

}  // namespace

AutoScheduleChoice choose_schedule(const AutoScheduleRequest& request) {
  require(request.cp_size >= 1 && request.tokens >= 0 && request.mean_document_tokens >= 0 && request.element_bytes > 0,
          "choose_schedule: sizes must not be negative");
  const std::vector<ScheduleSizes> possible = possible_sizes(request);
  std::vector<Candidate> candidates;
  std::string impossible;
  for (const ScheduleSizes& sizes : possible) {
    if (sizes.ulysses_size > request.heads.query_heads && possible.size() > 1) {
      impossible =
          fmt::format(" More than {} ulysses ranks would be more than query heads.", request.heads.query_heads);
      continue;
    }
    check_schedule_sizes(sizes, request.heads);
    Candidate candidate;
    candidate.sizes = sizes;
    choose_layout(request, candidate);
    set_price(request, candidate);
    candidates.push_back(candidate);
  }
  const double cheapest =
      std::min_element(candidates.begin(), candidates.end(), [](const Candidate& left, const Candidate& right) {
        return left.price() < right.price();
      })->price();
  const auto order_of = [&](const Candidate& candidate) {
    const bool is_cheap = candidate.price() <= kEqualPrices * cheapest;
    const double first = is_cheap ? static_cast<double>(candidate.bytes) : candidate.price();
    return std::tuple(!is_cheap, first, candidate.price(), -candidate.sizes.ulysses_size);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& left, const Candidate& right) { return order_of(left) < order_of(right); });
  const Candidate& best = candidates.front();
  AutoScheduleChoice choice{best.sizes, best.layout, ""};
  if (request.cp_size == 1) {
    choice.reason = "one rank holds the whole sequence, so attention exchanges nothing";
    return choice;
  }
  choice.reason = fmt::format("{}: {}; layout {}: {}.", name_of(best), numbers_of(best), layout_name(best.layout),
                              best.layout_reason);
  if (candidates.size() > 1) {
    std::string others;
    for (size_t index = 1; index < candidates.size(); ++index) {
      others +=
          fmt::format("{}{}: {}", index == 1 ? "" : "; ", name_of(candidates[index]), numbers_of(candidates[index]));
    }
    choice.reason += fmt::format(
        " The others {} ({}). Cost is the time of one layer on the busiest rank, as the bytes that it could "
        "send meanwhile.",
        best.price() > cheapest ? "send more, for the same cost within 3%, or cost more" : "cost more", others);
  } else if (possible.size() == 1) {
    choice.reason += " The sizes leave nothing else.";
  }
  choice.reason += impossible;
  return choice;
}

}  // namespace ithaca
