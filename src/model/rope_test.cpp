#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/error.h"

namespace ithaca {
namespace {

// Expected values: the closed forms of the papers, evaluated with 40 decimal digits.
using Expected = std::vector<std::pair<size_t, double>>;

void expect_frequencies(const RopeFrequencies& result, int64_t head_size, const Expected& expected, double bound) {
  ASSERT_EQ(result.inverse_frequencies.size(), static_cast<size_t>(head_size / 2));
  for (const auto& [pair, value] : expected) {
    EXPECT_LE(std::abs(result.inverse_frequencies[pair] - value), bound * value) << "pair " << pair;
  }
}

TEST(Rope, Standard) {
  RopeDescription rope;
  expect_frequencies(rope_frequencies(rope, 8, 4096, 1), 8, {{0, 1.0}, {1, 1e-1}, {2, 1e-2}, {3, 1e-3}}, 1e-7);
  rope.theta = 500000.0;
  const RopeFrequencies result = rope_frequencies(rope, 128, 8192, 1);
  expect_frequencies(result, 128,
                     {{0, 1.0},
                      {1, 8.1461723385654470e-1},
                      {2, 6.6360123769608844e-1},
                      {31, 1.7360467021768657e-3},
                      {32, 1.4142135623730950e-3},
                      {33, 1.1520427402627807e-3},
                      {62, 3.0138581521391711e-6},
                      {63, 2.4551407911316089e-6}},
                     1.2e-7);
  EXPECT_EQ(result.attention_factor, 1.0f);
}

TEST(Rope, Linear) {
  RopeDescription rope;
  rope.kind = RopeKind::linear;
  rope.factor = 2.5;
  expect_frequencies(rope_frequencies(rope, 8, 4096, 1), 8, {{0, 0.4}, {1, 0.04}, {2, 0.004}, {3, 0.0004}}, 1.2e-7);
}

TEST(Rope, DynamicGrowsWithTheSequence) {
  RopeDescription rope;
  rope.kind = RopeKind::dynamic;
  rope.factor = 2.0;
  rope.original_max_positions = 2048;
  const Expected within = {{0, 1.0},
                           {1, 3.1622776601683793e-1},
                           {2, 1e-1},
                           {3, 3.1622776601683793e-2},
                           {5, 3.1622776601683793e-3},
                           {7, 3.1622776601683793e-4}};
  expect_frequencies(rope_frequencies(rope, 16, 2048, 100), 16, within, 1.2e-7);
  expect_frequencies(rope_frequencies(rope, 16, 2048, 2048), 16, within, 1.2e-7);
  // theta itself is rounded to float32 and then to a power below 1: a few units in the last place.
  expect_frequencies(rope_frequencies(rope, 16, 2048, 8192), 16,
                     {{0, 1.0},
                      {1, 2.3948135600598382e-1},
                      {2, 5.7351319874464763e-2},
                      {3, 1.3734571852269751e-2},
                      {4, 3.2891738913431769e-3},
                      {5, 7.8769582363834248e-4},
                      {6, 1.8863846396516054e-4},
                      {7, 4.5175395145262562e-5}},
                     3e-7);
}

TEST(Rope, Llama3) {
  RopeDescription rope;
  rope.kind = RopeKind::llama3;
  rope.theta = 500000.0;
  rope.factor = 8.0;
  rope.original_max_positions = 8192;
  // Pairs up to 28 are kept, 29 to 34 blended, the rest divided by 8.
  expect_frequencies(rope_frequencies(rope, 128, 131072, 1), 128,
                     {{0, 1.0},
                      {1, 8.1461723385654470e-1},
                      {16, 3.7606030930863936e-2},
                      {27, 3.9422760301166565e-3},
                      {28, 3.2114459947525910e-3},
                      {29, 2.1665707635033586e-3},
                      {30, 1.3718935677611382e-3},
                      {31, 8.5675141291963208e-4},
                      {32, 5.2484616099295467e-4},
                      {33, 3.1269375038406513e-4},
                      {34, 1.7850781276799642e-4},
                      {35, 9.5562123539646830e-5},
                      {36, 7.7846552739324497e-5},
                      {40, 3.4281021959525915e-5},
                      {63, 3.0689259889145111e-7}},
                     4e-7);
  rope.original_max_positions = 64;
  expect_frequencies(rope_frequencies(rope, 8, 4096, 1), 8,
                     {{0, 1.0}, {1, 4.7007538663579920e-3}, {2, 1.7677669529663688e-4}, {3, 6.6478698711812358e-6}},
                     2e-7);
}

TEST(Rope, Yarn) {
  RopeDescription rope;
  rope.kind = RopeKind::yarn;
  rope.theta = 1e6;
  rope.factor = 4.0;
  rope.original_max_positions = 32768;
  const RopeFrequencies result = rope_frequencies(rope, 128, 131072, 1);
  expect_frequencies(result, 128,
                     {{0, 1.0},
                      {10, 1.1547819846894582e-1},
                      {20, 1.3335214321633240e-2},
                      {22, 8.6596432336006535e-3},
                      {23, 6.9783058485986634e-3},
                      {24, 5.3753214907901015e-3},
                      {25, 4.1317380225183928e-3},
                      {30, 1.0643609812470018e-3},
                      {35, 2.4625840690893868e-4},
                      {38, 9.2623017041294573e-5},
                      {39, 6.4903943208370288e-5},
                      {40, 4.4456985250973070e-5},
                      {41, 3.5825314255924069e-5},
                      {63, 3.1023444018792989e-7}},
                     4e-7);
  EXPECT_NEAR(result.attention_factor, 1.138629436111989, 1e-7);
}

TEST(Rope, YarnOptions) {
  RopeDescription rope;
  rope.kind = RopeKind::yarn;
  rope.factor = 16.0;
  rope.original_max_positions = 4096;
  expect_frequencies(rope_frequencies(rope, 32, 65536, 1), 32,
                     {{5, 5.6234132519034908e-2},
                      {6, 2.7387583306815428e-2},
                      {7, 1.3019545680642113e-2},
                      {8, 5.9821428571428571e-3},
                      {9, 2.6108704383837636e-3},
                      {10, 1.0446810127341967e-3},
                      {11, 3.4930488411478841e-4},
                      {12, 6.25e-5},
                      {15, 1.1114246312743268e-5}},
                     4e-7);
  EXPECT_NEAR(rope_frequencies(rope, 32, 65536, 1).attention_factor, 1.277258872223978, 1e-7);

  rope.truncate = false;
  rope.beta_fast = 16.0;
  rope.beta_slow = 2.0;
  expect_frequencies(rope_frequencies(rope, 32, 65536, 1), 32,
                     {{6, 3.1622776601683793e-2},
                      {7, 1.5199452616416798e-2},
                      {8, 5.9520240023529891e-3},
                      {9, 1.8876491845276242e-3},
                      {10, 2.4081103430080767e-4},
                      {11, 1.1114246312743268e-4}},
                     1e-6);  // the ramp is nearly over at pair 10, so the rounding of its position counts

  rope.factor = 40.0;
  rope.mscale = 0.707;
  rope.mscale_all_dimensions = 1.0;
  EXPECT_NEAR(rope_frequencies(rope, 32, 65536, 1).attention_factor, 0.92104235531633989, 1e-7);
  rope.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(rope, 32, 65536, 1).attention_factor, 1.25f);
}

TEST(Rope, OddSizesAreRefused) {
  EXPECT_THROW(rope_frequencies(RopeDescription{}, 7, 4096, 1), ContractError);
  EXPECT_THROW(rope_frequencies(RopeDescription{}, 0, 4096, 1), ContractError);
  EXPECT_THROW(rope_frequencies(RopeDescription{}, 8, 0, 1), ContractError);
}

}  // namespace
}  // namespace ithaca
