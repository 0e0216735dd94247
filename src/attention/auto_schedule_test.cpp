#include "attention/auto_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

AutoScheduleRequest request_of(int64_t query_heads, int64_t key_heads, int64_t tokens, int cp_size) {
  AutoScheduleRequest request;
  request.heads = {.query_heads = query_heads, .key_heads = key_heads, .key_size = 128, .value_size = 128};
  request.sequences = {Documents::single(tokens)};
  request.preferred_attention_rows = int64_t{1} << 17;
  request.cp_size = cp_size;
  return request;
}

// `count` documents of `length` tokens.
Documents equal_documents(int64_t count, int64_t length) {
  return Documents(std::vector<int64_t>(static_cast<size_t>(count), length));
}

std::string error_of(const AutoScheduleRequest& request) {
  try {
    choose_schedule(request);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "no ConfigurationError";
}

TEST(AutoSchedule, OneRankExchangesNothing) {
  const AutoScheduleChoice choice = choose_schedule(request_of(32, 8, 8192, 1));
  EXPECT_EQ(choice.sizes.ulysses_size * choice.sizes.ring_size, 1);
  EXPECT_THAT(choice.reason, HasSubstr("one rank"));
}

TEST(AutoSchedule, EvenHeadsOnShortSequencesTakeUlysses) {
  // 32/32 heads: keys and values are as large as queries, a ring would send four times as much and cannot hide it.
  const AutoScheduleChoice choice = choose_schedule(request_of(32, 32, 8192, 8));
  EXPECT_EQ(choice.sizes.kind, ScheduleKind::ulysses);
  EXPECT_EQ(choice.sizes.ulysses_size, 8);
  EXPECT_THAT(choice.reason, HasSubstr("ulysses over 8 ranks"));
  EXPECT_THAT(choice.reason, HasSubstr("ring over 8 ranks"));
  // What is minimised is what is said, of the choice and of the others.
  EXPECT_THAT(choice.reason,
              MatchesRegex("ulysses over 8 ranks: cost [0-9.]+ [A-Za-z]+ \\(attention [0-9.]+ [A-Za-z]+, "
                           "waiting [0-9.]+ [A-Za-z]+\\), .* The others cost more .*"));
}

TEST(AutoSchedule, FewHeadsNeedARing) {
  const AutoScheduleChoice choice = choose_schedule(request_of(4, 2, 65536, 16));
  EXPECT_LE(choice.sizes.ulysses_size, 4);
  EXPECT_EQ(choice.sizes.ulysses_size * choice.sizes.ring_size, 16);
  EXPECT_GT(choice.sizes.ring_size, 1);
  EXPECT_EQ(choice.layout, Layout::zigzag);
  EXPECT_THAT(choice.reason, HasSubstr("ulysses_size above 4"));
}

TEST(AutoSchedule, UnevenHeadsOnLongSequencesAreBalancedByARing) {
  // 28 heads on 8 ranks: ulysses alone gives the busiest rank 4 where the mean is 3.5; at a million tokens attention is
  // all that counts, and 4 x 2 is even.
  const AutoScheduleChoice choice = choose_schedule(request_of(28, 4, 1 << 20, 8));
  EXPECT_EQ(28 % choice.sizes.ulysses_size, 0);
  EXPECT_GT(choice.sizes.ring_size, 1);
  EXPECT_THAT(choice.reason, HasSubstr("14% above the mean"));
}

TEST(AutoSchedule, LayoutFollowsDocumentsAndMask) {
  AutoScheduleRequest request = request_of(32, 8, 65536, 8);
  request.kind = ScheduleKind::ring;
  EXPECT_EQ(choose_schedule(request).layout, Layout::zigzag);
  request.mask.window = 4096;
  EXPECT_EQ(choose_schedule(request).layout, Layout::contiguous);
  request.mask.window = 0;
  // A document ends where a shard does: nothing is sent.
  request.sequences = {equal_documents(32, 2048)};
  EXPECT_EQ(choose_schedule(request).layout, Layout::contiguous);
  EXPECT_THAT(choose_schedule(request).reason, HasSubstr(" 0 B sent"));
  // Long documents among short ones: no rank may have all of one.
  request.sequences = {Documents(std::vector<int64_t>{40000, 500, 20000, 4000, 536, 500})};
  EXPECT_EQ(choose_schedule(request).layout, Layout::striped);
  // Nearly one document.
  request.sequences = {Documents(std::vector<int64_t>{65000, 536})};
  EXPECT_EQ(choose_schedule(request).layout, Layout::zigzag);
  request.sequences = {Documents::single(65536)};
  request.mask.causal = false;
  EXPECT_EQ(choose_schedule(request).layout, Layout::contiguous);
  request.layout = Layout::striped;
  EXPECT_EQ(choose_schedule(request).layout, Layout::striped);
  EXPECT_THAT(choose_schedule(request).reason, HasSubstr("as configured"));
}

// Where one rank would have a long document's end for itself, a contiguous ring is dear however little it sends.
TEST(AutoSchedule, DocumentsOfDifferentLengthsAreNotBalancedByChance) {
  AutoScheduleRequest request = request_of(32, 8, 0, 8);
  std::vector<int64_t> lengths(32, 2048);
  lengths.push_back(65536);
  request.sequences = {Documents(lengths)};
  EXPECT_EQ(choose_schedule(request).sizes.kind, ScheduleKind::ulysses);
  // The same tokens in documents of one length each keep to their rank.
  request.sequences = {equal_documents(64, 2048)};
  EXPECT_EQ(choose_schedule(request).sizes.kind, ScheduleKind::ring);
}

// As measured and predicted on H200s (docs/benchmarks.md): the best, or within 3% of it.
TEST(AutoSchedule, ChoosesWhatIsFastestOnGpus) {
  for (const int64_t tokens : {8192, 32768, 65536, 131072, 524288}) {
    EXPECT_EQ(schedule_text(choose_schedule(request_of(32, 8, tokens, 2))), "ring, zigzag") << tokens;
  }
  EXPECT_THAT(choose_schedule(request_of(32, 8, 65536, 2)).reason,
              HasSubstr("The others send more, for the same cost within 3%, or cost more (ulysses over 2 ranks"));
  EXPECT_EQ(schedule_text(choose_schedule(request_of(32, 8, 65536, 8))), "ulysses");
  // Calls on all of so long a sequence run slowly.
  EXPECT_GT(choose_schedule(request_of(32, 8, 524288, 8)).sizes.ring_size, 1);
}

TEST(AutoSchedule, NoDataIsNoMistake) {
  AutoScheduleRequest request = request_of(32, 8, 0, 4);
  for (const std::vector<Documents>& sequences :
       {std::vector<Documents>{}, {Documents{}}, {Documents::single(1)}, {Documents::single(7)}}) {
    request.sequences = sequences;
    const AutoScheduleChoice choice = choose_schedule(request);
    EXPECT_EQ(choice.sizes.ulysses_size * choice.sizes.ring_size, 4);
    EXPECT_THAT(choice.reason, Not(HasSubstr("nan")));
  }
}

TEST(AutoSchedule, ShortReachMakesTheRingCheap) {
  // A window of a fraction of a shard: one hop of one shard, against a whole exchange of all heads.
  AutoScheduleRequest request = request_of(32, 2, 65536, 8);
  request.mask.window = 1024;
  EXPECT_EQ(choose_schedule(request).sizes.kind, ScheduleKind::ring);
}

TEST(AutoSchedule, FixedSizesAreRespected) {
  AutoScheduleRequest request = request_of(32, 8, 65536, 8);
  request.ulysses_size = 2;
  AutoScheduleChoice choice = choose_schedule(request);
  EXPECT_EQ(choice.sizes.kind, ScheduleKind::hybrid);
  EXPECT_EQ(choice.sizes.ulysses_size, 2);
  EXPECT_EQ(choice.sizes.ring_size, 4);
  request.ulysses_size.reset();
  request.ring_size = 8;
  EXPECT_EQ(choose_schedule(request).sizes.kind, ScheduleKind::ring);
  request.ring_size = 1;
  EXPECT_EQ(choose_schedule(request).sizes.kind, ScheduleKind::ulysses);
  request.ring_size.reset();
  request.kind = ScheduleKind::hybrid;
  choice = choose_schedule(request);
  EXPECT_GT(choice.sizes.ulysses_size, 1);
  EXPECT_GT(choice.sizes.ring_size, 1);
  request.kind = ScheduleKind::all_gather;
  EXPECT_EQ(choose_schedule(request).sizes.ring_size, 8);
  request.kind = ScheduleKind::ulysses;
  EXPECT_EQ(choose_schedule(request).sizes.ulysses_size, 8);
}

TEST(AutoSchedule, MistakesAreNamedWithWhatWorks) {
  AutoScheduleRequest request = request_of(5, 1, 65536, 8);
  request.ulysses_size = 3;
  EXPECT_THAT(error_of(request), ::testing::AllOf(HasSubstr("ulysses_size"), HasSubstr("1, 2, 4, 8")));
  request.ulysses_size = 2;
  request.ring_size = 2;
  EXPECT_THAT(error_of(request), HasSubstr("ring_size 4 would fit"));
  request.ulysses_size = 8;
  request.ring_size.reset();
  EXPECT_THAT(error_of(request), HasSubstr("hybrid with ulysses_size 4 and ring_size 2"));
  request.ulysses_size.reset();
  request.kind = ScheduleKind::ulysses;
  EXPECT_THAT(error_of(request), HasSubstr("hybrid with ulysses_size 4 and ring_size 2"));
  request.kind = ScheduleKind::ring;
  request.ulysses_size = 2;
  EXPECT_THAT(error_of(request), HasSubstr("hybrid"));
}

}  // namespace
}  // namespace ithaca
