#include "train/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace ithaca {
namespace {

TEST(VerifyMeshes, EverySpellingIsRead) {
  const std::vector<VerifyMesh> meshes =
      parse_verify_meshes("1, ulysses:4,ring:4:zigzag,all_gather:3:striped,hybrid:2x4:contiguous");
  ASSERT_EQ(meshes.size(), 5u);
  EXPECT_EQ(meshes[0].ring_size * meshes[0].ulysses_size, 1);
  EXPECT_EQ(meshes[1].schedule, ScheduleKind::ulysses);
  EXPECT_EQ(meshes[1].ulysses_size, 4);
  EXPECT_EQ(meshes[2].ring_size, 4);
  EXPECT_EQ(meshes[2].layout, Layout::zigzag);
  EXPECT_EQ(meshes[3].schedule, ScheduleKind::all_gather);
  EXPECT_EQ(meshes[3].layout, Layout::striped);
  EXPECT_EQ(meshes[4].schedule, ScheduleKind::hybrid);
  EXPECT_EQ(meshes[4].ulysses_size, 2);
  EXPECT_EQ(meshes[4].ring_size, 4);
}

TEST(VerifyMeshes, WhatCannotBeReadIsNamed) {
  for (const char* text :
       {"", "2", "ring", "ring:", "ring:0", "ring:-2", "ring:x", "ring:2:spiral", "ring:2:zigzag:3", "hybrid:4",
        "hybrid:2x", "hybrid:2x2x2", "tree:2", "1,,1", "ring:99999999999", "hybrid:64x17"}) {
    try {
      parse_verify_meshes(text);
      ADD_FAILURE() << text;
    } catch (const ConfigurationError& error) {
      EXPECT_NE(std::string(error.what()).find("hybrid:2x4"), std::string::npos)
          << "no example of what works: " << error.what();
    }
  }
}

Recipe fixture_recipe(const std::string& model) {
  Recipe recipe;
  recipe.model.path = std::string(ITHACA_TEST_DATA) + "/models/" + model;
  const std::string data = ::testing::TempDir() + "/verify_" + model + ".jsonl";
  std::ofstream file(data);
  for (int line = 0; line < 6; ++line) {
    file << R"({"input_ids": [)";
    for (int token = 0; token < 41 + line; ++token) file << (token > 0 ? "," : "") << (token * 7 + line * 13) % 160;
    file << "]}\n";
  }
  recipe.data.train = {data};
  recipe.data.format = "tokens";
  recipe.data.max_length = {"64"};
  recipe.train.output_dir = ::testing::TempDir() + "/verify_run";
  recipe.train.max_steps = 2;
  recipe.train.gradient_accumulation_steps = 3;
  recipe.optim.learning_rate = 1e-3;
  return recipe;
}

class VerifyStages : public ::testing::TestWithParam<int> {};

TEST_P(VerifyStages, EveryScheduleAgreesWithOneRank) {
  Recipe recipe = fixture_recipe("qwen3");
  recipe.parallel.zero = GetParam();
  VerifyOptions options;
  options.meshes =
      parse_verify_meshes("1,ring:2,ring:3:zigzag,ring:4:striped,all_gather:3,ulysses:4,hybrid:2x2:zigzag");
  size_t seen = 0;
  const std::atomic<bool> stop = false;
  const std::vector<VerifyRow> rows = verify_recipe(
      recipe, options, [&](const VerifyRow&) { ++seen; }, stop);
  ASSERT_EQ(rows.size(), options.meshes.size());
  EXPECT_EQ(seen, rows.size());
  std::vector<int64_t> peaks;
  for (const VerifyRow& row : rows) {
    EXPECT_TRUE(row.agrees) << row.mesh.text << ": loss " << row.loss_difference << ", norm "
                            << row.grad_norm_difference << ", gradient " << row.gradient_difference << " of "
                            << row.gradient_name << ", later " << row.later_difference;
    EXPECT_EQ(row.losses.size(), 2u);
    EXPECT_GT(row.peak_memory_bytes, 0);
    EXPECT_EQ(row.bytes_sent > 0, row.mesh.text != "1");
    // A rank of several keeps a part of the optimizer state, or all of it as one rank does.
    if (row.mesh.text != "1" && row.mesh.text != "ulysses:4") continue;
    peaks.push_back(row.peak_memory_bytes);
  }
  const bool is_cut = GetParam() == 1;
  EXPECT_EQ(peaks.at(1) < peaks.at(0) * 9 / 10, is_cut) << peaks[0] << ' ' << peaks[1];
}

INSTANTIATE_TEST_SUITE_P(Zero, VerifyStages, ::testing::Values(0, 1));

TEST(Verify, AMeshThatDoesNotFitTheHeadsIsFoundBeforeAnyRuns) {
  const Recipe recipe = fixture_recipe("qwen3");  // 4 query heads
  VerifyOptions options;
  options.meshes = parse_verify_meshes("ring:2,ulysses:5");
  size_t seen = 0;
  const std::atomic<bool> stop = false;
  try {
    verify_recipe(
        recipe, options, [&](const VerifyRow&) { ++seen; }, stop);
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_NE(std::string(error.what()).find("ulysses:5"), std::string::npos) << error.what();
  }
  EXPECT_EQ(seen, 0u);
}

TEST(Verify, ADifferenceBeyondTheBoundIsSeen) {
  const Recipe recipe = fixture_recipe("llama-plain");
  VerifyOptions options;
  options.meshes = parse_verify_meshes("ring:3");
  options.bound = 1e-12;  // float32 cannot do that
  const std::atomic<bool> stop = false;
  const std::vector<VerifyRow> rows = verify_recipe(
      recipe, options, [](const VerifyRow&) {}, stop);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0].agrees);  // the reference with itself
  EXPECT_FALSE(rows[1].agrees);
}

}  // namespace
}  // namespace ithaca
