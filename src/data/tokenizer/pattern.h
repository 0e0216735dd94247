// Pattern: what Split and Replace of a tokenizer.json look for: a literal text, or a regular expression as Oniguruma
// (the library behind Hugging Face's) reads it, run by PCRE2.
//
// Thread-safety: const functions may be called from several threads at once, each with a scratch of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace ithaca::tokenizer_internal {

// What a thread needs to run any pattern.
class PatternScratch {
 public:
  PatternScratch();
  PatternScratch(PatternScratch&&) noexcept;
  PatternScratch& operator=(PatternScratch&&) noexcept;
  ~PatternScratch();

 private:
  friend class Pattern;
  struct State;
  std::unique_ptr<State> state_;
};

class Pattern {
 public:
  static Pattern literal(std::string text);
  // Throws InputError that names `where` and what is not understood.
  static Pattern regex(std::string_view oniguruma, const std::string& where);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Walks over the matches, front to back; the text is valid UTF-8. The walk must not outlive pattern, text or scratch.
  class Walk {
   public:
    Walk(const Walk&) = delete;
    Walk& operator=(const Walk&) = delete;
    ~Walk() = default;
    Walk(const Pattern& pattern, std::string_view text, PatternScratch& scratch);
    // Empty matches right behind another match are passed over. Throws InputError when the expression is too expensive.
    std::optional<TextSpan> next();

   private:
    const Pattern& pattern_;
    std::string_view text_;
    std::string stand_in_;  // behind text_, where PCRE2 does not know a code point
    PatternScratch& scratch_;
    int64_t place_ = 0;
    int64_t last_end_ = -1;
  };

 private:
  struct Compiled;
  Pattern();
  std::optional<TextSpan> find(std::string_view text, int64_t begin, PatternScratch& scratch) const;

  std::string literal_;
  std::string where_;
  std::unique_ptr<Compiled> compiled_;  // of a regular expression
};

}  // namespace ithaca::tokenizer_internal
