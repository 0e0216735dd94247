// What Jinja makes of several hundred small templates (tests/data/chat/make_conformance.py), and what it makes of them
// is what ours must be, byte for byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace ithaca {
namespace {

using Json = nlohmann::ordered_json;

TEST(JinjaConformance, EveryTemplateGivesWhatJinjaGives) {
  std::ifstream file(std::string(ITHACA_TEST_DATA) + "/chat/conformance.json");
  const Json data = Json::parse(file);
  setenv("TZ", "UTC", 1);
  tzset();
  ChatOptions options;
  options.now = data.at("now").get<int64_t>();
  int64_t checked = 0;
  for (const Json& test : data.at("cases")) {
    const auto source = test.at("template").get<std::string>();
    SCOPED_TRACE(test.at("group").get<std::string>() + ": " + source);
    RenderedChat rendered;
    std::string error;
    try {
      rendered = ChatTemplate(source, "case.jinja").render(data.at("variables"), options);
    } catch (const InputError& failure) {
      error = failure.what();
      EXPECT_EQ(error.rfind("case.jinja:", 0), 0U) << error;
    }
    ++checked;
    if (test.contains("error")) {
      EXPECT_NE(error, "") << "rendered: " << rendered.text << "\nJinja: " << test.at("error");
      continue;
    }
    EXPECT_EQ(error, "");
    if (!error.empty()) continue;
    EXPECT_EQ(rendered.text, test.at("text").get<std::string>());
    std::vector<TextSpan> spans;
    if (test.contains("spans")) {
      for (const Json& span : test.at("spans")) spans.push_back({span[0].get<int64_t>(), span[1].get<int64_t>()});
    }
    EXPECT_EQ(rendered.generated, spans);
  }
  EXPECT_GT(checked, 700);
}

}  // namespace
}  // namespace ithaca
