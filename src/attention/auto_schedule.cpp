#include "attention/auto_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/head_deal.h"
#include "attention/ring_work.h"
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
  Layout layout = Layout::contiguous;
  std::string layout_reason;
  // Bytes' worth of time of the busiest rank: what it computes, and the communication that nothing hides.
  double attention = 0.0;
  double exposed = 0.0;
  double bytes = 0.0;         // that the rank which sends most sends, forward and backward
  double heads_excess = 0.0;  // share by which the busiest rank has more query heads than the mean

  double price() const { return attention + exposed; }
};

// The first is the best: of the cheapest, and those that cost the same, the one that sends least. Returns the lowest
// price.
double sort_by_price(std::vector<Candidate>& candidates) {
  double cheapest = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) cheapest = std::min(cheapest, candidate.price());
  const auto order_of = [&](const Candidate& candidate) {
    const bool is_cheap = candidate.price() <= kEqualPrices * cheapest;
    const double first = is_cheap ? candidate.bytes : candidate.price();
    return std::tuple(!is_cheap, first, candidate.price(), -candidate.sizes.ulysses_size);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& left, const Candidate& right) { return order_of(left) < order_of(right); });
  return cheapest;
}

// With why one would take them.
std::vector<std::pair<Layout, std::string>> possible_layouts(const AutoScheduleRequest& request, int ring_size) {
  if (request.layout) return {{*request.layout, "as configured"}};
  if (ring_size == 1) return {{Layout::contiguous, "without a ring every rank computes over all tokens"}};
  return {{Layout::contiguous,
           request.mask.causal ? "hops are skipped that no query looks back over" : "without causality it sends least"},
          {Layout::zigzag, "it balances causal work"},
          {Layout::striped, "it balances documents of any length"}};
}

// What does not depend on the sequence: bytes for each token of a rank, of every ulysses rank.
class SizePrices {
 public:
  SizePrices(const AutoScheduleRequest& request, const ScheduleSizes& sizes)
      : request_(request), sizes_(sizes), deal_(head_deal(sizes, request.heads)) {
    const ScheduleSizes inside{ScheduleKind::ulysses, sizes.ulysses_size, 1};
    for (int rank = 0; rank < sizes.ulysses_size; ++rank) {
      const CommunicationCost whole = communication_cost(sizes, request.heads, deal_, rank, 1, request.element_bytes);
      const CommunicationCost exchange =
          communication_cost(inside, request.heads, deal_, rank, 1, request.element_bytes);
      const int64_t exchange_bytes = exchange.forward_bytes + exchange.backward_bytes;
      const int64_t all_hops = whole.forward_bytes + whole.backward_bytes - exchange_bytes;
      // A ring hop sends keys and values twice, and float32 gradients once.
      ranks_.push_back({static_cast<double>(exchange_bytes),
                        static_cast<double>(all_hops) / std::max(1, sizes.ring_size - 1),
                        deal_.key_heads(rank).count()});
    }
    share_behind_way_home_ = share_behind_way_home(sizes, request.heads);
  }

  double heads_excess() const {
    return static_cast<double>(deal_.most_query_heads() * sizes_.ulysses_size) /
               static_cast<double>(request_.heads.query_heads) -
           1.0;
  }

  // Adds one sequence's share of the price.
  void add(const Documents& documents, Candidate& candidate) {
    const HeadShape& heads = request_.heads;
    const auto key_value_size = static_cast<double>(heads.key_size + heads.value_size);
    const int64_t tokens = documents.total_tokens();
    const auto tokens_of_rank =
        static_cast<double>(ceiling_divide(tokens, int64_t{sizes_.ulysses_size} * sizes_.ring_size));
    const int64_t part = ceiling_divide(tokens, sizes_.ring_size);
    const RingWork work = busiest_ring_work(candidate.layout, documents, request_.mask, sizes_.ring_size);
    const double attention = kForwardAndBackward * 2.0 * key_value_size * work.pairs *
                             static_cast<double>(deal_.most_query_heads()) / kAttentionFlopsPerByte;
    const bool gathers = sizes_.kind == ScheduleKind::all_gather;
    const int hops = gathers && work.hops > 0 ? sizes_.ring_size - 1 : work.hops;
    const std::vector<double>& seen = seen_exchanges_of(
        head_group_count(part * deal_.most_query_heads(), request_.preferred_attention_rows, kLargestHeadGroups));

    double exposed = 0.0;
    double bytes = 0.0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankBytes& of_rank = ranks_[rank];
      CommunicationTimes times;
      times.seen_exchanges = tokens_of_rank * seen[rank];
      times.hop = tokens_of_rank * of_rank.hop;
      times.hops = hops;
      times.attention = attention;
      times.way_home = 4.0 * static_cast<double>(part) * static_cast<double>(of_rank.key_heads) * key_value_size;
      times.behind_way_home = share_behind_way_home_ * attention * kBackward / kForwardAndBackward / (hops + 1);
      exposed = std::max(exposed, exposed_communication(times));
      bytes = std::max(bytes, tokens_of_rank * (of_rank.exchange + of_rank.hop * hops));
    }
    const double share = 1.0 / static_cast<double>(request_.sequences.size());
    candidate.attention += share * attention;
    candidate.exposed += share * exposed;
    candidate.bytes += share * bytes;
  }

 private:
  struct RankBytes {
    double exchange = 0.0;
    double hop = 0.0;
    int64_t key_heads = 0;
  };

  const std::vector<double>& seen_exchanges_of(int groups) {
    std::vector<double>& seen = seen_[static_cast<size_t>(groups)];
    if (seen.empty()) {
      const HeadDeal grouped = head_deal(sizes_, request_.heads, groups);
      for (int rank = 0; rank < sizes_.ulysses_size; ++rank) {
        const ExchangeBytes bytes = seen_exchanges(grouped, request_.heads, rank, 1, request_.element_bytes);
        seen.push_back(static_cast<double>(bytes.forward_bytes + bytes.backward_bytes));
      }
    }
    return seen;
  }

  const AutoScheduleRequest& request_;
  ScheduleSizes sizes_;
  HeadDeal deal_;
  std::vector<RankBytes> ranks_;
  double share_behind_way_home_ = 0.0;
  std::array<std::vector<double>, kLargestHeadGroups + 1> seen_;  // by the number of groups, where asked for
};

// With the layout that suits it best.
Candidate candidate_of(const AutoScheduleRequest& request, const ScheduleSizes& sizes) {
  SizePrices prices(request, sizes);
  std::vector<Candidate> candidates;
  for (auto& [layout, reason] : possible_layouts(request, sizes.ring_size)) {
    Candidate candidate;
    candidate.sizes = sizes;
    candidate.layout = layout;
    candidate.layout_reason = reason;
    candidate.heads_excess = prices.heads_excess();
    for (const Documents& documents : request.sequences) prices.add(documents, candidate);
    candidates.push_back(std::move(candidate));
  }
  sort_by_price(candidates);
  return std::move(candidates.front());
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
                                 size(candidate.attention), size(candidate.exposed), size(candidate.bytes));
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

std::string schedule_text(const AutoScheduleChoice& choice) {
  std::string text(schedule_name(choice.sizes.kind));
  if (choice.sizes.kind == ScheduleKind::hybrid) {
    text += fmt::format(" {}x{}", choice.sizes.ulysses_size, choice.sizes.ring_size);
  }
  if (choice.sizes.ring_size > 1) text += fmt::format(", {}", layout_name(choice.layout));
  return text;
}

AutoScheduleChoice choose_schedule(const AutoScheduleRequest& request) {
  require(request.cp_size >= 1 && request.element_bytes > 0 && request.preferred_attention_rows > 0,
          "choose_schedule: sizes must be positive");
  const std::vector<ScheduleSizes> possible = possible_sizes(request);
  if (request.cp_size == 1) {
    check_schedule_sizes(possible.front(), request.heads);
    return {possible.front(), request.layout.value_or(Layout::contiguous),
            "one rank holds the whole sequence, so attention exchanges nothing"};
  }
  std::vector<Candidate> candidates;
  std::string impossible;
  for (const ScheduleSizes& sizes : possible) {
    if (sizes.ulysses_size > request.heads.query_heads && possible.size() > 1) {
      impossible =
          fmt::format(" An ulysses_size above {}, the number of query heads, is left out.", request.heads.query_heads);
      continue;
    }
    check_schedule_sizes(sizes, request.heads);
    candidates.push_back(candidate_of(request, sizes));
  }
  const double cheapest = sort_by_price(candidates);
  const Candidate& best = candidates.front();
  AutoScheduleChoice choice{best.sizes, best.layout, ""};
  choice.reason = fmt::format("{}: {}; layout {}: {}.", name_of(best), numbers_of(best), layout_name(best.layout),
                              best.layout_reason);
  if (candidates.size() > 1) {
    std::string others;
    for (size_t index = 1; index < candidates.size(); ++index) {
      others +=
          fmt::format("{}{}: {}", index == 1 ? "" : "; ", name_of(candidates[index]), numbers_of(candidates[index]));
    }
    choice.reason += fmt::format(
        " The others {} ({}).",
        best.price() > cheapest ? "send more, for the same cost within 3%, or cost more" : "cost more", others);
  } else if (possible.size() == 1) {
    choice.reason += " The sizes leave nothing else.";
  }
  choice.reason += impossible;
  choice.reason += " Cost is the time of one layer on the busiest rank, as the bytes that it could send meanwhile.";
  return choice;
}

}  // namespace ithaca
