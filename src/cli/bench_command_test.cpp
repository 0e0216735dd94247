// `ithaca bench` as people call it, with small numbers: tables, raw rows, exit statuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/program_testing.h"

namespace ithaca {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<nlohmann::json> rows_of(const std::string& text) {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

const std::string& model() {
  static const std::string folder = std::string(ITHACA_TEST_DATA) + "/models/llama-plain";
  return folder;
}

TEST(Bench, ExchangesAreATableAndRows) {
  const TestFolder folder;
  const ProgramOutcome outcome =
      run_ithaca({"bench", "exchange", "--backend", "cpu", "--ranks", "2", "--sizes", "4KiB..64KiB,30000", "--seconds",
                  "0.001", "--output", folder.path("rows.jsonl")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("CPU, float32, 2 ranks"), HasSubstr("copy, both ways"), HasSubstr("GB/s"),
                                 HasSubstr(" 4.00 KiB send_receive"), HasSubstr("64.00 KiB all_reduce")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("ratio:")));  // one transport
  const std::vector<nlohmann::json> rows = rows_of(folder.read("rows.jsonl"));
  ASSERT_EQ(rows.size(), 4U * 8);
  EXPECT_EQ(rows[0].at("bench"), "exchange");
  EXPECT_EQ(rows[0].at("bytes"), 4096);
  EXPECT_EQ(rows[8].at("bytes"), 16384);
  EXPECT_EQ(rows[16].at("bytes"), 65536);
  EXPECT_EQ(rows[24].at("bytes"), 30000);
}

TEST(Bench, TwoTransportsAreComparedBelow) {
  const ProgramOutcome outcome = run_ithaca({"bench", "exchange", "--backend", "cpu", "--ranks", "2", "--sizes", "8KiB",
                                             "--seconds", "0.001", "--transport", "peer,peer"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const size_t below = outcome.out.find("exchange, GB/s");
  ASSERT_NE(below, std::string::npos) << outcome.out;
  EXPECT_THAT(outcome.out.substr(below), AllOf(HasSubstr("ratio"), HasSubstr("8.00 KiB all_reduce")));
}

TEST(Bench, AttentionSaysWhatDoesNotFitAndWhatIsPredicted) {
  const TestFolder folder;
  const ProgramOutcome outcome = run_ithaca({"bench",           "attention",
                                             "--backend",       "cpu",
                                             "--ranks",         "2",
                                             "--tokens",        "64",
                                             "--query-heads",   "4",
                                             "--key-heads",     "2",
                                             "--head-size",     "8",
                                             "--documents",     "0,long-tailed:16",
                                             "--schedules",     "ulysses,hybrid:2x2",
                                             "--predict-ranks", "4",
                                             "--seconds",       "0.001",
                                             "--output",        folder.path("rows.jsonl")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("one document, long-tailed documents of mean 16 tokens"),
                                 HasSubstr("predicted for 4 ranks"), HasSubstr("predicted: not run."),
                                 HasSubstr("does not fit: 2 x 2 = 4 ranks, not 2"), HasSubstr("of dense")));
  const std::vector<nlohmann::json> rows = rows_of(folder.read("rows.jsonl"));
  ASSERT_EQ(rows.size(), 2U * 5);
  EXPECT_EQ(rows[9].at("documents"), "long-tailed:16");
  EXPECT_EQ(rows[9].at("schedule"), "hybrid:2x2");
  EXPECT_EQ(rows[9].at("predicted"), true);
  EXPECT_EQ(rows[9].at("ranks"), 4);
}

TEST(Bench, StepsPlanTheAttentionThatTheyLeaveOut) {
  const TestFolder folder;
  const ProgramOutcome outcome =
      run_ithaca({"bench", "step", "--backend", "cpu", "--model", model(), "--tokens", "64", "--ranks", "2", "--steps",
                  "1", "--warmup", "0", "--attention-layers", "1", "--output", folder.path("rows.jsonl")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("Attention was computed in the last 1 of 2 layers"), HasSubstr("NOT run"),
                    HasSubstr("peak memory by class"), HasSubstr("sent"), HasSubstr("exposed"), HasSubstr("tokens/s")));
  const std::vector<nlohmann::json> rows = rows_of(folder.read("rows.jsonl"));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].at("attention_layers"), 1);
  EXPECT_GT(rows[0].at("planned_seconds"), 0.0);
  EXPECT_GT(rows[0].at("peak_bytes_by_class").at("weights"), 0);
  // Where nothing is left out, nothing is planned.
  const ProgramOutcome whole = run_ithaca(
      {"bench", "step", "--backend", "cpu", "--model", model(), "--tokens", "64", "--steps", "1", "--warmup", "0"});
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.out, Not(HasSubstr("NOT run")));
}

TEST(Bench, TheLongestSequenceEndsTheTable) {
  const std::vector<std::string> search = {
      "bench",    "step", "--backend",          "cpu", "--model", model(), "--ranks", "2", "--longest", "--steps", "1",
      "--warmup", "0",    "--attention-layers", "1",   "--tokens"};
  std::vector<std::string> words = search;
  words.insert(words.end(), {"64", "--limit-gib", "0.0015"});
  const ProgramOutcome found = run_ithaca(words);
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("did not run: "), HasSubstr("longest sequence, recompute attention: "),
                               HasSubstr(" tokens ran; "), Not(HasSubstr("Largest blocks"))));
  words = search;
  words.insert(words.end(), {"64", "--limit-gib", "0.0001"});
  const ProgramOutcome none = run_ithaca(words);
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.out, HasSubstr("none ran; 64 had no memory"));
  words = search;
  words.push_back("64,128");
  EXPECT_EQ(run_ithaca(words).status, 2);
  words = search;
  words.insert(words.end(), {"64", "--phases"});
  const ProgramOutcome recorded = run_ithaca(words);
  EXPECT_EQ(recorded.status, 2);
  EXPECT_THAT(recorded.err, HasSubstr("--phases"));
}

TEST(Bench, WhatWasNotMeasuredHasNoNumber) {
  // Room for the steps, and none for a large product.
  const ProgramOutcome steps = run_ithaca({"bench", "step", "--backend", "cpu", "--model", model(), "--tokens", "64",
                                           "--steps", "1", "--warmup", "0", "--limit-gib", "0.002"});
  EXPECT_EQ(steps.status, 0) << steps.out;
  EXPECT_THAT(steps.out, AllOf(HasSubstr("      -     0.0%"), HasSubstr("peak: not measured")));
  // Head slices of one token are 4 KiB: nothing that 4 bytes could be compared with.
  const TestFolder folder;
  const ProgramOutcome exchanges = run_ithaca({"bench", "exchange", "--backend", "cpu", "--ranks", "3", "--sizes", "1",
                                               "--seconds", "0.001", "--output", folder.path("rows.jsonl")});
  EXPECT_EQ(exchanges.status, 0) << exchanges.err;
  for (const nlohmann::json& row : rows_of(folder.read("rows.jsonl"))) {
    if (row.at("exchange") != "all_to_all, head slices") continue;
    EXPECT_EQ(row.at("bytes_sent"), 8192);
    EXPECT_EQ(row.at("copy_share"), 0.0);
  }
  EXPECT_THAT(exchanges.out, HasSubstr(" -\n"));
}

TEST(Bench, AdviceNamesItsOwnFlags) {
  const auto out_of = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"bench",   "step", "--backend", "cpu", "--model",    model(),
                                      "--steps", "1",    "--warmup",  "0",   "--limit-gib"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramOutcome outcome = run_ithaca(words);
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    const size_t advice = outcome.out.find("What would help: ");
    EXPECT_NE(advice, std::string::npos) << outcome.out;
    return advice == std::string::npos ? outcome.out
                                       : outcome.out.substr(advice, outcome.out.find('\n', advice) - advice);
  };
  // No room for the weights: nothing that is about tokens would help.
  EXPECT_THAT(out_of({"0.0001", "--tokens", "64"}), HasSubstr(": --limit-gib: more memory"));
  EXPECT_THAT(out_of({"0.0003", "--tokens", "64", "--ranks", "2", "--zero", "0"}), HasSubstr(": --zero 1 leaves"));
  EXPECT_THAT(out_of({"0.0015", "--tokens", "20000", "--recompute", "full"}),
              AllOf(HasSubstr("--ranks: more ranks share"), HasSubstr("shorter --tokens"), Not(HasSubstr("memory."))));
}

// Before the host has drawn the tokens, which would take minutes and all of its memory.
TEST(Bench, LengthsBeyondAllMemoryAreRowsThatDidNotRun) {
  const ProgramOutcome outcome = run_ithaca({"bench", "step", "--backend", "cpu", "--model", model(), "--tokens",
                                             "100000000000,64", "--ranks", "2", "--steps", "1", "--warmup", "0"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("100000000000  attention did not run: "));
  EXPECT_THAT(outcome.out, HasSubstr("\n       64  attention    0."));
}

TEST(Bench, MistakesAreErrors) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"exchange"}, "--ranks"},
      {{"exchange", "--ranks", "2", "--transport", "pigeons"}, "--transport"},
      {{"exchange", "--ranks", "2", "--transport", "nccl", "--sizes", "4KiB"}, "--transport"},
      {{"attention", "--ranks", "2", "--transport", "nccl", "--tokens", "64"}, "--transport"},
      {{"step", "--ranks", "2", "--transport", "nccl", "--tokens", "64", "--model", model()}, "--transport"},
      {{"exchange", "--ranks", "2", "--sizes", "3x"}, "--sizes: '3x'"},
      {{"exchange", "--ranks", "2", "--sizes", "1KiB.."}, "--sizes: '1KiB..'"},
      {{"exchange", "--ranks", "2", "--sizes", "2000GiB"}, "--sizes: '2000GiB'"},
      {{"exchange", "--ranks", "2", "--sizes", "1GiB..1MiB", "--transport", "peer,peer"}, "--sizes: '1GiB..1MiB'"},
      {{"attention", "--predict-ranks", "4", "--tokens", "64"}, "--predict-ranks needs --ranks"},
      {{"attention", "--ranks", "2", "--predict-ranks", "1025"}, "--predict-ranks: 1025"},
      {{"attention", "--ranks", "2", "--predict-ranks", "1000000"}, "--predict-ranks: 1000000"},
      {{"attention", "--schedules", "rings"}, "--schedules: 'rings'"},
      {{"attention", "--tokens", "9223372036854775807"}, "--tokens: 9223372036854775807"},
      {{"attention", "--query-heads", "9223372036854775807", "--key-heads", "1"}, "--query-heads"},
      {{"attention", "--tokens", "100000000000", "--documents", "16"}, "a mean of 10001 or more works"},
      {{"step", "--tokens", "1000000000000", "--model", model()}, "--tokens: 1000000000000"},
      {{"step", "--ulysses-size", "4294967297", "--model", model()}, "--ulysses-size"},
      {{"step", "--ring-size", "-1", "--model", model()}, "--ring-size"},
      {{"step", "--limit-gib", "nan", "--model", model()}, "--limit-gib"},
      {{"step", "--limit-gib", "1e300", "--model", model()}, "--limit-gib"},
      {{"step", "--limit-gib", "1e-300", "--model", model()}, "--limit-gib"},
      {{"attention", "--ranks", "2", "--predict-ranks", "1"}, "--predict-ranks: 1"},
      {{"attention", "--documents", "long:5"}, "--documents: 'long:5'"},
      {{"step", "--documents", "0,64", "--model", model()}, "--documents: a step has one mix"},
      {{"step", "--attention-layers", "3", "--model", model()}, "--attention-layers: 3"},
      {{"step", "--attention-layers", "-1", "--model", model()}, "--attention-layers"},
      {{"gemm", "--output", ""}, "--output: the value is empty"},
      {{"step", "--model", "", "--tokens", "8"}, "--model: the value is empty"},
      {{"step", "--model", model(), "--attention-layers", ""}, "--attention-layers: the value is empty"},
      {{"attention", "--window", "9223372036854775808"}, "--window: 9223372036854775808 is out of range"},
      {{"attention", "--ranks", "99999999999999999999"}, "--ranks: 99999999999999999999 is out of range"},
      {{"attention", "--ranks", "4294967298"}, "--ranks: 4294967298 is out of range"},
      {{"attention", "--ranks", "2", "--predict-ranks", "4,4294967300"}, "--predict-ranks: 4294967300 is out of"},
      {{"attention", "--head-size", "010"}, "--head-size: \"010\" is not a whole number"},
      {{"attention", "--seconds", "1e999"}, "--seconds: 1e999 is not a finite number"},
      {{"attention", "--tokens", "64,6x"}, "--tokens: \"6x\" is not a whole number"},
      {{"step", "--steps", "1", "--steps", "0"}, "--steps is given 2 times, but takes one value"},
      {{"step", "--layout", "foo", "--model", model()}, "'foo' is not one of auto, contiguous, zigzag, striped"},
      {{"step", "--schedule", "foo", "--model", model()}, "'foo' is not one of auto, ulysses, ring, all_gather"},
      {{"step", "--ranks", "6", "--ulysses-size", "6", "--model", model()}, "--ulysses-size: 6 ulysses ranks cannot"},
      {{"gemm", "--dtype", "bfloat16"}, "--dtype bfloat16: the CPU"},
  };
  for (const auto& [arguments, expected] : cases) {
    std::vector<std::string> words = {"bench"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.insert(words.end(), {"--backend", "cpu"});
    const ProgramOutcome outcome = run_ithaca(words);
    EXPECT_EQ(outcome.status, 2) << expected;
    EXPECT_THAT(outcome.err, HasSubstr(expected));
  }
  // Found before anything is measured, and before the rows of an earlier benchmark are gone.
  const TestFolder folder;
  const std::string earlier = "{\"bench\":\"gemm\"}\n";
  folder.write("rows.jsonl", earlier);
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"attention", "--ranks", "2", "--schedules", "ring,rings"},
                                             {"attention", "--predict-ranks", "4"},
                                             {"exchange", "--ranks", "2", "--sizes", "4KiB,none"},
                                             {"exchange", "--ranks", "1", "--sizes", "4KiB"},
                                             {"step", "--model", model(), "--schedule", "ring,ulysses"},
                                             {"step", "--model", model(), "--attention-layers", "3"},
                                             {"step", "--model", model(), "--longest", "--tokens", "64,128"},
                                             {"gemm", "--shape", "round"}}) {
    std::vector<std::string> words = {"bench"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.insert(words.end(), {"--backend", "cpu", "--output", folder.path("rows.jsonl")});
    const ProgramOutcome outcome = run_ithaca(words);
    EXPECT_EQ(outcome.status, 2) << arguments.back();
    EXPECT_EQ(outcome.out, "") << arguments.back();
    EXPECT_EQ(folder.read("rows.jsonl"), earlier) << arguments.back();
  }
  // What is refused before anything is measured, and left as it is.
  const std::string theirs = folder.write("theirs.json", "{\"model_type\": \"llama\"}");
  for (const auto& [path, reason] :
       {std::pair<std::string, std::string>{"/nowhere/rows.jsonl", "there is no folder /nowhere"},
        {theirs, "is there already and is not rows of a benchmark that ithaca wrote"}}) {
    const ProgramOutcome outcome =
        run_ithaca({"bench", "exchange", "--backend", "cpu", "--ranks", "2", "--sizes", "4KiB", "--output", path});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--output " + path + ": " + reason));
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(folder.read("theirs.json"), "{\"model_type\": \"llama\"}");
}

}  // namespace
}  // namespace ithaca
