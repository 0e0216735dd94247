#include "cli/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "cli/bench_command.h"
#include "cli/test_folder.h"
#include "train/report.h"

namespace ithaca {
namespace {

const std::string kTrace = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n]}\n";

std::string refusal(const std::string& path, OutputKind kind, const std::vector<std::string>& runs = {}) {
  try {
    check_output_file("--output", path, kind, runs);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "";
}

TEST(OutputFile, TakesThePlaceOfItsOwnKindOnly) {
  const TestFolder folder;
  const std::string page = folder.write("report.html", report_page(std::vector<ReportRun>(1), ""));
  const std::string trace = folder.write("trace.json", kTrace);
  const std::string rows = folder.write("rows.jsonl", "{\"bench\":\"gemm\",\"tokens\":8}\n");
  const std::vector<std::pair<std::string, OutputKind>> own = {
      {page, OutputKind::report}, {trace, OutputKind::trace}, {rows, OutputKind::rows}};
  for (const auto& [path, kind] : own) {
    for (const auto& [other, other_kind] : own) {
      EXPECT_EQ(is_output(other, kind), path == other);
      EXPECT_EQ(refusal(other, kind).empty(), path == other) << other;
    }
    for (const char* text :
         {"model: {path: m}\n", "{\"input_ids\": [1, 2]}\n", "{\"model_type\": \"llama\"}", "<html>"}) {
      EXPECT_THAT(refusal(folder.write("theirs", text), kind), testing::HasSubstr("is left as it is"));
    }
    EXPECT_EQ(refusal(folder.write("empty", ""), kind), "");
    EXPECT_EQ(refusal(folder.path("new"), kind), "");
    EXPECT_EQ(refusal("/dev/null", kind), "");
  }
}

TEST(OutputFile, LeavesFoldersAndWhatARunWritesAlone) {
  const TestFolder folder;
  const std::string run = folder.path("run");
  EXPECT_THAT(refusal(folder.path(), OutputKind::trace), testing::HasSubstr(" is a folder; name a file in it"));
  EXPECT_THAT(refusal(folder.path("no/t.json"), OutputKind::trace, {run}), testing::HasSubstr("there is no folder"));
  // The run makes its folder.
  EXPECT_EQ(refusal(run + "/t.json", OutputKind::trace, {run}), "");
  EXPECT_EQ(refusal(run + "/t.json", OutputKind::trace, {run + "/"}), "");
  EXPECT_THAT(refusal(run, OutputKind::trace, {run}), testing::HasSubstr(" is a folder; name a file in it"));
  EXPECT_THAT(refusal(run + "/metrics.jsonl", OutputKind::trace, {run}),
              testing::HasSubstr("is what the run itself writes; name another file, " + run + "/trace.json say"));
  // Not even where something of the right kind lies.
  folder.write("run/export/t.json", kTrace);
  EXPECT_THAT(refusal(run + "/export/t.json", OutputKind::trace, {folder.path("other"), run}),
              testing::HasSubstr("export of the run in " + run));
}

}  // namespace
}  // namespace ithaca
