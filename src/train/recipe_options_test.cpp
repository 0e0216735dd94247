#include "train/recipe_options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "train/foreign_options.h"

namespace ithaca {
namespace {

constexpr const char* kSmallest = "model: {path: m}\ndata: {train: t.txt}\ntrain: {output_dir: out}\n";

Recipe parse(const std::string& parallel, const RecipeOverrides& overrides = {}) {
  return parse_recipe(kSmallest + parallel, "run.yaml", "recipes", overrides);
}

std::string error_of(const std::string& rest, const RecipeOverrides& overrides = {}) {
  try {
    parse(rest, overrides);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "no error";
}

std::string set_error(const std::vector<std::string>& assignments) {
  return error_of("", {assignments, {}, {}});
}

TEST(RecipeOptions, SmallestRecipeHasDefaults) {
  const Recipe recipe = parse("");
  EXPECT_EQ(recipe.model.path, "recipes/m");
  EXPECT_THAT(recipe.data.train, testing::ElementsAre("recipes/t.txt"));
  EXPECT_EQ(recipe.train.output_dir, "out");
  EXPECT_EQ(recipe.parallel.sp_size, 1);
  EXPECT_EQ(recipe.optim.learning_rate, 1e-5);
  EXPECT_EQ(recipe.memory.recompute, "attention");
}

TEST(RecipeOptions, PathsAreRelativeToWhereTheyAreWritten) {
  const std::string text =
      "model: {path: ../models/x}\ndata: {train: [a.txt, /abs/b.txt], eval: [sub/../e.txt]}\ntrain: {output_dir: "
      "./out}\n";
  const Recipe recipe = parse_recipe(text, "run.yaml", "deep/recipes");
  EXPECT_EQ(recipe.model.path, "deep/models/x");
  EXPECT_THAT(recipe.data.train, testing::ElementsAre("deep/recipes/a.txt", "/abs/b.txt"));
  EXPECT_THAT(recipe.data.eval, testing::ElementsAre("deep/recipes/e.txt"));
  EXPECT_EQ(recipe.train.output_dir, "out");
  const Recipe set = parse_recipe(text, "run.yaml", "deep/recipes", {{"model.path=y", "data.train=[c.txt]"}, {}, {}});
  EXPECT_EQ(set.model.path, "y");
  EXPECT_THAT(set.data.train, testing::ElementsAre("c.txt"));
  EXPECT_THAT(set_error({"model.path=~/m"}), testing::HasSubstr("the tilde means a home folder only to a shell"));
}

TEST(RecipeOptions, LaterAssignmentsWinOverEarlierOnesAndTheFile) {
  const Recipe recipe = parse("optim: {learning_rate: 1e-3}\n",
                              {{"optim.learning_rate=1e-4", "optim.learning_rate=1e-5", "train.seed=7"}, {}, {}});
  EXPECT_EQ(recipe.optim.learning_rate, 1e-5);
  EXPECT_EQ(recipe.train.seed, 7);
}

TEST(RecipeOptions, RequiredOptions) {
  try {
    parse_recipe("model: {path: m}\n", "run.yaml", "");
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("run.yaml: data.train is missing."));
  }
}

TEST(RecipeOptions, ForeignSpellingsPointToOurs) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"parallel: {sequence_parallel_size: 4}", "run.yaml:4:12: \"sequence_parallel_size\" is parallel.sp_size here"},
      {"parallel: {context_parallel_size: 4}", "run.yaml:4:12: \"context_parallel_size\" is parallel.sp_size here"},
      {"parallel: {cp_size: 4}", "run.yaml:4:12: \"cp_size\" is parallel.sp_size here"},
      {"optim: {lr: 4}", "run.yaml:4:9: \"lr\" is optim.learning_rate here"},
      {"per_device_train_batch_size: 4",
       "run.yaml:4:1: \"per_device_train_batch_size\" is train.micro_batch_size here"},
      {"num_epochs: 4", "run.yaml:4:1: \"num_epochs\" is train.num_train_epochs here"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(error_of(text), testing::StartsWith(expected));
  }
}

// A name that points to nothing would send people nowhere.
TEST(RecipeOptions, ForeignNamesPointToOptionsThatExistOrAreExplained) {
  const OptionCatalog& catalog = recipe_table().catalog();
  for (const ForeignOption& foreign : catalog.foreign()) {
    if (foreign.ours.empty() || foreign.ours.starts_with("the section ") ||
        foreign.ours.find(" on the command line") != std::string::npos) {
      continue;
    }
    std::istringstream words(foreign.ours);
    for (std::string word; words >> word;) {
      const size_t dot = word.find('.');
      if (dot == std::string::npos) continue;
      const std::string section = word.substr(0, dot);
      const std::string name = word.substr(dot + 1);
      const bool is_absent =
          std::any_of(catalog.absent().begin(), catalog.absent().end(), [&](const AbsentOption& absent) {
            const std::string_view pattern = absent.name;
            const bool fits =
                pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
            return absent.section == section && fits;
          });
      EXPECT_TRUE(is_absent || catalog.find(section, name)) << foreign.name << " points to " << word;
    }
  }
}

TEST(RecipeOptions, HabitsFromElsewhereAreAllAnsweredAtOnce) {
  try {
    parse_recipe(
        "model_name_or_path: m\nbf16: true\ngradient_checkpointing: true\ndeepspeed: zero3.json\n"
        "learning_rate: 1e-5\nmax_seq_length: 9\nnum_epochs: 3\nload_in_4bit: true\ndata: {train: t}\n"
        "output_dir: out\n",
        "run.yaml", "");
    FAIL() << "nothing was wrong";
  } catch (const ConfigurationMistakes& mistakes) {
    const std::vector<std::string> expected = {
        "run.yaml:1:1: \"model_name_or_path\" is model.path here",
        "run.yaml:2:1: \"bf16\" is model.compute_dtype here",
        "run.yaml:3:1: \"gradient_checkpointing\" is memory.recompute here",
        "run.yaml:4:1: \"deepspeed\" ",
        "run.yaml:5:1: \"learning_rate\" belongs into a section: optim.learning_rate",
        "run.yaml:6:1: \"max_seq_length\" is data.max_length here",
        "run.yaml:7:1: \"num_epochs\" is train.num_train_epochs here",
        "run.yaml:8:1: \"load_in_4bit\" has no counterpart here",
        "run.yaml:10:1: \"output_dir\" belongs into a section: train.output_dir"};
    ASSERT_EQ(mistakes.lines().size(), expected.size()) << mistakes.what();
    for (size_t line = 0; line < expected.size(); ++line) {
      EXPECT_THAT(mistakes.lines()[line], testing::StartsWith(expected[line]));
    }
  }
}

std::string migrating_page() {
  std::ostringstream text;
  text << std::ifstream(ITHACA_SOURCE_DIR "/docs/migrating.md").rdbuf();
  return text.str();
}

TEST(MigratingPage, ItsTablesAreThoseOfTheProgram) {
  const std::string page = migrating_page();
  ASSERT_FALSE(page.empty());
  EXPECT_TRUE(with_foreign_tables(page, recipe_table().catalog()) == page)
      << "docs/migrating.md is not current: make docs";
  // Every name belongs to a program that has a table there.
  for (const ForeignOption& foreign : recipe_table().catalog().foreign()) {
    std::istringstream programs(foreign.programs);
    std::string program;
    int count = 0;
    while (programs >> program) {
      EXPECT_THAT(page, testing::HasSubstr("<!-- names: " + program + " -->")) << foreign.name;
      ++count;
    }
    EXPECT_GT(count, 0) << foreign.name << " belongs to no program";
  }
}

TEST(MigratingPage, ItsRecipesAreRecipes) {
  const std::string page = migrating_page();
  const std::string mark = "<!-- recipe -->\n```yaml\n";
  int recipes = 0;
  for (size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    const std::string text = page.substr(begin, page.find("```", begin) - begin);
    EXPECT_NO_THROW(parse_recipe(text, "recipe of docs/migrating.md", "")) << text;
    ++recipes;
  }
  EXPECT_GE(recipes, 6);
}

TEST(MigratingPage, MarksThatMeanNothingAreErrors) {
  const OptionCatalog& catalog = recipe_table().catalog();
  EXPECT_EQ(with_foreign_tables("no tables", catalog), "no tables");
  EXPECT_THROW(with_foreign_tables("<!-- names: nobody -->\n<!-- end of names -->", catalog), InputError);
  EXPECT_THROW(with_foreign_tables("<!-- names: trl -->\n", catalog), InputError);
}

TEST(RecipeOptions, FilesThatARecipeNamesMustBeThere) {
  const std::string folder = testing::TempDir() + "recipe_files";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/run.yaml";
  std::ofstream(path) << "model: {path: nowhere}\ndata:\n  train: [run.yaml, lost.txt]\ntrain: {output_dir: out}\n";
  try {
    load_recipe(path, {{"data.eval=" + folder + "/gone.jsonl"}, {}, {}});
    FAIL() << "nothing was wrong";
  } catch (const ConfigurationMistakes& mistakes) {
    ASSERT_EQ(mistakes.lines().size(), 3u) << mistakes.what();
    EXPECT_THAT(mistakes.lines()[0],
                testing::StartsWith(path + ":1:15: model.path: " + folder + "/nowhere: there is no such folder"));
    EXPECT_THAT(mistakes.lines()[1],
                testing::StartsWith(path + ":3:10: data.train: " + folder + "/lost.txt: there is no such file"));
    EXPECT_THAT(mistakes.lines()[2], testing::StartsWith("--set data.eval=" + folder + "/gone.jsonl: data.eval: "));
  }
  EXPECT_THROW(load_recipe(folder), ConfigurationError);
  EXPECT_THROW(load_recipe(folder + "/none.yaml"), ConfigurationError);
  std::filesystem::remove_all(folder);
}

TEST(RecipeOptions, OptionsOfOtherVersionsAreErrors) {
  for (const int stage : {2, 3}) {
    EXPECT_EQ(
        error_of(fmt::format("parallel: {{zero: {}}}", stage)),
        fmt::format("run.yaml:4:18: this version does not have parallel.zero {}; the nearest is 1, where gradients "
                    "and the weights that are computed with stay whole on every rank",
                    stage));
  }
  for (const char* text :
       {"parallel: {tp_size: 2}", "memory: {offload_optimizer: host}", "memory: {offload_saved: disk}"}) {
    EXPECT_THAT(error_of(text), testing::HasSubstr("this version does not have")) << text;
  }
  for (const char* assignment :
       {"train.save_steps=10", "train.save_total_limit=2", "data.packing=bfd", "model.compute_dtype=float16",
        "data.tokenizer=huggingface", "data.format=chat", "data.chat_template=x"}) {
    EXPECT_THAT(set_error({assignment}), testing::HasSubstr("this version does not have")) << assignment;
  }
}

TEST(RecipeOptions, NumbersOutsideOfTheirRange) {
  for (const char* assignment : {"optim.adam_beta1=1",
                                 "optim.adam_beta2=-0.1",
                                 "optim.adam_beta2=nan",
                                 "optim.adam_epsilon=0",
                                 "optim.adam_epsilon=1e-46",  // 0 in float32
                                 "optim.adam_epsilon=1e-320",
                                 "optim.learning_rate=1e-320",
                                 "optim.weight_decay=1e-46",
                                 "optim.max_grad_norm=1e-46",
                                 "optim.learning_rate=-1e-3",
                                 "optim.learning_rate=inf",
                                 "optim.min_lr_ratio=1.5",
                                 "optim.decay_ratio=0",
                                 "optim.weight_decay=-1",
                                 "optim.max_grad_norm=-1",
                                 "optim.warmup_steps=-1",
                                 "parallel.sp_size=0",
                                 "parallel.sp_size=-4",
                                 "parallel.dp_replicate_size=0",
                                 "parallel.dp_shard_size=0",
                                 "parallel.comm_timeout_seconds=0",
                                 "memory.mlp_tile=-1",
                                 "memory.limit_gib=-0.5",
                                 "train.micro_batch_size=0",
                                 "train.gradient_accumulation_steps=0",
                                 "train.seed=-1",
                                 "train.logging_steps=0",
                                 "train.eval_steps=-1",
                                 "train.num_train_epochs=0",
                                 "train.max_steps=-1",
                                 "data.max_length=0"}) {
    EXPECT_THAT(set_error({assignment}), testing::StartsWith(std::string("--set ") + assignment + ": ")) << assignment;
  }
}

TEST(RecipeOptions, LengthsByStep) {
  EXPECT_THAT(parse("").data.max_length, testing::ElementsAre("8192"));
  const RecipeOverrides schedule = {{"data.max_length=[4K@0, 32K@1000]", "train.max_steps=1500"}, {}, {}};
  const Recipe recipe = parse("", schedule);
  EXPECT_THAT(recipe.data.max_length, testing::ElementsAre("4K@0", "32K@1000"));
  EXPECT_THAT(parse("", {{"data.max_length=4K@0, 32K@10", "train.max_steps=11"}, {}, {}}).data.max_length,
              testing::ElementsAre("4K@0, 32K@10"));
  // How long the last stage is must be known.
  EXPECT_THAT(set_error({"data.max_length=[4K@0, 32K@1000]"}),
              testing::AllOf(testing::StartsWith("--set data.max_length="), testing::HasSubstr("train.max_steps")));
  EXPECT_THAT(set_error({"data.max_length=[4K@0, 32K@1000]", "train.max_steps=1000"}),
              testing::HasSubstr("it is 1000"));
  EXPECT_THAT(set_error({"data.max_length=[4K@3]"}), testing::HasSubstr("first step"));
  EXPECT_THAT(set_error({"data.max_length=[]"}), testing::HasSubstr("first step"));
  // The resolved recipe says the same again.
  const std::string resolved = resolved_recipe_text(recipe);
  EXPECT_EQ(parse_recipe(resolved, "config.yaml", "").data.max_length, recipe.data.max_length);
}

TEST(RecipeOptions, WhatIsMadeOfTheData) {
  const Recipe recipe =
      parse("", {{"data.format=messages", "data.train_on=completion", "data.packing=best_fit", "data.overlong=truncate",
                  "data.on_error=skip", "data.cache_dir=caches", "data.tokenizer=bytes", "data.append_eos=never",
                  "model.rope_scaling=yarn:4", "model.rope_theta=[5e5@0, 1e6@100]"},
                 {},
                 {}});
  EXPECT_EQ(recipe.data.format, "messages");
  EXPECT_EQ(recipe.data.train_on, "completion");
  EXPECT_EQ(recipe.data.cache_dir, "caches");
  EXPECT_THAT(recipe.model.rope_theta, testing::ElementsAre("5e5@0", "1e6@100"));
  for (const char* assignment : {"data.train_on=user", "data.packing=tight", "data.overlong=cut", "data.on_error=warn",
                                 "data.append_eos=maybe", "data.format=parquet", "data.tokenizer=bpe"}) {
    EXPECT_THAT(set_error({assignment}), testing::HasSubstr("it is one of")) << assignment;
  }
  EXPECT_THAT(set_error({"data.format=sharegpt"}), testing::HasSubstr("data.format: conversations"));
  // Relative to the recipe, as other paths in it.
  const Recipe written =
      parse_recipe("model: {path: m}\ndata: {train: t, cache_dir: c}\ntrain: {output_dir: o}\n", "run.yaml", "recipes");
  EXPECT_EQ(written.data.cache_dir, "recipes/c");
}

TEST(RecipeOptions, SizesOfTheSequenceGroup) {
  EXPECT_EQ(error_of("parallel:\n  sp_size: 4\n  ulysses_size: 2\n  ring_size: 3\n"),
            "run.yaml:6:17: parallel.ulysses_size 2 x ring_size 3 = 6 ranks, but sp_size is 4; sp_size 6 would fit, or "
            "ring_size 2");
  EXPECT_EQ(error_of("parallel: {sp_size: 5, ring_size: 2}"),
            "run.yaml:4:35: parallel.ring_size 2 does not divide sp_size 5; sp_size 6 would fit");
  EXPECT_EQ(parse("parallel: {ulysses_size: 2, ring_size: 3}").parallel.sp_size, 6);
  EXPECT_EQ(parse("parallel: {ring_size: 3}").parallel.sp_size, 3);
  EXPECT_EQ(error_of("parallel: {sp_size: 4, ulysses_size: 2, ring_size: 2}"), "no error");
}

TEST(RecipeOptions, ScheduleAgainstSizes) {
  EXPECT_EQ(error_of("parallel:\n  sp_size: 4\n  schedule: ulysses\n  ring_size: 2\n"),
            "run.yaml:6:13: parallel.schedule ulysses uses all 4 ranks of sp_size for ulysses, but ulysses_size is 0 "
            "and ring_size is 2; leave both out, or use schedule hybrid");
  EXPECT_THAT(error_of("parallel: {sp_size: 4, schedule: ring, ulysses_size: 2}"),
              testing::HasSubstr("parallel.schedule ring uses all 4 ranks of sp_size for its ring"));
  EXPECT_EQ(error_of("parallel: {sp_size: 4, schedule: ring, ring_size: 4, ulysses_size: 1}"), "no error");
  EXPECT_EQ(error_of("parallel: {sp_size: 4, schedule: ulysses, ulysses_size: 4}"), "no error");
}

TEST(RecipeOptions, RanksSetOrMustMatchTheSizes) {
  EXPECT_EQ(parse("", {{}, 4, {}}).parallel.sp_size, 4);
  EXPECT_EQ(parse("parallel: {dp_replicate_size: 2}", {{}, 4, {}}).parallel.sp_size, 2);
  EXPECT_EQ(parse("parallel: {dp_replicate_size: 2, sp_size: 2}", {{}, 4, {}}).parallel.sp_size, 2);
  EXPECT_EQ(
      error_of("parallel: {sp_size: 3, dp_replicate_size: 2}", {{}, 8, {}}),
      "run.yaml:4:21: sp_size 3 x dp_replicate_size 2 = 6 ranks, but --ranks 8; --ranks 6 would fit, or sp_size 4");
  EXPECT_EQ(error_of("parallel: {sp_size: 4, dp_replicate_size: 1}", {{}, 8, {}}),
            "run.yaml:4:21: sp_size 4 x dp_replicate_size 1 = 4 ranks, but --ranks 8; --ranks 4 would fit, or "
            "dp_replicate_size 2, or sp_size 8");
  EXPECT_EQ(
      error_of("parallel: {dp_replicate_size: 3}", {{}, 4, {}}),
      "run.yaml:4:31: dp_replicate_size 3 does not divide --ranks 4; --ranks 6 would fit, or dp_replicate_size 1");
  EXPECT_EQ(error_of("parallel: {ulysses_size: 2, ring_size: 2}", {{}, 6, {}}),
            "run.yaml:4:26: parallel.ulysses_size 2 x ring_size 2 = 4 ranks, but sp_size is 6; sp_size 4 would fit, or "
            "ring_size 3");
  EXPECT_EQ(error_of("", {{}, 0, {}}), "--ranks must be between 1 and 1024, but it is 0");
  EXPECT_EQ(error_of("", {{}, -2, {}}), "--ranks must be between 1 and 1024, but it is -2");
  EXPECT_EQ(error_of("parallel: {sp_size: 600, dp_replicate_size: 2}"),
            "run.yaml:4:45: parallel.sp_size 600 x dp_replicate_size 2 = 1200 ranks; at most 1024 run in one process");
}

TEST(RecipeOptions, RanksThatShareOptimizerStateCountAsRanks) {
  EXPECT_EQ(parse("parallel: {dp_shard_size: 2}", {{}, 4, {}}).parallel.sp_size, 2);
  EXPECT_EQ(parse("parallel: {dp_shard_size: 2, dp_replicate_size: 2}", {{}, 8, {}}).parallel.sp_size, 2);
  EXPECT_EQ(error_of("parallel: {sp_size: 3, dp_shard_size: 2}", {{}, 8, {}}),
            "run.yaml:4:21: sp_size 3 x dp_replicate_size 1 x dp_shard_size 2 = 6 ranks, but --ranks 8; --ranks 6 "
            "would fit, or sp_size 4");
  EXPECT_EQ(error_of("parallel: {sp_size: 3, dp_shard_size: 5}", {{}, 8, {}}),
            "run.yaml:4:21: sp_size 3 x dp_replicate_size 1 x dp_shard_size 5 = 15 ranks, but --ranks 8; --ranks 15 "
            "would fit, or sp_size 4 with dp_replicate_size 2 and dp_shard_size 1");
  EXPECT_EQ(error_of("parallel: {dp_shard_size: 3}", {{}, 4, {}}),
            "run.yaml:4:27: dp_shard_size 3 does not divide --ranks 4; --ranks 6 would fit, or dp_shard_size 1");
  EXPECT_EQ(error_of("parallel: {dp_shard_size: 3, dp_replicate_size: 2}", {{}, 4, {}}),
            "run.yaml:4:27: dp_replicate_size 2 x dp_shard_size 3 does not divide --ranks 4; --ranks 6 would fit, or "
            "dp_shard_size 1");
  EXPECT_THAT(error_of("parallel: {sp_size: 300, dp_replicate_size: 2, dp_shard_size: 2}"),
              testing::HasSubstr("sp_size 300 x dp_replicate_size 2 x dp_shard_size 2 = 1200 ranks"));
}

TEST(RecipeOptions, StagesOfZero) {
  EXPECT_EQ(parse("").parallel.zero, 1);
  EXPECT_EQ(parse("parallel: {zero: 0}").parallel.zero, 0);
  EXPECT_EQ(parse("", {{"parallel.zero=0"}, {}, {}}).parallel.zero, 0);
  EXPECT_THAT(error_of("parallel: {zero: 4}"), testing::HasSubstr("parallel.zero must be at least 0 and at most 3"));
  EXPECT_EQ(error_of("parallel: {zero: 0, dp_shard_size: 2, dp_replicate_size: 3, sp_size: 2}"),
            "run.yaml:4:36: parallel.dp_shard_size 2 shares what parallel.zero cuts, but zero is 0; set zero: 1, or "
            "use dp_replicate_size 6");
}

TEST(RecipeOptions, OptionsThatWouldBeIgnoredAreErrors) {
  EXPECT_THAT(
      set_error({"train.max_steps=3", "train.num_train_epochs=2"}),
      testing::StartsWith("--set train.num_train_epochs=2: train.max_steps 3 and train.num_train_epochs 2 both"));
  EXPECT_THAT(set_error({"train.eval_steps=3"}),
              testing::StartsWith("--set train.eval_steps=3: train.eval_steps needs"));
  EXPECT_EQ(set_error({"train.eval_steps=3", "data.eval=e.txt"}), "no error");
  EXPECT_THAT(set_error({"optim.decay_ratio=0.2"}), testing::HasSubstr("is for lr_scheduler_type wsd"));
  EXPECT_EQ(set_error({"optim.decay_ratio=0.2", "optim.lr_scheduler_type=wsd"}), "no error");
  EXPECT_THAT(set_error({"optim.min_lr_ratio=0.1", "optim.lr_scheduler_type=constant"}),
              testing::HasSubstr("lr_scheduler_type is constant"));
  // Given with the default, they are ignored no less.
  EXPECT_THAT(
      set_error({"train.max_steps=3", "train.num_train_epochs=1"}),
      testing::StartsWith("--set train.num_train_epochs=1: train.max_steps 3 and train.num_train_epochs 1 both"));
  EXPECT_THAT(set_error({"optim.decay_ratio=0.1"}), testing::HasSubstr("is for lr_scheduler_type wsd"));
  EXPECT_THAT(set_error({"optim.min_lr_ratio=0", "optim.lr_scheduler_type=constant"}),
              testing::HasSubstr("lr_scheduler_type is constant"));
  EXPECT_EQ(set_error({"train.max_steps=3"}), "no error");
  EXPECT_EQ(set_error({"train.max_steps=0", "train.num_train_epochs=1"}), "no error");
  EXPECT_EQ(set_error({"optim.lr_scheduler_type=constant"}), "no error");
}

// What is known without the data is told with everything else, and says where it was given.
TEST(RecipeOptions, WhatTheModelAndTheMachineRuleOutIsToldAtOnce) {
  const std::string folder = testing::TempDir() + "recipe_machine";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/run.yaml";
  std::ofstream(path) << "model:\n  path: " ITHACA_SOURCE_DIR
                         "/tests/data/models/llama-plain\n"
                         "  compute_dtype: bfloat16\n  rope_theta: 0\n  rope_scaling: [spline:2]\n"
                         "data: {train: run.yaml}\nparallel: {transport: nccl, schedule: ulysses, sp_size: 5}\n"
                         "optim: {lr: 1}\ntrain: {output_dir: out}\n";
  try {
    load_recipe(path, {{"train.backend=cpu"}, {}, {}});
    FAIL() << "nothing was wrong";
  } catch (const ConfigurationMistakes& mistakes) {
    EXPECT_THAT(mistakes.lines(),
                testing::UnorderedElementsAre(
                    testing::StartsWith(path + ":3:18: model.compute_dtype bfloat16: the CPU"),
                    testing::StartsWith(path + ":4:15: model.rope_theta: \"0\": a number above 1"),
                    testing::StartsWith(path + ":5:17: model.rope_scaling: \"spline:2\": none, linear:4"),
                    testing::StartsWith(path + ":7:23: parallel.transport nccl: NCCL moves"),
                    testing::StartsWith(path + ":7:39: parallel.ulysses_size: 5 ulysses ranks cannot share 4"),
                    testing::HasSubstr("\"lr\" is optim.learning_rate here")));
  }
  const std::string sound = "model: {path: " ITHACA_SOURCE_DIR
                            "/tests/data/models/llama-plain}\n"
                            "data: {train: run.yaml}\ntrain: {output_dir: out, backend: cpu}\n";
  std::ofstream(path) << sound;
  EXPECT_NO_THROW(load_recipe(path));
  const auto error_with = [&](const std::vector<std::string>& assignments, std::optional<int64_t> ranks = {}) {
    try {
      load_recipe(path, {assignments, ranks, {}});
    } catch (const ConfigurationError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_with({"memory.limit_gib=0.00001"}),
              testing::StartsWith("--set memory.limit_gib=0.00001: memory.limit_gib 1e-05 is not enough"));
  EXPECT_THAT(error_with({"parallel.schedule=ulysses"}, 5),
              testing::StartsWith("--set parallel.schedule=ulysses: parallel.ulysses_size: 5"));
  EXPECT_THAT(error_with({"parallel.ulysses_size=8"}),
              testing::StartsWith("--set parallel.ulysses_size=8: parallel.ulysses_size: 8"));
  // A model that cannot be opened is left to those who open it.
  std::ofstream(path) << "model: {path: .}\ndata: {train: run.yaml}\ntrain: {output_dir: out, backend: cpu}\n";
  EXPECT_NO_THROW(load_recipe(path));
  std::filesystem::remove_all(folder);
}

TEST(RecipeOptions, ResolvedRecipeReadsBackTheSame) {
  const Recipe recipe = parse("parallel: {sp_size: 4}\noptim: {learning_rate: 0.0003}\n");
  const std::string text = resolved_recipe_text(recipe);
  const Recipe back = parse_recipe(text, "config.yaml", "elsewhere");
  EXPECT_EQ(back.model.path, std::filesystem::absolute("recipes/m").string());
  EXPECT_EQ(back.parallel.sp_size, 4);
  EXPECT_EQ(back.optim.learning_rate, 0.0003);
  EXPECT_EQ(resolved_recipe_text(back), text);
  // What has no effect is left out: given, it would be a mistake.
  const std::string with_steps = resolved_recipe_text(parse("", {{"train.max_steps=7"}, {}, {}}));
  EXPECT_THAT(with_steps, testing::Not(testing::HasSubstr("num_train_epochs")));
  EXPECT_EQ(resolved_recipe_text(parse_recipe(with_steps, "config.yaml", "")), with_steps);
}

TEST(RecipeOptions, RecipeFilesThatCannotBeRead) {
  EXPECT_THROW(load_recipe("/does/not/exist.yaml"), ConfigurationError);
  EXPECT_THROW(load_recipe(std::filesystem::temp_directory_path().string()), ConfigurationError);
}

TEST(RecipeOptions, ReferencePageIsCurrent) {
  std::ifstream file(ITHACA_SOURCE_DIR "/docs/config.md", std::ios::binary);
  ASSERT_TRUE(file) << "docs/config.md is missing; `make docs` writes it";
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), recipe_reference_page()) << "docs/config.md is not current; `make docs` writes it";
}

}  // namespace
}  // namespace ithaca
