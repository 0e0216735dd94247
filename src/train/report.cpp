// The HTML of a report: header, tables, and the places where the script draws.
#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "train/report_assets.h"

namespace ithaca {

namespace {

constexpr const char* kPageBeginning = "<!DOCTYPE html>\n";
constexpr const char* kTitleEnd = " &middot; Ithaca report</title>";

std::string number_text(double value, const char* unit = "") {
  return std::isfinite(value) ? fmt::format("{:.4f}{}", value, unit) : "&ndash;";
}

class Page {
 public:
  explicit Page(const std::vector<ReportRun>& runs) : runs_(runs) {}

  std::string write(const std::string& made_by, int64_t points) {
    head();
    summary();
    if (runs_.size() > 1) differences();
    charts();
    configuration();
    out_ += fmt::format("<footer><p>{}</p></footer>\n</main>\n", html_escape(made_by));
    out_ += "<script type=\"application/json\" id=\"report-data\">" + report_data(runs_, points) + "</script>\n";
    out_ += "<script>\n" + std::string(kReportScript) + "</script>\n</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  std::string title() const {
    std::string text = runs_.front().name;
    for (size_t index = 1; index < runs_.size() && index < 3; ++index) text += ", " + runs_[index].name;
    if (runs_.size() > 3) text += fmt::format(" and {} more", runs_.size() - 3);
    return text;
  }

  void head() {
    const std::string name = html_escape(title());
    out_ += std::string(kPageBeginning) +
            "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            // The page never asks anything of a network; the browser holds it to that.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
            "<meta name=\"color-scheme\" content=\"light dark\">\n";
    out_ += "<title>" + name + kTitleEnd + "\n<style>\n" + std::string(kReportStyle) + "</style>\n</head>\n<body>\n";
    out_ += "<main>\n<header class=\"top\">\n<div><p class=\"kind\">Ithaca report</p><h1>" + name + "</h1>" +
            subtitle() + "</div>\n<button id=\"theme\" type=\"button\" hidden>Theme: auto</button>\n</header>\n";
  }

  std::string subtitle() const {
    const ReportRun& run = runs_.front();
    if (runs_.size() > 1) return fmt::format("<p class=\"subtitle\">{} runs compared</p>", runs_.size());
    if (!run.plan) return "";
    std::vector<std::string> parts;
    const SavedPlan& plan = *run.plan;
    if (!plan.family.empty()) {
      parts.push_back(
          fmt::format("{}, {} parameters", plan.family, format_short(static_cast<double>(plan.parameters))));
    }
    if (plan.longest_sequence > 0) {
      parts.push_back(fmt::format("sequences of up to {} tokens", format_count(plan.longest_sequence)));
    }
    if (plan.ranks > 0) parts.push_back(fmt::format("{} rank{}", plan.ranks, plan.ranks == 1 ? "" : "s"));
    if (plan.ranks > 1 && !plan.schedule.empty()) parts.push_back(plan.attention_text());
    if (!plan.backend.empty()) parts.push_back(plan.backend);
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : " &middot; ") + html_escape(part);
    return "<p class=\"subtitle\">" + text + "</p>";
  }

  // One run: tiles. Several: a table, a line each.
  void summary() {
    out_ += "<section aria-label=\"Summary\">\n";
    if (runs_.size() == 1) {
      tiles(runs_.front());
    } else {
      summary_table();
    }
    out_ += "</section>\n";
  }

  void tile(const char* label, const std::string& value, const std::string& remark) {
    out_ += fmt::format("<div class=\"tile\"><dt>{}</dt><dd>{}", label, value);
    if (!remark.empty()) out_ += "<small>" + remark + "</small>";
    out_ += "</dd></div>\n";
  }

  static std::string step_text(const ReportRun& run) {
    const auto done = static_cast<int64_t>(run.history.steps.size());
    const int64_t last = run.history.steps.empty() ? 0 : run.history.steps.back().step;
    if (run.plan && run.plan->steps > last) return format_count(done) + " of " + format_count(run.plan->steps);
    return format_count(done);
  }

  void tiles(const ReportRun& run) {
    const RunHistory& history = run.history;
    out_ += "<dl class=\"tiles\">\n";
    const std::string first =
        std::isfinite(history.first_loss()) ? fmt::format("from {:.4f}", history.first_loss()) : "";
    tile("Loss", number_text(history.last_loss()), first + (first.empty() ? "" : ", nats per token"));
    if (const HistoryStep* lowest = history.lowest_loss()) {
      tile("Lowest loss", number_text(lowest->loss), fmt::format("in step {}", format_count(lowest->step)));
    }
    if (!history.evaluations.empty()) {
      tile("Evaluation loss", number_text(history.evaluations.back().loss),
           fmt::format("after step {}", format_count(history.evaluations.back().step)));
    }
    const int64_t skipped = history.skipped();
    tile("Steps", step_text(run), skipped > 0 ? fmt::format("{} skipped", format_count(skipped)) : "none skipped");
    tile("Tokens", format_short(static_cast<double>(history.tokens())), format_count(history.tokens()));
    tile("Throughput", format_short(history.tokens_per_second()), "tokens/s, in " + format_duration(history.seconds()));
    if (history.peak_bytes() > 0) {
      tile("Peak memory", format_bytes(static_cast<int64_t>(history.peak_bytes())), "on the rank that used most");
    }
    out_ += "</dl>\n";
  }

  void summary_table() {
    out_ +=
        "<div class=\"scroll\"><table>\n<caption>Runs</caption>\n<thead><tr><th scope=\"col\">run</th>"
        "<th scope=\"col\" class=\"number\">steps</th><th scope=\"col\" class=\"number\">tokens</th>"
        "<th scope=\"col\" class=\"number\">time</th><th scope=\"col\" class=\"number\">tokens/s</th>"
        "<th scope=\"col\" class=\"number\">first loss</th><th scope=\"col\" class=\"number\">last loss</th>"
        "<th scope=\"col\" class=\"number\">lowest loss</th><th scope=\"col\" class=\"number\">evaluation loss</th>"
        "<th scope=\"col\" class=\"number\">peak memory</th><th scope=\"col\" class=\"number\">skipped</th>"
        "<th scope=\"col\">attention</th></tr></thead>\n<tbody>\n";
    for (size_t index = 0; index < runs_.size(); ++index) {
      const ReportRun& run = runs_[index];
      const RunHistory& history = run.history;
      const HistoryStep* lowest = history.lowest_loss();
      out_ +=
          fmt::format("<tr><th scope=\"row\"><i class=\"swatch run-{}\"></i>{}</th>", index % 8, html_escape(run.name));
      for (const std::string& cell :
           {step_text(run), format_short(static_cast<double>(history.tokens())), format_duration(history.seconds()),
            format_short(history.tokens_per_second()), number_text(history.first_loss()),
            number_text(history.last_loss()), number_text(lowest != nullptr ? lowest->loss : kNotRecorded),
            number_text(history.evaluations.empty() ? kNotRecorded : history.evaluations.back().loss),
            history.peak_bytes() > 0 ? format_bytes(static_cast<int64_t>(history.peak_bytes())) : "&ndash;",
            format_count(history.skipped())}) {
        out_ += "<td class=\"number\">" + cell + "</td>";
      }
      const std::string attention =
          run.plan && !run.plan->schedule.empty()
              ? fmt::format("{}{}", run.plan->attention_text(),
                            run.plan->ranks > 1 ? fmt::format(", {} ranks", run.plan->ranks) : std::string())
              : std::string();
      out_ += "<td>" + html_escape(attention) + "</td></tr>\n";
    }
    out_ += "</tbody></table></div>\n";
  }

  // "section.name" -> the value in every run; absent where a run has no such option.
  std::vector<std::pair<std::string, std::vector<const std::string*>>> option_rows() const {
    std::vector<std::pair<std::string, std::vector<const std::string*>>> rows;
    std::map<std::string, size_t> places;
    for (size_t run = 0; run < runs_.size(); ++run) {
      for (const ReportOption& option : runs_[run].options) {
        const std::string name = option.section + "." + option.name;
        const auto [place, is_new] = places.try_emplace(name, rows.size());
        if (is_new) rows.emplace_back(name, std::vector<const std::string*>(runs_.size(), nullptr));
        rows[place->second].second[run] = &option.value;
      }
    }
    return rows;
  }

  void differences() {
    out_ += "<section aria-labelledby=\"differences\">\n<h2 id=\"differences\">What differs</h2>\n";
    std::string rows;
    for (const auto& [name, values] : option_rows()) {
      // Every run has a folder of its own; that is no difference between them.
      if (name == "train.output_dir") continue;
      const std::string* first = nullptr;
      bool differs = false;
      for (const std::string* value : values) {
        if (value == nullptr) continue;
        if (first == nullptr) first = value;
        differs = differs || *value != *first;
      }
      if (!differs) continue;
      rows += "<tr><th scope=\"row\"><code>" + html_escape(name) + "</code></th>";
      for (const std::string* value : values) {
        rows += value == nullptr ? "<td>&ndash;</td>" : "<td><code>" + html_escape(*value) + "</code></td>";
      }
      rows += "</tr>\n";
    }
    for (const ReportRun& run : runs_) {
      if (!run.options.empty()) continue;
      out_ += "<p class=\"note\">" + html_escape(run.name) + " cannot be compared: " + html_escape(run.config_problem) +
              "</p>\n";
    }
    if (rows.empty()) {
      const auto readable =
          std::count_if(runs_.begin(), runs_.end(), [](const auto& run) { return !run.options.empty(); });
      if (readable > 1) out_ += "<p>No option but the folder: the runs were told the same.</p>\n";
      out_ += "</section>\n";
      return;
    }
    out_ +=
        "<div class=\"scroll\"><table>\n<caption>Options that differ</caption>\n<thead><tr><th "
        "scope=\"col\">option</th>";
    for (size_t index = 0; index < runs_.size(); ++index) {
      out_ += fmt::format("<th scope=\"col\"><i class=\"swatch run-{}\"></i>{}</th>", index % 8,
                          html_escape(runs_[index].name));
    }
    out_ += "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n</section>\n";
  }

  void charts() {
    out_ +=
        "<section aria-labelledby=\"curves\">\n<h2 id=\"curves\">Curves</h2>\n"
        "<noscript><p class=\"note\">The curves are drawn by a script of this page, which needs JavaScript. The tables "
        "do not.</p></noscript>\n"
        "<div id=\"controls\" class=\"controls\" hidden></div>\n<div id=\"charts\" class=\"charts\"></div>\n"
        "<p id=\"announce\" class=\"visually-hidden\" aria-live=\"polite\"></p>\n</section>\n";
  }

  void configuration() {
    out_ += "<section aria-labelledby=\"configuration\">\n<h2 id=\"configuration\">Configuration</h2>\n";
    for (const ReportRun& run : runs_) {
      out_ +=
          fmt::format("<details{}>\n<summary>{}</summary>\n", runs_.size() == 1 ? " open" : "", html_escape(run.name));
      plan_table(run);
      if (!run.config_problem.empty()) {
        out_ += "<p class=\"note\">" + html_escape(run.config_problem) + "</p>\n";
        if (!run.config_text.empty()) out_ += "<pre>" + html_escape(run.config_text) + "</pre>\n";
      }
      options_tables(run);
      out_ += "</details>\n";
    }
    out_ += "</section>\n";
  }

  void plan_table(const ReportRun& run) {
    std::vector<std::pair<const char*, std::string>> rows = {{"folder", run.folder}};
    if (run.plan) {
      const SavedPlan& plan = *run.plan;
      rows.emplace_back("model", fmt::format("{}, {} layers, hidden {}, {} parameters", plan.family, plan.layers,
                                             plan.hidden_size, format_count(plan.parameters)));
      rows.emplace_back("computes on", plan.backend);
      rows.emplace_back(
          "ranks", plan.mesh.empty() ? fmt::format("{}", plan.ranks) : fmt::format("{} ({})", plan.ranks, plan.mesh));
      rows.emplace_back("attention", plan.attention_text());
      if (!plan.reason.empty()) rows.emplace_back("why", plan.reason);
      rows.emplace_back(
          "data", fmt::format("{} sequences of up to {} tokens, {} tokens in all", format_count(plan.train_sequences),
                              format_count(plan.longest_sequence), format_count(plan.train_tokens)));
      rows.emplace_back("steps",
                        fmt::format("{}, {} sequence{} each", format_count(plan.steps),
                                    format_count(plan.sequences_per_step), plan.sequences_per_step == 1 ? "" : "s"));
    }
    rows.emplace_back("export", run.exported ? run.folder + "/export" : "none");
    out_ += "<div class=\"scroll\"><table class=\"facts\">\n<caption>What was decided</caption>\n<tbody>\n";
    for (const auto& [label, value] : rows) {
      if (value.empty()) continue;
      out_ += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", label, html_escape(value));
    }
    out_ += "</tbody></table></div>\n";
  }

  void options_tables(const ReportRun& run) {
    if (run.options.empty()) return;
    out_ += "<div class=\"sections\">\n";
    for (size_t index = 0; index < run.options.size(); ++index) {
      const ReportOption& option = run.options[index];
      if (index == 0 || run.options[index - 1].section != option.section) {
        if (index > 0) out_ += "</tbody></table>\n";
        out_ +=
            "<table class=\"facts\">\n<caption><code>" + html_escape(option.section) + "</code></caption>\n<tbody>\n";
      }
      out_ += "<tr><th scope=\"row\"><code>" + html_escape(option.name) + "</code></th><td><code>" +
              html_escape(option.value) + "</code></td></tr>\n";
    }
    out_ += "</tbody></table>\n</div>\n";
  }

  const std::vector<ReportRun>& runs_;
  std::string out_;
};

}  // namespace

std::string html_escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const auto length = static_cast<size_t>(valid_character_length(text));
    const unsigned char first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      escaped += kReplacementCharacter;
      text.remove_prefix(1);
      continue;
    }
    switch (first) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '\n':
      case '\t':
        escaped += static_cast<char>(first);
        break;
      default:
        if (first < 0x20 || first == 0x7f) {
          escaped += kReplacementCharacter;
        } else {
          escaped += text.substr(0, length);
        }
    }
    text.remove_prefix(length);
  }
  return escaped;
}

bool is_report_beginning(std::string_view bytes) {
  return bytes.starts_with(kPageBeginning) && bytes.find(kTitleEnd) != std::string_view::npos;
}

std::string report_page(const std::vector<ReportRun>& runs, const std::string& made_by, int64_t points) {
  require(!runs.empty(), "report_page: at least one run");
  return Page(runs).write(made_by, points);
}

}  // namespace ithaca
