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
  RunFolder inside(folder.path("file/run"), false);
  EXPECT_THROW(inside.begin(recipe_for(folder.path("file/run"))), FileError);
}

}  // namespace
}  // namespace ithaca
