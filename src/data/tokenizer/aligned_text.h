// AlignedText: a text after normalizations, and where in the original each part of it comes from.
//
// A text that no step changes is a view of what it was made from. Thread-safety: values; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace ithaca::tokenizer_internal {

class AlignedText {
 public:
  // Bytes [begin, begin + text.size()) of the original, unchanged. `text` must outlive this and what is made from it.
  // Without `tracked`, origin() must not be called and changes cost nothing but the new text.
  AlignedText(std::string_view text, int64_t begin, bool tracked) : text_(text), begin_(begin), tracked_(tracked) {}
  // A part of another one, as a view.
  AlignedText(const AlignedText& whole, int64_t begin, int64_t end);
  AlignedText(AlignedText&&) noexcept = default;
  AlignedText& operator=(AlignedText&&) noexcept = default;
  AlignedText(const AlignedText&) = delete;
  AlignedText& operator=(const AlignedText&) = delete;
  ~AlignedText() = default;

  std::string_view text() const { return text_; }
  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  bool tracked() const { return tracked_; }

  // The bytes of the original behind bytes [begin, end) of this text: from the first to the last that has any. Nothing
  // but insertions: an empty range at the place of the insertion.
  TextSpan origin(int64_t begin, int64_t end) const;

 private:
  friend class TextEdit;
  // Bytes from `begin` up to the next part stand for `original`; one to one, or all of them for all of it.
  struct Part {
    int64_t begin = 0;
    TextSpan original;
    bool one_to_one = true;
  };
  // Of bytes [begin, end), in order.
  void append_parts(int64_t begin, int64_t end, int64_t shift, std::vector<Part>& parts) const;

  std::string_view text_;
  int64_t begin_ = 0;  // in the original, while there are no parts
  bool tracked_ = false;
  std::shared_ptr<const std::string> owned_;  // behind text_, once something was changed
  std::vector<Part> parts_;                   // empty: one to one from begin_
};

// Makes a new text from an old one, front to back. What lies between the changes is kept; nothing is copied before the
// first change.
class TextEdit {
 public:
  explicit TextEdit(const AlignedText& source) : source_(source) {}
  // Bytes [begin, end) of the source become `text`; begin must not lie before the end of the change before. Equal begin
  // and end insert, an empty text removes.
  void replace(int64_t begin, int64_t end, std::string_view text);
  // The result; the source itself where nothing was changed.
  AlignedText finish();

 private:
  void keep_until(int64_t end);

  const AlignedText& source_;
  int64_t done_ = 0;
  std::shared_ptr<std::string> text_;
  std::vector<AlignedText::Part> parts_;
};

// Every byte, or beginning of a character, that is not valid UTF-8 becomes U+FFFD.
AlignedText replace_invalid_utf8(const AlignedText& bytes);

}  // namespace ithaca::tokenizer_internal
