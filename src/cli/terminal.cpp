#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ostream>
#include <string_view>
#include <system_error>

#include "base/utf8.h"

namespace ithaca {

namespace {

// An environment variable's text; empty when it is not set.
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Columns of standard output: from the terminal, else from COLUMNS, else 80.
size_t window_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  size_t columns = 0;
  const std::string_view text = environment("COLUMNS");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && columns > 0 && columns < 10000 ? columns : 80;
}

}  // namespace

TerminalStyle TerminalStyle::of_standard_output() {
  TerminalStyle style;
  style.live = isatty(STDOUT_FILENO) == 1 && environment("TERM") != "dumb";
  style.color = style.live && environment("NO_COLOR").empty();
  style.follows_window = style.live;
  if (style.live) style.width = window_width();
  return style;
}

Terminal::~Terminal() {
  keep_live();
}

void Terminal::line(const std::string& text) {
  const std::string live_text = live_text_;
  clear_live();
  out_ << text << '\n' << std::flush;
  if (!live_text.empty()) live(live_text);
}

void Terminal::error_line(const std::string& text) {
  const std::string live_text = live_text_;
  clear_live();
  out_ << std::flush;
  err_ << text << '\n' << std::flush;
  if (!live_text.empty()) live(live_text);
}

size_t Terminal::width() {
  if (style_.follows_window) style_.width = window_width();
  return style_.width;
}

void Terminal::live(const std::string& text) {
  if (!style_.live) return;
  // The last column stays free: some terminals wrap as soon as it is filled. A character of several bytes stays whole.
  const size_t size = std::min(text.size(), std::max<size_t>(width(), 1) - 1);
  live_text_ = text.substr(0, character_begin(text, size));
  out_ << '\r' << live_text_ << "\x1b[K" << std::flush;
}

void Terminal::keep_live() {
  if (!live_text_.empty()) out_ << '\n' << std::flush;
  live_text_.clear();
}

std::string Terminal::bold(const std::string& text) const {
  return style_.color ? "\x1b[1m" + text + "\x1b[0m" : text;
}

std::string Terminal::dim(const std::string& text) const {
  return style_.color ? "\x1b[2m" + text + "\x1b[0m" : text;
}

void Terminal::clear_live() {
  if (!live_text_.empty()) out_ << "\r\x1b[K";
  live_text_.clear();
}

}  // namespace ithaca
