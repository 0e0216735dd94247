#include "cli/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/test_folder.h"

namespace ithaca {
namespace {

Recipe recipe_for(const std::string& output) {
  Recipe recipe;
  recipe.model.path = "m";
  recipe.data.train = {"t"};
  recipe.train.output_dir = output;
  return recipe;
}

TEST(RunFolder, RefusesAnotherRun) {
  const TestFolder folder;
  for (const char* name : {"a/config.yaml", "b/metrics.jsonl", "c/log.txt", "d/export/config.json"}) {
    folder.write(name, "x");
    const std::string run = folder.path(std::string(name, 1));
    EXPECT_THROW(RunFolder(run, false), ConfigurationError) << name;
    EXPECT_NO_THROW(RunFolder(run, true)) << name;
    EXPECT_TRUE(folder.has(name)) << "nothing is removed before the run begins";
  }
}

TEST(RunFolder, OtherFilesDoNotMatterAndStay) {
  const TestFolder folder;
  folder.write("run/notes.txt", "mine");
  folder.write("run/config.yaml", "old");
  folder.write("run/metrics.jsonl", "old");
  folder.write("run/export/config.json", "old");
  RunFolder run(folder.path("run"), true);
  run.begin(recipe_for(folder.path("run")));
  run.log("hello");
  EXPECT_EQ(folder.read("run/notes.txt"), "mine");
  EXPECT_THAT(folder.read("run/config.yaml"), testing::HasSubstr("output_dir: "));
  EXPECT_FALSE(folder.has("run/metrics.jsonl"));
  EXPECT_FALSE(folder.has("run/export"));
  EXPECT_FALSE(folder.has("run/config.yaml.partial"));
  EXPECT_THAT(folder.read("run/log.txt"), testing::HasSubstr(" info hello\n"));
}

TEST(RunFolder, AnExportFolderThatNoRunWroteIsLeftAlone) {
  const TestFolder folder;
  folder.write("run/export/thesis.tex", "years of work");
  RunFolder run(folder.path("run"), true);
  EXPECT_THROW(run.begin(recipe_for(folder.path("run"))), ConfigurationError);
  EXPECT_TRUE(folder.has("run/export/thesis.tex"));
}

TEST(RunFolder, PlacesThatCannotBeUsed) {
  const TestFolder folder;
  folder.write("file", "x");
  EXPECT_THROW(RunFolder(folder.path("file"), false), ConfigurationError);
  EXPECT_THROW(RunFolder(folder.path("file/run"), false), ConfigurationError);
  EXPECT_THROW(RunFolder("/proc/ithaca/run", false), ConfigurationError);
}

TEST(RunFolder, WhatDidNotGetToAStepLeavesTheFolderAsItWas) {
  const TestFolder folder;
  {
    RunFolder run(folder.path("deep/er/run"), false);
    run.begin(recipe_for(folder.path("deep/er/run")));
    run.log("hello");
    EXPECT_TRUE(folder.has("deep/er/run/config.yaml"));
  }
  EXPECT_FALSE(folder.has("deep"));
  folder.write("run/notes.txt", "mine");
  {
    RunFolder run(folder.path("run"), false);
    run.begin(recipe_for(folder.path("run")));
  }
  EXPECT_FALSE(folder.has("run/config.yaml"));
  EXPECT_TRUE(folder.has("run/notes.txt"));
}

TEST(RunFolder, TheEarlierRunGoesWhenTheNewOneStays) {
  const TestFolder folder;
  folder.write("run/config.yaml", "old");
  folder.write("run/metrics.jsonl", "old");
  folder.write("run/export/config.json", "old");
  {
    RunFolder run(folder.path("run"), true);
    run.begin(recipe_for(folder.path("run")));
    EXPECT_TRUE(run.has_earlier_run());
    EXPECT_EQ(folder.read("run/.earlier-run/metrics.jsonl"), "old");
  }
  EXPECT_EQ(folder.read("run/config.yaml"), "old");
  EXPECT_EQ(folder.read("run/export/config.json"), "old");
  EXPECT_FALSE(folder.has("run/.earlier-run"));
  {
    RunFolder run(folder.path("run"), true);
    run.begin(recipe_for(folder.path("run")));
    run.keep();
  }
  EXPECT_THAT(folder.read("run/config.yaml"), testing::HasSubstr("output_dir"));
  EXPECT_FALSE(folder.has("run/metrics.jsonl"));
  EXPECT_FALSE(folder.has("run/.earlier-run"));
}

TEST(RunFolder, TwoRunsAtOnceAreRefused) {
  const TestFolder folder;
  RunFolder first(folder.path("run"), true);
  first.begin(recipe_for(folder.path("run")));
  first.keep();
  RunFolder second(folder.path("run"), true);
  EXPECT_THROW(second.begin(recipe_for(folder.path("run"))), ConfigurationError);
  EXPECT_TRUE(folder.has("run/config.yaml"));
}

}  // namespace
}  // namespace ithaca
