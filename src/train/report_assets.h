// The style sheet and the script of a report, from report/report.css and report/report.js.
#pragma once

#include <string_view>

namespace ithaca {

extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

}  // namespace ithaca
