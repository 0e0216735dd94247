#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "train/recipe_options.h"

namespace ithaca {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// A program of two commands, with every kind of argument that the completer tells apart.
class CompletionTest : public testing::Test {
 protected:
  CompletionTest() : app_("a program", "ithaca") {
    CLI::App* train = app_.add_subcommand("train", "trains");
    train->add_option("recipe", recipe_, "the recipe")->required();
    train->add_option("--set", assignments_, "an option")->type_name("OPTION")->allow_extra_args(false);
    train->add_option("--ranks", ranks_, "how many")->type_name("N");
    train->add_option("--trace", trace_, "where to")->type_name("FILE");
    train->add_option("--backend", backend_, "where")->type_name("NAME");
    train->add_flag("-q,--quiet", quiet_, "less");
    train->add_option("--secret", secret_)->group("");
    CLI::App* options = app_.add_subcommand("options", "lists");
    options->add_option("name", name_, "which");
    CLI::App* report = app_.add_subcommand("report", "compares");
    report->add_option("runs", runs_, "run folders");
    // Commands of commands: one that needs one, and one that takes a path as well.
    CLI::App* bench = app_.add_subcommand("bench", "measures");
    bench->require_subcommand(1);
    CLI::App* step = bench->add_subcommand("step", "whole steps");
    step->add_option("--model", recipe_, "which")->type_name("DIR");
    step->add_flag("--phases", quiet_, "by phase");
    bench->add_subcommand("gemm", "products");
    CLI::App* inspect = app_.add_subcommand("inspect", "shows");
    inspect->add_option("path", recipe_, "what");
    inspect->add_flag("--tensors", quiet_, "all");
    inspect->add_subcommand("data", "a recipe's data")->add_option("--samples", ranks_, "how many")->type_name("N");
  }

  std::vector<std::string> complete(const std::vector<std::string>& words) {
    completion_ = complete_words(app_, recipe_table().catalog(), words);
    std::vector<std::string> texts;
    for (const CompletionWord& word : completion_.words) texts.push_back(word.text);
    return texts;
  }

  CLI::App app_;
  Completion completion_;
  std::string recipe_, secret_, name_, trace_, backend_;
  std::vector<std::string> assignments_, runs_;
  std::optional<int64_t> ranks_;
  bool quiet_ = false;
};

TEST_F(CompletionTest, CommandsAndFlags) {
  EXPECT_THAT(complete({""}), ElementsAre("train", "options", "report", "bench", "inspect"));
  EXPECT_THAT(complete({"tr"}), ElementsAre("train"));
  EXPECT_EQ(completion_.words[0].meaning, "trains");
  EXPECT_THAT(complete({"--h"}), ElementsAre("--help"));
  EXPECT_THAT(complete({"train", "--"}), ElementsAre("--help", "--set", "--ranks", "--trace", "--backend", "--quiet"));
  EXPECT_THAT(complete({"train", "--q"}), ElementsAre("--quiet"));
  EXPECT_THAT(complete({"unknown", ""}), IsEmpty());
}

TEST_F(CompletionTest, CommandsOfCommands) {
  EXPECT_THAT(complete({"bench", ""}), ElementsAre("step", "gemm"));
  EXPECT_EQ(completion_.path, OptionPath::none);
  EXPECT_THAT(complete({"bench", "st"}), ElementsAre("step"));
  EXPECT_EQ(completion_.words[0].meaning, "whole steps");
  EXPECT_THAT(complete({"bench", "--"}), ElementsAre("--help"));
  EXPECT_THAT(complete({"bench", "step", "--"}), ElementsAre("--help", "--model", "--phases"));
  complete({"bench", "step", "--model", ""});
  EXPECT_EQ(completion_.path, OptionPath::folder);
  EXPECT_THAT(complete({"inspect", "da"}), ElementsAre("data"));
  EXPECT_EQ(completion_.path, OptionPath::file);
  EXPECT_THAT(complete({"inspect", "--tensors", "da"}), ElementsAre("data"));
  EXPECT_THAT(complete({"inspect", "data", "--s"}), ElementsAre("--samples"));
  EXPECT_THAT(complete({"inspect", "run", "da"}), Not(Contains("data")));
}

TEST_F(CompletionTest, RecipeOptionsAfterSet) {
  EXPECT_THAT(complete({"train", "run.yaml", "--set", "parallel.sc"}), ElementsAre("parallel.schedule="));
  EXPECT_THAT(complete({"train", "run.yaml", "--set", ""}), Contains("optim.learning_rate="));
  EXPECT_THAT(complete({"train", "run.yaml", "--set", "parallel.schedule="}),
              ElementsAre("parallel.schedule=auto", "parallel.schedule=ulysses", "parallel.schedule=ring",
                          "parallel.schedule=all_gather", "parallel.schedule=hybrid"));
  EXPECT_EQ(completion_.words[0].meaning, "the default");
  EXPECT_THAT(complete({"train", "run.yaml", "--set", "parallel.schedule=ri"}), ElementsAre("parallel.schedule=ring"));
  EXPECT_THAT(complete({"train", "run.yaml", "--set", "data.shuffle="}),
              ElementsAre("data.shuffle=true", "data.shuffle=false"));
  EXPECT_THAT(complete({"train", "run.yaml", "--set=parallel.schedule=ri"}),
              ElementsAre("--set=parallel.schedule=ring"));
  EXPECT_THAT(complete({"train", "run.yaml", "--set", "no.such="}), IsEmpty());
}

TEST_F(CompletionTest, Paths) {
  EXPECT_THAT(complete({"train", ""}), Not(Contains("train")));
  EXPECT_EQ(completion_.path, OptionPath::file);
  EXPECT_THAT(complete({"train", "run.yaml", "--set", "data.train=bo"}), IsEmpty());
  EXPECT_EQ(completion_.path, OptionPath::file);
  EXPECT_EQ(completion_.path_prefix, "data.train=");
  complete({"train", "run.yaml", "--set=model.path="});
  EXPECT_EQ(completion_.path, OptionPath::folder);
  EXPECT_EQ(completion_.path_prefix, "--set=model.path=");
  complete({"train", "--trace", ""});
  EXPECT_EQ(completion_.path, OptionPath::file);
  complete({"report", "one", "two", ""});
  EXPECT_EQ(completion_.path, OptionPath::folder);
}

TEST_F(CompletionTest, ValuesThatNothingIsKnownOf) {
  EXPECT_THAT(complete({"train", "run.yaml", "--ranks", ""}), IsEmpty());
  EXPECT_EQ(completion_.path, OptionPath::none);
  // After the flag's value the positional argument is still missing.
  EXPECT_THAT(complete({"train", "--ranks", "4", ""}), IsEmpty());
  EXPECT_EQ(completion_.path, OptionPath::file);
  // A flag without a value takes none.
  complete({"train", "--quiet", ""});
  EXPECT_EQ(completion_.path, OptionPath::file);
  EXPECT_THAT(complete({"options", "optim.lear"}), ElementsAre("optim.learning_rate"));
  EXPECT_THAT(complete({"options", "opt"}), Contains("optim"));
  EXPECT_THAT(complete({"train", "run.yaml", "--backend", ""}), Contains("cpu"));
}

TEST_F(CompletionTest, TheLinesThatScriptsRead) {
  std::ostringstream out;
  const std::vector<std::string> words = {"train", "run.yaml", "--set", "parallel.schedule=ri"};
  EXPECT_EQ(complete_command(app_, words, out), 0);
  const std::string lines = out.str();
  EXPECT_EQ(lines.substr(0, lines.find('\t')), "parallel.schedule=ring");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1);
  std::ostringstream paths;
  const std::vector<std::string> set = {"train", "run.yaml", "--set", "data.eval="};
  complete_command(app_, set, paths);
  EXPECT_EQ(paths.str(), ":file data.eval=\n");
  std::ostringstream nothing;
  complete_command(app_, {}, nothing);
  EXPECT_EQ(nothing.str(), "");
}

TEST_F(CompletionTest, OtherShellsAreRefused) {
  std::ostringstream out;
  EXPECT_THROW(completion_command({"tcsh"}, out), ConfigurationError);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace ithaca
