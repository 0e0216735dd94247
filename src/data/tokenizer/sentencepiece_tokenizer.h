// The tokenizer of a tokenizer.model, run by libsentencepiece.
//
// Thread-safety: as Tokenizer; making one: pure function.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_settings.h"

namespace ithaca::tokenizer_internal {

// Throws FileError, InputError.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& path,
                                                        const TokenizerSettings& settings);

}  // namespace ithaca::tokenizer_internal
