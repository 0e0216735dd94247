// Unicode normalization forms that keep track of where each part comes from.
//
// Thread-safety: const functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <vector>

#include "data/tokenizer/aligned_text.h"

namespace ithaca::tokenizer_internal {

class NormalForm {
 public:
  // NFC: {false, true}, NFD: {false, false}, NFKC: {true, true}, NFKD: {true, false}. Its table is made once.
  static const NormalForm& get(bool compatibility, bool composed);
  AlignedText apply(const AlignedText& text) const;

 private:
  NormalForm(bool compatibility, bool composed);
  // What a code point does in this form.
  enum Trait : uint8_t {
    kChanges = 1,   // alone it becomes something else
    kAttaches = 2,  // it may combine with, or be sorted among, what stands before it
  };
  uint8_t traits(char32_t code_point) const { return traits_[code_point]; }
  void normalize(std::string_view segment, std::string& result) const;

  bool compatibility_;
  bool composed_;
  std::vector<uint8_t> traits_;  // of every code point
};

}  // namespace ithaca::tokenizer_internal
