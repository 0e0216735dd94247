#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/inspect_data_command.h"
#include "cli/progress.h"
#include "cli/test_folder.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class InspectData : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream original(std::string(ITHACA_TEST_DATA) + "/models/llama-plain/config.json");
    nlohmann::json config = nlohmann::json::parse(original);
    config["vocab_size"] = 256;
    folder_.write("model/config.json", config.dump());
    std::string lines;
    for (int i = 0; i < 40; ++i) lines += "{\"text\": \"" + std::string(static_cast<size_t>(4 + i), 'x') + "\"}\n";
    folder_.write("text.jsonl", lines + "{\"text\": \"y\"}\n");
    folder_.write("run.yaml",
                  "model: {path: model, init: random}\n"
                  "data: {train: text.jsonl, max_length: [32@0, 64@2], packing: best_fit, shuffle: false}\n"
                  "parallel: {sp_size: 2, schedule: ring, layout: contiguous, dp_replicate_size: 2}\n"
                  "train: {max_steps: 4, output_dir: " +
                      folder_.path("runs/a") + "}\n");
  }

  std::string output(InspectDataArguments arguments, const TerminalStyle& style = {}) {
    arguments.recipe = folder_.path("run.yaml");
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(inspect_data_command(arguments, style, out, err), 0) << err.str();
    return out.str();
  }

  TestFolder folder_;
};

TEST_F(InspectData, TotalsLengthsBalanceAndSequences) {
  InspectDataArguments arguments;
  arguments.samples = 1;
  const std::string text = output(arguments);
  EXPECT_THAT(text, HasSubstr("format       text, packing best_fit, overlong split"));
  EXPECT_THAT(text, HasSubstr("at first, max_length 32: "));
  EXPECT_THAT(text, HasSubstr("after 2 steps, max_length 64: "));
  EXPECT_THAT(text, HasSubstr("41 documents in 41 samples, the longest of 43 tokens"));
  EXPECT_THAT(text, HasSubstr("1 document of fewer than two tokens skipped"));
  EXPECT_THAT(text, HasSubstr("documents\n"));
  EXPECT_THAT(text, HasSubstr("sequences\n"));
  EXPECT_THAT(text, HasSubstr("steps        4 of 2 sequences"));
  EXPECT_THAT(text, HasSubstr("balance      of the attention time of 2 groups of ranks"));
  EXPECT_THAT(text, HasSubstr("sequence 0: step 1, data-parallel group 0, micro-batch 1; 32 tokens, 32 trained"));
  EXPECT_THAT(text, HasSubstr("  rank 0: tokens 0-15 (16 labels)\n  rank 1: tokens 16-31 (16 labels)\n"));
  EXPECT_THAT(text, HasSubstr("│0│x⟨xxxxxxxxxxxxxxx⟩│1│⟨xxxxxxxxxxxxxxxx⟩"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b[")));
  // Again, from the cache; coloured; of the second stage.
  TerminalStyle style;
  style.color = true;
  arguments.step = 3;
  EXPECT_THAT(output(arguments, style), AllOf(HasSubstr("\x1b[32mx"), HasSubstr("step 3, data-parallel")));
  arguments.samples = 0;
  EXPECT_THAT(output(arguments), Not(HasSubstr("data-parallel group 0, micro-batch")));
  arguments.step = 5;
  std::ostringstream ignored;
  arguments.recipe = folder_.path("run.yaml");
  EXPECT_THROW(inspect_data_command(arguments, {}, ignored, ignored), ConfigurationError);
}

TEST(TokenizeLine, SaysHowFarItIs) {
  TokenizeProgress progress;
  progress.bytes_read = 25;
  progress.bytes_in_all = 100;
  progress.samples = 1200;
  progress.tokens = 3'000'000;
  progress.seconds = 2.0;
  EXPECT_EQ(tokenize_line(progress, 60), "tokenizing  25%  1,200 samples, 3,000,000 tokens, 1.50M tokens/s  left 6.0s");
  EXPECT_EQ(tokenize_line(progress, 100),
            "[=====                ] tokenizing  25%  1,200 samples, 3,000,000 tokens, 1.50M tokens/s  left 6.0s");
  progress.finished = true;
  EXPECT_EQ(tokenize_line(progress, 100), "tokenized  1,200 samples, 3,000,000 tokens, 1.50M tokens/s in 2.0s");
  EXPECT_THAT(tokenize_line({}, 100), HasSubstr("tokenizing   0%"));
}

TEST(DataLines, SayWhatBecameOfTheDocuments) {
  DatasetSummary data;
  EXPECT_TRUE(data_lines(data).empty());
  data.samples = 10;
  data.documents = 12;
  data.tokens = 900;
  data.valid_tokens = 450;
  data.longest_document = 300;
  EXPECT_THAT(data_lines(data), ElementsAre("12 documents in 10 samples, the longest of 300 tokens; 450 tokens trained "
                                            "(50.0%)"));
  data.split_documents = 1;
  data.truncated_documents = 2;
  data.truncated_tokens = 30;
  data.dropped_documents = 3;
  data.dropped_tokens = 4000;
  data.skipped_documents = 4;
  data.unlabelled_documents = 5;
  data.skipped_records = 6;
  data.unfilled_tokens = 100;
  EXPECT_THAT(
      data_lines(data),
      ElementsAre(HasSubstr("12 documents"),
                  "1 document cut into several pieces; 2 documents truncated (by 30 tokens); 3 documents dropped "
                  "as too long (4,000 tokens); 4 documents of fewer than two tokens skipped; 5 documents without "
                  "anything that is trained; 6 records that could not be understood skipped",
                  "sequences are filled to 90.0% of max_length; what is left over costs nothing"));
}

}  // namespace
}  // namespace ithaca
