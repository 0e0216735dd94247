#include "cli/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

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

// A run that is killed while another is set aside, put back or given up leaves what the next one can go on from.
TEST(RunFolder, WhereverTheProgramWasKilledTheEarlierRunComesBack) {
  const std::vector<std::string> files = {"config.yaml", "metrics.jsonl", "export/config.json", "trace.json"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> moments = {
      // Set aside: some files have moved; all have.
      {".earlier-run.moving", {"config.yaml"}},
      {".earlier-run.moving", {"config.yaml", "metrics.jsonl", "export/config.json", "trace.json"}},
      {".earlier-run", {"config.yaml", "metrics.jsonl", "export/config.json", "trace.json"}},
      // Put back: some files have moved.
      {".earlier-run.moving", {"export/config.json", "trace.json"}},
  };
  for (const auto& [place, moved] : moments) {
    const TestFolder folder;
    const std::string run = folder.path("run");
    if (place == ".earlier-run") {
      folder.write("run/config.yaml", "killed");
      folder.write("run/log.txt", "killed");
    }
    for (const std::string& file : files) {
      const bool is_moved = std::find(moved.begin(), moved.end(), file) != moved.end();
      folder.write((is_moved ? "run/" + place + "/" : "run/") + file, "earlier");
    }
    EXPECT_THAT(earlier_run_text(run), testing::HasSubstr("in " + run + "/" + place + " until"));
    try {
      RunFolder(run, false);
      ADD_FAILURE();
    } catch (const ConfigurationError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("put back just now"));
    }
    for (const std::string& file : files) EXPECT_EQ(folder.read("run/" + file), "earlier") << place << file;
    EXPECT_FALSE(folder.has("run/log.txt"));
    EXPECT_EQ(earlier_run_text(run), "");
  }
}

TEST(RunFolder, ARunThatWasGivenUpNeverComesBack) {
  const TestFolder folder;
  folder.write("run/.earlier-run.replaced/config.yaml", "older");
  folder.write("run/config.yaml", "earlier");
  {
    RunFolder run(folder.path("run"), true);
    run.begin(recipe_for(folder.path("run")));
  }
  EXPECT_EQ(folder.read("run/config.yaml"), "earlier");
  EXPECT_FALSE(folder.has("run/.earlier-run.replaced"));
}

TEST(RunFolder, TracesAndTheReportOfTheEarlierRunGoWithIt) {
  const TestFolder folder;
  const std::string trace = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n]}\n";
  folder.write("run/config.yaml", "old");
  folder.write("run/report.html", "<!DOCTYPE html>\n<title>run &middot; Ithaca report</title>");
  folder.write("run/first steps.json", trace);
  folder.write("run/notes.json", "{}");
  folder.write("run/page.html", "<!DOCTYPE html>\n<title>mine</title>");
  {
    RunFolder run(folder.path("run"), true);
    run.begin(recipe_for(folder.path("run")));
    EXPECT_FALSE(folder.has("run/report.html"));
  }
  EXPECT_TRUE(folder.has("run/report.html"));
  EXPECT_EQ(folder.read("run/first steps.json"), trace);
  RunFolder run(folder.path("run"), true);
  run.begin(recipe_for(folder.path("run")));
  run.keep();
  EXPECT_FALSE(folder.has("run/report.html"));
  EXPECT_FALSE(folder.has("run/first steps.json"));
  EXPECT_TRUE(folder.has("run/notes.json"));
  EXPECT_TRUE(folder.has("run/page.html"));
}

TEST(RunFolder, IsMadeWhenTheRunBegins) {
  const TestFolder folder;
  RunFolder run(folder.path("deep/run"), false);
  EXPECT_FALSE(folder.has("deep")) << "who ends the program at once finds nothing";
  // Another run that came meanwhile.
  folder.write("deep/run/config.yaml", "theirs");
  EXPECT_THROW(run.begin(recipe_for(folder.path("deep/run"))), ConfigurationError);
  EXPECT_EQ(folder.read("deep/run/config.yaml"), "theirs");
}

TEST(RunFolder, NeedsAFolderOfItsOwn) {
  EXPECT_THROW(RunFolder("/", true), ConfigurationError);
  for (const char* path : {".", "..", "./", "../."}) EXPECT_THROW(RunFolder(path, true), ConfigurationError) << path;
}

TEST(RunFolder, KnowsWhatBelongsToARun) {
  const TestFolder folder;
  const std::string run = folder.path("run");
  EXPECT_EQ(run_entry_at(run, run + "/export"), "export");
  EXPECT_EQ(run_entry_at(run, run + "/./export/../export/model.safetensors"), "export");
  EXPECT_EQ(run_entry_at(run + "/", run + "/.earlier-run/metrics.jsonl"), ".earlier-run");
  EXPECT_EQ(run_entry_at(run, run + "/trace.json"), "");
  EXPECT_EQ(run_entry_at(run, run + "/exports/x"), "");
  EXPECT_EQ(run_entry_at(run, folder.path("other/metrics.jsonl")), "");
  // Links that lead there, and from there, also to what is not there yet.
  std::filesystem::create_directories(run);
  std::filesystem::create_directories(folder.path("big disk"));
  std::filesystem::create_symlink("run/metrics.jsonl", folder.path("link"));
  std::filesystem::create_symlink(folder.path("big disk"), run + "/export");
  EXPECT_EQ(run_entry_at(run, folder.path("link")), "metrics.jsonl");
  EXPECT_EQ(run_entry_at(run, folder.path("big disk/model.safetensors")), "export");
}

}  // namespace
}  // namespace ithaca
