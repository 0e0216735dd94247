#include "base/error.h"
#include "base/regular_file.h"
#include "data/tokenizer/json_tokenizer.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_settings.h"

namespace ithaca {

std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& model_directory) {
  using namespace tokenizer_internal;
  const std::filesystem::path json = model_directory / "tokenizer.json";
  if (std::filesystem::exists(json)) {
    return make_json_tokenizer(read_regular_file(json.string()), json.string(),
                               read_tokenizer_settings(model_directory));
  }
  const std::filesystem::path model = model_directory / "tokenizer.model";
  if (std::filesystem::exists(model))
    return make_sentencepiece_tokenizer(model, read_tokenizer_settings(model_directory));
  throw FileError(model_directory.string() +
                  ": there is no tokenizer here, neither tokenizer.json nor tokenizer.model");
}

}  // namespace ithaca
