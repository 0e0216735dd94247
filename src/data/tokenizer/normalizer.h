// Normalizer: what a tokenizer.json does to a text before it is split.
//
// Thread-safety: const functions may be called from several threads at once, each with a scratch of its own.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/tokenizer/aligned_text.h"
#include "data/tokenizer/pattern.h"

namespace ithaca::tokenizer_internal {

class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;
  virtual ~Normalizer() = default;
  virtual AlignedText apply(const AlignedText& text, PatternScratch& scratch) const = 0;
};

// Null for null. Throws InputError that names `where` and the component that is not known.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::ordered_json& description, const std::string& where);

// `pattern` of a Split or a Replace: {"String": ...} or {"Regex": ...}.
Pattern make_pattern(const nlohmann::ordered_json& description, const std::string& where);

// Every match of `pattern` becomes `content`.
AlignedText replace_all(const AlignedText& text, const Pattern& pattern, std::string_view content,
                        PatternScratch& scratch);

// Steps that each make a text longer could together make it endless. Throws InputError when a text of `before` bytes
// became much too long.
void check_growth(int64_t before, int64_t after);

}  // namespace ithaca::tokenizer_internal
