// The tokenizer of a tokenizer.json.
//
// Thread-safety: as Tokenizer; making one: pure function.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_settings.h"

namespace ithaca::tokenizer_internal {

// `text`: the file; `where`: its name, for errors. Throws InputError that names the component that is not known.
std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, const std::string& where,
                                               const TokenizerSettings& settings);

}  // namespace ithaca::tokenizer_internal
