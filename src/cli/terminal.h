// Where a program prints: ordinary text on one stream, warnings and errors on another, and one line that rewrites
// itself when the ordinary stream is a terminal. Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>

namespace ithaca {

struct TerminalStyle {
  bool live = false;   // a terminal that can move its cursor: there is a live line
  bool color = false;  // and it may be coloured (NO_COLOR is not set)
  size_t width = 80;
  bool follows_window = false;  // the width is asked for anew: windows change their size

  // Of the process's standard output, from isatty, its window, TERM and NO_COLOR.
  static TerminalStyle of_standard_output();
};

class Terminal {
 public:
  // The streams must outlive it.
  Terminal(std::ostream& out, std::ostream& err, const TerminalStyle& style) : out_(out), err_(err), style_(style) {}
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  // Leaves the live line where it is and goes below it.
  ~Terminal();

  const TerminalStyle& style() const { return style_; }
  // Columns, as they are now.
  size_t width();
  // A line that stays.
  void line(const std::string& text);
  // A line that stays, on the error stream.
  void error_line(const std::string& text);
  // Replaces the live line; nothing when there is none. Cut to the width.
  void live(const std::string& text);
  // Keeps what the live line shows as an ordinary line.
  void keep_live();
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;

 private:
  void clear_live();

  std::ostream& out_;
  std::ostream& err_;
  TerminalStyle style_;
  std::string live_text_;
};

}  // namespace ithaca
