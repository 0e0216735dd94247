// Reports: what is escaped, what is thinned out, what becomes of gaps; and that the page is well-formed.
#include "train/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace ithaca {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Follows the tags of a page; fails where they do not match. Returns the text of the page without tags, scripts and
// styles, still escaped.
std::string check_page(const std::string& page) {
  static const std::set<std::string> kWithoutEnd = {"meta", "br", "img", "input", "link", "hr"};
  std::vector<std::string> open;
  std::string text;
  size_t at = page.find('>') + 1;  // <!DOCTYPE html>
  while (at < page.size()) {
    const size_t begin = page.find('<', at);
    text += page.substr(at, begin - at);
    if (begin == std::string::npos) break;
    const size_t end = page.find('>', begin);
    EXPECT_NE(end, std::string::npos);
    std::string tag = page.substr(begin + 1, end - begin - 1);
    at = end + 1;
    const bool closing = tag.starts_with('/');
    const std::string name = tag.substr(closing ? 1 : 0, tag.find_first_of(" \n") - (closing ? 1 : 0));
    EXPECT_THAT(name, testing::MatchesRegex("[a-z0-9]+")) << tag;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (closing) {
      if (open.empty() || open.back() != name) {
        ADD_FAILURE() << "</" << name << "> closes " << (open.empty() ? "nothing" : open.back());
        return text;
      }
      open.pop_back();
    } else if (!kWithoutEnd.contains(name)) {
      open.push_back(name);
      if (name == "script" || name == "style") {
        const size_t stop = page.find("</" + name, at);
        at = stop;
      }
    }
  }
  EXPECT_THAT(open, testing::IsEmpty());
  return text;
}

Json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"report-data\">";
  const size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

ReportRun run_of(int64_t steps, const std::string& name = "a") {
  ReportRun run;
  run.name = name;
  run.folder = "runs/" + name;
  for (int64_t step = 1; step <= steps; ++step) {
    HistoryStep entry;
    entry.step = step;
    entry.loss = 6.0 / static_cast<double>(step);
    entry.grad_norm = 1.0;
    entry.learning_rate = 1e-3;
    entry.tokens = 100;
    entry.seconds = 0.5;
    entry.tokens_per_second = 200.0;
    entry.peak_bytes = 300.0;
    entry.peak_bytes_by_class = {100.0, 200.0, 0.0, 0.0, 0.0, 0.0};
    run.history.steps.push_back(entry);
  }
  return run;
}

class Report : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("ithaca_report_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

TEST(HtmlEscape, MarkupControlCharactersAndBrokenUtf8) {
  EXPECT_EQ(html_escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  EXPECT_EQ(html_escape("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(html_escape(std::string("a\0b\x1b", 4)),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd");
  // Cut off, overlong, a surrogate, beyond U+10FFFF: every byte is replaced.
  EXPECT_EQ(html_escape("\xe2\x82"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_escape("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_escape("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_escape("\xf5\x80\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_escape("line\n\ttab"), "line\n\ttab");
}

TEST(ReportPage, OneRun) {
  const std::string page = report_page({run_of(3)}, "Made by a test.");
  const std::string text = check_page(page);
  EXPECT_THAT(text, testing::HasSubstr("2.0000"));
  EXPECT_THAT(text, testing::HasSubstr("Made by a test."));
  EXPECT_THAT(page, testing::HasSubstr("Content-Security-Policy\" content=\"default-src 'none'"));
  // Nothing is fetched: no address of any kind, but for the name of the SVG language.
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("href="), std::string::npos);
  EXPECT_EQ(page.find("url(http"), std::string::npos);
  size_t addresses = 0;
  for (size_t at = 0; (at = page.find("://", at)) != std::string::npos; ++at) ++addresses;
  EXPECT_EQ(addresses, 1u);

  const Json run = data_of(page).at("runs").at(0);
  EXPECT_EQ(run.at("step"), Json({1, 2, 3}));
  EXPECT_EQ(run.at("tokens"), Json({100, 200, 300}));
  EXPECT_EQ(run.at("seconds"), Json({0.5, 1.0, 1.5}));
  EXPECT_EQ(run.at("loss").at("mean"), Json({6.0, 3.0, 2.0}));
  EXPECT_FALSE(run.at("loss").contains("low"));
  EXPECT_EQ(run.at("memory").at("classes").size(), 2u);  // those that were used
  EXPECT_EQ(run.at("memory").at("classes").at(1).at("name"), "gradients");
  EXPECT_EQ(run.at("memory").at("classes").at(1).at("bytes"), Json({200.0, 200.0, 200.0}));
}

TEST(ReportPage, NoStepAndOneStep) {
  check_page(report_page({run_of(0)}, ""));
  check_page(report_page({run_of(0), run_of(1, "b")}, ""));
  const std::string text = check_page(report_page({run_of(1)}, ""));
  EXPECT_THAT(text, testing::HasSubstr("6.0000"));
  EXPECT_THROW(report_page({}, ""), ContractError);
}

TEST(ReportPage, ManyStepsKeepTheirExtremes) {
  ReportRun run = run_of(100000);
  for (HistoryStep& step : run.history.steps) step.loss = 2.0;
  run.history.steps[54321].loss = 90.0;
  run.history.steps[54322].loss = -7.0;
  const std::string page = report_page({run}, "");
  EXPECT_LT(page.size(), 1000000u);
  const Json data = data_of(page).at("runs").at(0);
  const Json& loss = data.at("loss");
  ASSERT_EQ(loss.at("mean").size(), static_cast<size_t>(kReportPoints));
  const auto high = loss.at("high").get<std::vector<double>>();
  const auto low = loss.at("low").get<std::vector<double>>();
  EXPECT_EQ(*std::max_element(high.begin(), high.end()), 90.0);
  EXPECT_EQ(*std::min_element(low.begin(), low.end()), -7.0);
  EXPECT_EQ(data.at("step").back(), 100000);
  EXPECT_EQ(data.at("tokens").back(), 10000000);
  EXPECT_NEAR(data.at("steps_per_point").get<double>(), 100000.0 / kReportPoints, 1e-6);
  // Every step is in exactly one point: the means, weighted by the steps of the points, give the mean of all.
  const auto steps = data.at("step").get<std::vector<int64_t>>();
  double sum = 0.0;
  for (size_t index = 0; index < steps.size(); ++index) {
    sum += loss.at("mean").at(index).get<double>() *
           static_cast<double>(steps[index] - (index > 0 ? steps[index - 1] : 0));
  }
  EXPECT_NEAR(sum, 2.0 * 99998 + 90.0 - 7.0, 1e-2);
}

TEST(ReportPage, GapsAndWhatWasNotRecorded) {
  ReportRun run = run_of(4);
  run.history.steps[1].loss = kNotRecorded;
  run.history.steps[1].skipped = true;
  run.history.steps[2].loss = std::numeric_limits<double>::infinity();
  for (HistoryStep& step : run.history.steps) {
    step.grad_norm = kNotRecorded;
    step.peak_bytes = kNotRecorded;
    step.peak_bytes_by_class.fill(kNotRecorded);
  }
  run.history.evaluations = {{2, 3.5}, {4, kNotRecorded}};
  const std::string page = report_page({run}, "");
  check_page(page);
  const Json data = data_of(page).at("runs").at(0);
  EXPECT_EQ(data.at("loss").at("mean"), Json({6.0, nullptr, nullptr, 1.5}));
  EXPECT_TRUE(data.at("grad_norm").is_null());
  EXPECT_TRUE(data.at("memory").at("total").is_null());
  EXPECT_TRUE(data.at("memory").at("classes").empty());
  EXPECT_EQ(data.at("skipped"), Json::parse(R"([{"step": 2, "tokens": 200, "seconds": 1.0}])"));
  EXPECT_EQ(data.at("evaluations").at(0), Json::parse(R"({"step": 2, "tokens": 200, "seconds": 1.0, "loss": 3.5})"));
  EXPECT_TRUE(data.at("evaluations").at(1).at("loss").is_null());
}

TEST(ReportPage, HostileStringsStayText) {
  const std::string hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;<!--\xff";
  ReportRun run = run_of(2, hostile);
  run.folder = hostile;
  run.options = {{hostile, hostile, hostile}};
  run.config_problem = hostile;
  run.config_text = hostile;
  SavedPlan plan;
  plan.family = plan.backend = plan.mesh = plan.schedule = plan.layout = plan.reason = hostile;
  plan.ranks = 2;
  run.plan = plan;
  ReportRun other = run_of(2, "b");
  other.options = {{hostile, hostile, "another"}};
  for (const auto& runs : {std::vector<ReportRun>{run}, std::vector<ReportRun>{run, other}}) {
    const std::string page = report_page(runs, hostile);
    const std::string text = check_page(page);
    EXPECT_EQ(page.find("<img"), std::string::npos);
    EXPECT_EQ(page.find("<!--"), std::string::npos);
    EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
    EXPECT_THAT(text, testing::HasSubstr("&lt;img src=x onerror=alert(2)&gt;&quot;&#39;&amp;amp;&lt;!--\xef\xbf\xbd"));
    EXPECT_EQ(data_of(page).at("runs").at(0).at("name"),
              "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;<!--\xef\xbf\xbd");
  }
}

TEST(ReportPage, SeveralRunsAndWhatDiffers) {
  ReportRun first = run_of(3, "first");
  first.options = {{"optim", "learning_rate", "0.001"}, {"train", "seed", "42"}, {"train", "output_dir", "a"}};
  ReportRun second = run_of(5, "second");
  second.options = {{"optim", "learning_rate", "0.002"}, {"train", "seed", "42"}, {"train", "output_dir", "b"}};
  const std::string text = check_page(report_page({first, second}, ""));
  const std::string table =
      text.substr(text.find("Options that differ"), text.find("Curves") - text.find("Options that differ"));
  EXPECT_THAT(table, testing::HasSubstr("optim.learning_rate0.0010.002"));
  EXPECT_THAT(table, testing::Not(testing::HasSubstr("seed")));
  EXPECT_THAT(table, testing::Not(testing::HasSubstr("output_dir")));
  second.options[0].value = "0.001";
  EXPECT_THAT(check_page(report_page({first, second}, "")), testing::HasSubstr("the runs were told the same"));
  second.options.clear();
  second.config_problem = "config.yaml is not there";
  const std::string unknown = check_page(report_page({first, second}, ""));
  EXPECT_THAT(unknown, testing::HasSubstr("second cannot be compared: config.yaml is not there"));
  EXPECT_THAT(unknown, testing::Not(testing::HasSubstr("told the same")));
}

TEST(ReportPage, RunsAreCalledByWhatTellsThemApart) {
  std::vector<ReportRun> runs(3);
  runs[0].folder = "/x/a/run/";
  runs[1].folder = "/x/b/run";
  runs[2].folder = "/x/b/other/../other";
  name_report_runs(runs);
  EXPECT_EQ(runs[0].name, "a/run");
  EXPECT_EQ(runs[1].name, "b/run");
  EXPECT_EQ(runs[2].name, "b/other");
  runs[1].folder = "/x/a/run";
  name_report_runs(runs);
  EXPECT_THAT(runs[0].name, testing::EndsWith("x/a/run (1)"));
  EXPECT_THAT(runs[1].name, testing::EndsWith("x/a/run (2)"));
  runs.resize(1);
  name_report_runs(runs);
  EXPECT_EQ(runs[0].name, "run");
}

TEST_F(Report, ReadsARunFolder) {
  write("run/metrics.jsonl", "{\"step\": 1, \"loss\": 2.5, \"tokens\": 10, \"step_seconds\": 2.0}\n");
  write("run/config.yaml", "model: {path: /m}\ndata: {train: /t.txt}\ntrain: {output_dir: /o}\n");
  RunPlan plan;
  plan.mesh.ulysses = 4;
  plan.schedule = ScheduleKind::ulysses;
  plan.schedule_reason = "because";
  write("run/plan.json", plan_json(plan));
  write("run/export/config.json", "{}");
  const ReportRun run = read_report_run((folder_ / "run").string());
  EXPECT_EQ(run.history.tokens_per_second(), 5.0);
  EXPECT_EQ(run.plan.value().ranks, 4);
  EXPECT_EQ(run.plan.value().mesh, "ulysses 4");
  EXPECT_EQ(run.plan.value().reason, "because");
  EXPECT_EQ(run.plan.value().attention_text(), "ulysses, contiguous layout");
  EXPECT_TRUE(run.exported);
  EXPECT_EQ(run.config_problem, "");
  const auto found = std::find_if(run.options.begin(), run.options.end(),
                                  [](const ReportOption& option) { return option.name == "lr_scheduler_type"; });
  ASSERT_NE(found, run.options.end());
  EXPECT_EQ(found->section, "optim");
  EXPECT_EQ(found->value, "cosine");
  check_page(report_page({run}, ""));
}

TEST_F(Report, AConfigOfAnotherVersionIsShownAsItIs) {
  write("run/metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  write("run/config.yaml", "a_later_section: {x: <b>}\n");
  write("run/plan.json", "[");
  const ReportRun run = read_report_run((folder_ / "run").string());
  EXPECT_THAT(run.config_problem, testing::HasSubstr("a_later_section"));
  EXPECT_THAT(check_page(report_page({run}, "")), testing::HasSubstr("a_later_section: {x: &lt;b&gt;}"));
}

TEST_F(Report, WhatIsNotARun) {
  EXPECT_THROW(read_report_run((folder_ / "missing").string()), FileError);
  EXPECT_THROW(read_report_run(write("file", "x")), InputError);
  EXPECT_THROW(read_report_run(folder_.string()), InputError);
}

TEST_F(Report, TheHistoryOfAResumedRunHasEveryStepOnce) {
  const std::string path =
      write("metrics.jsonl",
            "{\"step\": 1, \"loss\": 5, \"tokens\": 1, \"step_seconds\": 1}\n"
            "{\"step\": 2, \"loss\": 4, \"tokens\": 1, \"step_seconds\": 1}\n"
            "{\"step\": 2, \"eval_loss\": 4.5}\n"
            "{\"step\": 3, \"loss\": 3, \"tokens\": 1, \"step_seconds\": 1}\n"
            "{\"step\": 2, \"loss\": 4, \"tokens\": 1, \"step_seconds\": 1}\n"
            "{\"step\": 2, \"eval_loss\": 4.25}\n"
            "{\"step\": 3, \"loss\": null, \"tokens\": 1, \"step_seconds\": 1, \"skipped\": true}\n");
  const RunHistory history = read_run_history(path);
  ASSERT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(history.tokens(), 3);
  EXPECT_EQ(history.skipped(), 1);
  EXPECT_EQ(history.last_loss(), 4.0);
  EXPECT_EQ(history.lowest_loss()->step, 2);
  ASSERT_EQ(history.evaluations.size(), 1u);
  EXPECT_EQ(history.evaluations[0].loss, 4.25);
  EXPECT_FALSE(history.cut);
}

}  // namespace
}  // namespace ithaca
