// Decoder: from the spellings of tokens back to a text.
//
// Thread-safety: const functions may be called from several threads at once, each with a scratch of its own.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/pattern.h"

namespace ithaca::tokenizer_internal {

class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;
  // Changes the spellings; the text is what they are, one after the other.
  virtual void apply(std::vector<std::string>& tokens, PatternScratch& scratch) const = 0;
};

// Null for null. Throws InputError that names `where` and the component that is not known.
std::unique_ptr<Decoder> make_decoder(const nlohmann::ordered_json& description, const std::string& where);

}  // namespace ithaca::tokenizer_internal
