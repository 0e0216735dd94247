// Which heads each ulysses rank computes, and in which groups they are exchanged.
//
// Query heads are dealt contiguously and as evenly as can be: every rank gets floor(Hq / P) or ceil(Hq / P). Among the
// even deals the one that splits the fewest key groups is taken (the query heads of one key head are a group), larger
// parts first: 28/4 heads on 8 ranks give 4 3 4 3 4 3 4 3. A key head goes to every rank that has a query head of its
// group, so splitting few groups moves few copies.
//
// A rank's heads are exchanged and computed in groups, so that the exchange of one group hides behind the attention of
// another: kLargestHeadGroups at most, and so few that calls keep the size that the backend likes (head_group_count).
// Groups are cut between key heads; ranks that hold one key head only cut their query heads instead where
// `may_cut_key_heads`. Then the key head is exchanged once, with the first group that needs it, and its gradient with
// the last. Thread-safety: immutable values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ithaca {

inline constexpr int kLargestHeadGroups = 4;

struct HeadRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  // The same heads counted from `origin`.
  HeadRange from(int64_t origin) const { return {begin - origin, end - origin}; }
  bool operator==(const HeadRange&) const = default;
};

// One exchange group of one rank, in heads of the whole model.
struct HeadGroup {
  HeadRange query;        // computed in this group
  HeadRange key;          // needed by them
  HeadRange key_arrives;  // first needed by this group
  HeadRange key_leaves;   // last needed by this group: their gradients are complete
};

// Groups of heads for calls of `rows` (tokens x query heads) in all: as many as leave each the size from which the
// backend runs at full speed (Backend::preferred_attention_rows), at least one and at most `most`.
int head_group_count(int64_t rows, int64_t preferred_rows, int most);

class HeadDeal {
 public:
  // Throws ConfigurationError when there are more ranks than query heads, and ContractError when query heads are not a
  // multiple of key heads.
  HeadDeal(int64_t query_heads, int64_t key_heads, int ranks, bool may_cut_key_heads,
           int most_groups = kLargestHeadGroups);

  int ranks() const { return static_cast<int>(query_.size()); }
  // Of the rank that has most.
  int64_t most_query_heads() const;
  HeadRange query_heads(int rank) const { return query_[static_cast<size_t>(rank)]; }
  // The key heads that the rank's query heads use.
  HeadRange key_heads(int rank) const { return key_heads_of(query_heads(rank)); }
  HeadRange key_heads_of(const HeadRange& query) const;
  // C: key heads summed over the ranks, copies included.
  int64_t key_head_copies() const;
  // Whether a lower rank holds this rank's first key head too.
  bool shares_first_key_head(int rank) const;

  int groups() const { return groups_; }
  HeadGroup group(int rank, int group) const;
  // Whether any rank gets or gives key heads in the group.
  bool any_key_arrives(int group) const;
  bool any_key_leaves(int group) const;

 private:
  HeadRange group_queries(int rank, int group) const;

  int64_t group_size_;  // query heads of one key head
  std::vector<HeadRange> query_;
  int groups_ = 1;
  bool cut_query_heads_ = false;
};

}  // namespace ithaca
