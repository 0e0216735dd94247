#include "attention/head_deal.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/layout.h"
#include "base/error.h"

namespace ithaca {
namespace {

// Sizes of an even deal with the most cuts between groups of `group_size`, larger parts first where it makes no
// difference.
std::vector<int64_t> even_deal(int64_t heads, int64_t group_size, int ranks) {
  const int64_t small = heads / ranks;
  const auto larger = static_cast<size_t>(heads % ranks);  // this many ranks get small + 1
  const auto count = static_cast<size_t>(ranks);
  // best[dealt][used]: most cuts on group borders behind the first `dealt` ranks, of which `used` are larger.
  std::vector<std::vector<int64_t>> best(count + 1, std::vector<int64_t>(larger + 1, -1));
  const auto on_border = [&](size_t dealt, size_t used) {
    return (static_cast<int64_t>(dealt) * small + static_cast<int64_t>(used)) % group_size == 0 ? 1 : 0;
  };
  best[count][larger] = 0;
  for (size_t dealt = count; dealt-- > 0;) {
    for (size_t used = 0; used <= larger; ++used) {
      int64_t behind = best[dealt + 1][used];
      if (used < larger) behind = std::max(behind, best[dealt + 1][used + 1]);
      best[dealt][used] = behind < 0 ? -1 : behind + on_border(dealt, used);
    }
  }
  std::vector<int64_t> sizes;
  size_t used = 0;
  for (size_t dealt = 0; dealt < count; ++dealt) {
    const bool take_larger = used < larger && best[dealt + 1][used + 1] >= best[dealt + 1][used];
    if (take_larger) ++used;
    sizes.push_back(small + (take_larger ? 1 : 0));
  }
  return sizes;
}

}  // namespace

int head_group_count(int64_t rows, int64_t preferred_rows, int most) {
  return static_cast<int>(std::clamp<int64_t>(rows / preferred_rows, 1, most));
}

HeadDeal::HeadDeal(int64_t query_heads, int64_t key_heads, int ranks, bool may_cut_key_heads, int most_groups)
    : group_size_(key_heads > 0 ? query_heads / key_heads : 0) {
  require(key_heads > 0 && query_heads > 0 && query_heads % key_heads == 0,
          fmt::format("{} query heads are not a positive multiple of {} key heads", query_heads, key_heads));
  require(ranks >= 1, fmt::format("heads cannot be dealt to {} ranks", ranks));
  if (ranks > query_heads) {
    throw ConfigurationError(
        fmt::format("{} ulysses ranks cannot share {} query heads: each needs at least one", ranks, query_heads));
  }
  int64_t begin = 0;
  for (const int64_t size : even_deal(query_heads, group_size_, ranks)) {
    query_.push_back({begin, begin + size});
    begin += size;
  }
  if (ranks == 1) return;
  int64_t most_keys = 0;
  for (const HeadRange& query : query_) most_keys = std::max(most_keys, key_heads_of(query).count());
  cut_query_heads_ = may_cut_key_heads && most_keys == 1;
  groups_ = static_cast<int>(std::min<int64_t>(most_groups, cut_query_heads_ ? most_query_heads() : most_keys));
}

int64_t HeadDeal::most_query_heads() const {
  int64_t most = 0;
  for (const HeadRange& query : query_) most = std::max(most, query.count());
  return most;
}

HeadRange HeadDeal::key_heads_of(const HeadRange& query) const {
  if (query.count() == 0) return {query.begin / group_size_, query.begin / group_size_};
  return {query.begin / group_size_, (query.end - 1) / group_size_ + 1};
}

int64_t HeadDeal::key_head_copies() const {
  int64_t copies = 0;
  for (const HeadRange& query : query_) copies += key_heads_of(query).count();
  return copies;
}

bool HeadDeal::shares_first_key_head(int rank) const {
  return rank > 0 && key_heads(rank - 1).end > key_heads(rank).begin;
}

HeadRange HeadDeal::group_queries(int rank, int group) const {
  const HeadRange all = query_heads(rank);
  // Where `count` things are cut into the groups: rounded up, so that ranks with few heads start at once.
  const auto cut = [&](int64_t count, int part) { return count - part_begin(count, groups_ - part, groups_); };
  if (cut_query_heads_) return {all.begin + cut(all.count(), group), all.begin + cut(all.count(), group + 1)};
  const HeadRange keys = key_heads(rank);
  const auto query_of = [&](int64_t key) { return std::clamp(key * group_size_, all.begin, all.end); };
  return {query_of(keys.begin + cut(keys.count(), group)), query_of(keys.begin + cut(keys.count(), group + 1))};
}

HeadGroup HeadDeal::group(int rank, int group) const {
  require(0 <= group && group < groups_, fmt::format("head group {} of {} does not exist", group, groups_));
  HeadGroup result;
  result.query = group_queries(rank, group);
  result.key = key_heads_of(result.query);
  if (result.query.count() == 0) {
    result.key_arrives = result.key_leaves = result.key;
    return result;
  }
  const HeadRange all = query_heads(rank);
  const bool first_seen = result.query.begin == all.begin || result.query.begin % group_size_ == 0;
  const bool last_seen = result.query.end == all.end || result.query.end % group_size_ == 0;
  result.key_arrives = {result.key.begin + (first_seen ? 0 : 1), result.key.end};
  result.key_leaves = {result.key.begin, result.key.end - (last_seen ? 0 : 1)};
  return result;
}

bool HeadDeal::any_key_arrives(int group_index) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (group(rank, group_index).key_arrives.count() > 0) return true;
  }
  return false;
}

bool HeadDeal::any_key_leaves(int group_index) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (group(rank, group_index).key_leaves.count() > 0) return true;
  }
  return false;
}

}  // namespace ithaca
